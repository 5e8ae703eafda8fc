package test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// During the drain notice, a node that shuts down still accepts connections, and reports that it is draining.
func TestDrainNotice(t *testing.T) {
	t.Parallel()
	n := serve(t, "--drain-notice", "1h")
	n.stop()
	n.await("draining", func(map[string]any) bool { return true })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // a new connection for each request
	until(t, func() error {
		res, err := client.Get(n.HTTP + "/readyz")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if text, _ := io.ReadAll(res.Body); res.StatusCode != 503 || !strings.Contains(string(text), `"status":"draining"`) {
			return fmt.Errorf("%s %s", res.Status, text)
		}
		return nil
	})
	if status, body := post(t, client, n.HTTP+"/v1/check", `{"key": "k"}`); status != 200 {
		t.Errorf("a check while the node drains: %d %s", status, body)
	}
}
