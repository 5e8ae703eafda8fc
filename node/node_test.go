package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, o Options) *Node {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	n, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Log(err) // the leases will expire by themselves
		}
	})
	return n
}

var request = &weir.Request{APIKey: "k", IP: netip.MustParseAddr("203.0.113.7")}

func (n *Node) allows(t *testing.T) bool {
	t.Helper()
	for range 100 {
		d, err := n.Check(t.Context(), request)
		if err == nil {
			return d.Allowed
		}
		t.Log(err) // on a busy machine, the check may have been counted although its response was lost
	}
	t.Fatal("Redis doesn't answer")
	return false
}

// until waits until a condition that depends on other goroutines is true.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := redistest.Until(ctx, func(context.Context) error {
		if !f() {
			return errors.New(what)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Two programs on one Redis share one limit, and follow their rule file.
func TestNodesShareOneLimit(t *testing.T) {
	redis := redistest.New(t, redistest.Options{})
	file := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: one, limit: 10/day, strict: true}]")
	o := Options{Store: "redis://" + redis.Addr, Rules: file}
	nodes := []*Node{open(t, o), open(t, o)}
	allowed := 0
	for i := range 30 {
		if nodes[i%2].allows(t) {
			allowed++
		}
	}
	if allowed > 10 || allowed < 5 {
		t.Errorf("%d of 10 requests were allowed", allowed)
	}
	write(t, file, "rules: [{id: two, limit: 1000/day}]")
	for _, n := range nodes {
		until(t, "the file isn't followed", func() bool { return n.allows(t) })
	}
}

// Without a rule file of their own, programs follow the rules that the nodes share.
func TestNodesFollowSharedRules(t *testing.T) {
	redis := redistest.New(t, redistest.Options{})
	seed := write(t, filepath.Join(t.TempDir(), "seed.yaml"), "rules: [{id: one, limit: 200/day}]")
	n := open(t, Options{Store: "redis://" + redis.Addr, SeedRules: seed})
	if r := n.Rules().Rules().Rules; !n.allows(t) || len(r) != 1 || r[0].ID != "one" {
		t.Fatalf("the seed rules aren't in force, but %+v", r)
	}
	until(t, "the store isn't seeded", func() bool { return n.Rules().Version() == 1 })
	store := rulestore.OverRedis(n.shared.Redis)
	head, err := store.Head(t.Context())
	if err != nil || head.Number != 1 {
		t.Fatalf("the store's first version is %+v, %v", head, err)
	}
	if _, err := store.Append(t.Context(), 0, rulestore.Version{Parent: 1, ParentHash: head.Hash, Author: "ada", Text: []byte("rules: [{id: two, limit: 50/day}]")}); err != nil {
		t.Fatal(err)
	}
	until(t, "the store isn't followed", func() bool { return n.Rules().Version() == 2 })
	if !n.allows(t) {
		t.Error("the new limit isn't in force")
	}
}

// A program starts even if Redis can't be reached.
func TestOpenWithoutRedis(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: one, limit: 1/day}, {id: two, limit: 2/day, on_store_failure: local}]")
	n, err := Open(Options{Store: "redis://127.0.0.1:1", Rules: file, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for _, want := range []bool{true, true, false} {
		if d, err := n.Check(t.Context(), request); err == nil || d.Allowed != want || !d.Degraded && want {
			t.Errorf("%+v, %v", d, err)
		}
	}
}

func TestInThisProcess(t *testing.T) {
	n := open(t, Options{Rules: write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: one, limit: 1/day}]")})
	if !n.allows(t) || n.allows(t) {
		t.Error("a limit of one a day doesn't allow exactly one request")
	}
}

func TestInvalidOptions(t *testing.T) {
	bad := write(t, filepath.Join(t.TempDir(), "bad.yaml"), "rules:\n  - {id: one, limt: 1/day}\n")
	good := write(t, filepath.Join(t.TempDir(), "good.yaml"), "rules: [{id: one, limit: 1/day}]")
	for want, o := range map[string]Options{
		"give Rules":    {Store: "redis://127.0.0.1"},
		"or a Store":    {SeedRules: good},
		"and SeedRules": {Store: "redis://127.0.0.1", Rules: good, SeedRules: good},
		"bad.yaml:2:":   {Rules: bad},
		"no such file":  {Rules: bad + "x"},
		"node: Store: store URL: must begin with": {Rules: good, Store: "127.0.0.1:6379"},
	} {
		if n, err := Open(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, %v, want %q", o, n, err, want)
		}
	}
}
