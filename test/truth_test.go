package test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// If Redis is full or slow, it is still up. The node reports that checks are made without it, and why.
func TestAStoreThatIsUpButFails(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: login, limit: 1000/hour, on_store_failure: refuse}]")
	n := serve(t, "--rules", rules, "--store", "redis://"+r.Addr, "--store-timeout", "1s")
	reached(t, n)
	if now := nowOf(t, n); trouble(&now, "degraded") != nil {
		t.Fatalf("%+v", now.Trouble)
	}
	for _, set := range [][]string{{"CONFIG", "SET", "maxmemory-policy", "noeviction"}, {"CONFIG", "SET", "maxmemory", "1"}} {
		if _, err := r.Do(t.Context(), set...); err != nil {
			t.Fatal(err)
		}
	}
	key := 0
	until(t, func() error {
		key++
		_, text := post(t, http.DefaultClient, n.HTTP+"/v1/check", fmt.Sprintf(`{"key": "k%d"}`, key))
		now := nowOf(t, n)
		told := trouble(&now, "degraded")
		if told == nil {
			return fmt.Errorf("%s is said, and %+v", text, now.Trouble)
		}
		if now.Store.Status != "up" || !strings.Contains(told.Text, "short of memory") || !strings.Contains(told.Text, "1 refuses with 503") {
			t.Errorf("%s: %s", now.Store.Status, told.Text)
		}
		return nil
	})
	if _, text := post(t, http.DefaultClient, n.Admin+"/v1/counters", `{"key": "nobody"}`); !strings.Contains(text, "A check may be decided otherwise") {
		t.Errorf("of a key without a counter: %s", text)
	}
}

// A node that died while Redis was lost is reported as missing once Redis is back. A live node isn't.
func TestANodeThatDiesWhileRedisIsLost(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: all, limit: 1000/hour}]")
	start := func() *node {
		return serve(t, "--rules", rules, "--store", "redis://"+r.Addr, "--store-timeout", "1s")
	}
	a, b, c := start(), start(), start()
	reached(t, a, b, c)
	until(t, func() error {
		if now := nowOf(t, a); now.Store.Nodes != 3 || len(now.Trouble) > 0 {
			return fmt.Errorf("%d nodes, %+v", now.Store.Nodes, now.Trouble)
		}
		return nil
	})
	dead, lives := nowOf(t, b).Node, nowOf(t, c).Node
	until(t, func() error { // until node a knows the others
		if _, text := call(t, "GET", a.Admin+"/v1/nodes", ""); !strings.Contains(text, dead) || !strings.Contains(text, lives) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	looked := nowOf(t, a).At
	until(t, func() error { // until node a has refreshed its status since
		if at := nowOf(t, a).At; !at.After(looked.Add(time.Second)) {
			return fmt.Errorf("the status is of %s", at)
		}
		return nil
	})
	r.Kill()
	until(t, func() error {
		if now := nowOf(t, a); trouble(&now, "store_lost") == nil {
			return fmt.Errorf("%+v", now.Trouble)
		}
		return nil
	})
	if err := b.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	until(t, func() error { // until the list of nodes is stale
		_, text := call(t, "GET", a.Admin+"/v1/nodes", "")
		if !strings.Contains(text, `"stale":true`) && !strings.Contains(text, `"stale": true`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	looked = nowOf(t, a).At
	until(t, func() error { // until node a has refreshed its status again
		if at := nowOf(t, a).At; !at.After(looked) {
			return fmt.Errorf("the status is of %s", at)
		}
		return nil
	})
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() error {
		now := nowOf(t, a)
		if told := trouble(&now, "node_stale"); told == nil || !strings.Contains(told.Text, "Not heard: "+dead+" since ") || strings.Contains(told.Text, lives) {
			return fmt.Errorf("%+v", now.Trouble)
		}
		return nil
	})
}
