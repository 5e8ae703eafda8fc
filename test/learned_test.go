package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// TestEstimatesAreShared checks that a node reserves as many tokens as another node learned from a model's responses.
func TestEstimatesAreShared(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Header.Get("X-Wait") != "" {
			begun <- struct{}{}
			<-end
			fmt.Fprint(w, `{}`) // without any usage to learn from
			return
		}
		fmt.Fprint(w, `{"usage": {"prompt_tokens": 1, "completion_tokens": 40, "total_tokens": 41}}`)
	}))
	t.Cleanup(model.Close)
	redis := redistest.New(t, redistest.Options{})
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: tokens, amount: tokens, limit: 1000000/day, algorithm: fixed_window}]")
	var nodes []*node
	for range 2 {
		nodes = append(nodes, serve(t, "--store", "redis://"+redis.Addr, "--seed-rules", rules, "--gateway", "127.0.0.1:0", "--upstream", model.URL))
	}
	call := func(n *node, wait string) error {
		req, err := http.NewRequest("POST", n.Gateway+"/v1/chat/completions", strings.NewReader(`{"model": "large", "messages": []}`))
		if err != nil {
			return err
		}
		req.Header = http.Header{"Content-Type": {"application/json"}, "X-Api-Key": {"sk_prod_1"}, "X-Wait": {wait}}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 {
			return fmt.Errorf("%d: %s, %v", res.StatusCode, text, err)
		}
		return nil
	}
	left := func() float64 {
		status, text := admin(t, nodes[0], "POST", "/v1/counters", `{"key": "sk_prod_1"}`)
		var got struct{ Counters []struct{ Remaining float64 } }
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 || len(got.Counters) != 1 {
			t.Fatalf("%d: %s", status, text)
		}
		return got.Counters[0].Remaining
	}
	for range 8 {
		if err := call(nodes[0], ""); err != nil {
			t.Fatal(err)
		}
	}
	until(t, func() error {
		before, done := left(), make(chan error)
		go func() { done <- call(nodes[1], "yes") }()
		<-begun
		reserved := before - left()
		end <- struct{}{}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if reserved < 40 {
			return fmt.Errorf("the second node reserves %v", reserved)
		}
		return nil
	})
}
