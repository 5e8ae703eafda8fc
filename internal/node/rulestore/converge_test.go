package rulestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/internal/redistest"
)

// Whatever data is lost, and in whatever order nodes look, in the end all nodes use the store's newest version, and all
// acknowledged versions are in the history.
func TestNodesConverge(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := overRedis(t, "redis://"+r.Addr)
	c, err := s.store.Client()
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{s.numbers, s.about, s.texts, s.orphans}
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		do := func(args ...string) any {
			v, err := r.Do(ctx, args...)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		do("FLUSHALL")
		var nodes []*node
		for i := range 3 {
			nodes = append(nodes, seeded(s, fmt.Sprint("n", i), never, fmt.Sprint("seed ", i)))
		}
		acked := map[string]bool{}
		var replica map[string]string // the data of a replica that lags behind
		// held forgets acknowledged texts that exist only in the history that is about to be lost. A node only
		// remembers the versions that led to its own.
		held := func() {
			for text := range acked {
				if !remembered(nodes, text) {
					delete(acked, text)
				}
			}
		}
		snapshot := func() map[string]string {
			all := map[string]string{}
			for _, key := range keys {
				if dump, err := c.Do(ctx, c.B().Dump().Key(key).Build()).ToString(); err == nil {
					all[key] = dump
				}
			}
			return all
		}
		replica = snapshot()
		for i := range rapid.IntRange(1, 25).Draw(t, "steps") {
			n := nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "node")]
			switch rapid.IntRange(0, 10).Draw(t, "step") {
			case 0, 1, 2:
				n.Look(ctx)
			case 3, 4, 5, 6:
				if n.Current().Number == 0 {
					continue
				}
				v, err := n.Publish(ctx, n.change(fmt.Sprint("change ", i)))
				if err == nil {
					acked[string(v.Text)] = true
				} else if !errors.Is(err, ErrConflict) {
					t.Fatal(err)
				}
			case 7:
				replica = snapshot()
			case 8: // a failover to that replica
				held()
				do("FLUSHALL")
				for key, dump := range replica {
					if err := c.Do(ctx, c.B().Restore().Key(key).Ttl(0).SerializedValue(dump).Build()).Error(); err != nil {
						t.Fatal(err)
					}
				}
			case 9:
				held()
				do("FLUSHALL")
			case 10: // the node restarts with the version that it has kept
				i := slices.Index(nodes, n)
				nodes[i] = newNode(s, n.o.Node.Name, never, n.Current())
				nodes[i].o.Seed = n.o.Seed
				inHistory := texts(ctx, t, s)
				for text := range acked {
					if !slices.Contains(inHistory, text) && !remembered(nodes, text) {
						delete(acked, text)
					}
				}
			}
		}
		for range 4 {
			for _, n := range nodes {
				n.Look(ctx)
			}
		}
		head, err := s.Head(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			for range 20 { // a poll has 50 ms, which a busy machine may exceed
				if n.Current().Is(head) {
					break
				}
				n.Look(ctx)
			}
			if got := n.Current(); !got.Is(head) {
				t.Errorf("%s is at %s, and the store at %s:\n%s", n.o.Node.Name, got.Name(), head.Name(), n.log.text.String())
			}
		}
		all := texts(ctx, t, s)
		for text := range acked {
			if !slices.Contains(all, text) {
				t.Errorf("%q isn't in the history, which is %v", text, all)
			}
		}
	})
}

// remembered reports whether a node would restore the text.
func remembered(nodes []*node, text string) bool {
	return slices.ContainsFunc(nodes, func(n *node) bool {
		n.Follower.mu.Lock()
		defer n.Follower.mu.Unlock()
		return slices.ContainsFunc(n.recent, func(v Version) bool { return string(v.Text) == text })
	})
}

// texts returns all texts in the history, including orphans.
func texts(ctx context.Context, t *rapid.T, s Store) (all []string) {
	list, err := s.List(ctx, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range list {
		whole, err := s.Get(ctx, v.Number)
		if v.Orphan {
			whole, err = s.Orphan(ctx, v.Number, v.Hash)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(whole.Text))
	}
	return all
}
