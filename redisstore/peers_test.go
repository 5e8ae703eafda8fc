package redisstore

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// said returns what the live nodes say, by name.
func said(ctx context.Context, s *Store) (map[string]string, error) {
	peers, err := s.Peers(ctx)
	all := map[string]string{}
	for _, p := range peers {
		all[p.Name] = p.Says
	}
	return all, err
}

// knows returns nil if a node knows what the others say.
func knows(s *Store, want map[string]string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := said(ctx, s)
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("the nodes say %v, want %v", got, want)
		}
		return err
	}
}

// TestPeers checks that nodes learn what the others say, at once when it changes, until a node leaves or falls silent. A node
// that says nothing is counted, and costs Redis nothing else.
func TestPeers(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	url := "redis://" + r.Addr
	quiet := open(t, Options{URL: url, Name: "quiet"})
	until(t, knows(quiet, map[string]string{"quiet": ""}))
	keys := slices.DeleteFunc(do(t, r, "KEYS", "*").([]any), func(key any) bool { return key == quiet.names.Load().probe(0) })
	if len(keys) != 2 {
		t.Errorf("a node that says nothing has %v", keys)
	}
	a := open(t, Options{URL: url, Name: "a"})
	b, err := New(Options{URL: url, Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	b.Say("before it was reached")
	a.Say("one")
	until(t, knows(quiet, map[string]string{"quiet": "", "a": "one", "b": "before it was reached"}))
	a.Say("two")
	until(t, knows(b, map[string]string{"quiet": "", "a": "two", "b": "before it was reached"}))
	peers, err := a.Peers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range peers {
		if ago := time.Since(p.Seen); ago < 0 || ago > time.Minute {
			t.Errorf("%s was seen %v ago", p.Name, ago)
		}
	}
	b.Close()
	until(t, knows(a, map[string]string{"quiet": "", "a": "two"}))
	if left := do(t, r, "HKEYS", "weir{nodes}said").([]any); !slices.Equal(left, []any{"a"}) {
		t.Errorf("kept is what %v said", left)
	}

	// Silent nodes, and those whose heartbeats are from before the clock was set back, are forgotten together with what they
	// said.
	for name, at := range map[string]time.Time{"silent": time.Now().Add(-11 * time.Second), "from the future": time.Now().Add(time.Hour)} {
		do(t, r, "ZADD", "weir{nodes}", fmt.Sprint(at.Unix()), name)
		do(t, r, "HSET", "weir{nodes}said", name, "x")
	}
	if got, err := said(t.Context(), a); err != nil || !maps.Equal(got, map[string]string{"quiet": "", "a": "two"}) {
		t.Errorf("the nodes say %v, %v", got, err)
	}
	a.Say("three")
	until(t, knows(a, map[string]string{"quiet": "", "a": "three"}))
	if left := do(t, r, "HKEYS", "weir{nodes}said").([]any); len(left) > 2 || do(t, r, "ZCARD", "weir{nodes}") != int64(2) {
		t.Errorf("kept is what %v said", left)
	}
}

//go:embed testdata/heartbeat-without-said.lua
var olderHeartbeat string

// TestAnOlderHeartbeat checks that nodes of the previous release count the same nodes and share the secret.
func TestAnOlderHeartbeat(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	older := func(offer string) (live int64, secret string) {
		reply := do(t, r, "EVAL", olderHeartbeat, "2", "weir{nodes}", "weir{nodes}secret", "older", silentFor, offer, leastSecret).([]any)
		return reply[0].(int64), reply[1].(string)
	}
	_, secret := older("a secret of the older node's")
	a := open(t, Options{URL: "redis://" + r.Addr, Name: "a"})
	if got := string(a.Secret()); a.Nodes() != 2 || got != secret {
		t.Errorf("the new node counts %d nodes, and its secret is %q", a.Nodes(), got)
	}
	a.Say("something")
	until(t, knows(a, map[string]string{"older": "", "a": "something"}))
	if live, again := older("another"); live != 2 || again != secret {
		t.Errorf("the older node counts %d nodes, and its secret is %q", live, again)
	}
	// The older version forgets a node of this release, but not what the node said. The next heartbeat of this release removes
	// that.
	for i := range 5 {
		do(t, r, "HSET", "weir{nodes}said", fmt.Sprint("gone", i), "x")
	}
	a.Say("something else")
	until(t, knows(a, map[string]string{"older": "", "a": "something else"}))
	if left := do(t, r, "HLEN", "weir{nodes}said"); left != int64(1) {
		t.Errorf("%v are kept", left)
	}
}
