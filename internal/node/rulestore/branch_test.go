package rulestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// side is a node that reaches Redis through a proxy, which can be redirected to another server.
type side struct {
	*node
	proxy *redistest.Proxy
}

// newSide starts a node. If it has a seed, it writes the seed to an empty store.
func newSide(t *testing.T, r *redistest.Server, name, seed string) *side {
	t.Helper()
	s := &side{proxy: redistest.NewProxy(t, r.Addr)}
	s.node = seeded(overRedis(t, "redis://"+s.proxy.Addr), name, 100*time.Millisecond, seed)
	s.run(t)
	return s
}

// seeded returns a node with a seed that isn't running yet.
func seeded(s Store, name string, poll time.Duration, seed string) *node {
	n := &node{log: &journal{}}
	o := Options{Store: s, Node: Node{Name: name}, Apply: n.apply, GivenUp: func(Version) {}, Poll: poll, Logger: slog.New(slog.NewTextHandler(n.log, nil))}
	if seed != "" {
		o.Seed = Version{Text: []byte(seed), Author: "weir", Message: "seed of " + name}
	}
	n.Follower = Follow(o)
	return n
}

// publish changes the rules through a node, and fails the test unless it succeeds.
func (n *node) publish(t *testing.T, text string) Version {
	t.Helper()
	v, err := n.Publish(t.Context(), n.change(text))
	if err != nil {
		t.Fatalf("%s: %v", n.o.Node.Name, err)
	}
	return v
}

// change returns a version that follows the one in force on a node.
func (n *node) change(text string) Version {
	v := n.Current().Next()
	v.Author, v.Message, v.Text = n.o.Node.Name, "why", []byte(text)
	return v
}

// decidesBy waits until all nodes use the same version, with this text.
func decidesBy(t *testing.T, text string, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		until(t, func(context.Context) error {
			if got := n.Current(); string(got.Text) != text {
				return fmt.Errorf("%s decides by %s, %q, not %q", n.o.Node.Name, got.Name(), got.Text, text)
			}
			return nil
		})
	}
	for _, n := range nodes[1:] {
		until(t, func(context.Context) error {
			if a, b := n.Current(), nodes[0].Current(); !a.Is(b) {
				return fmt.Errorf("%s is at %s, and %s at %s", n.o.Node.Name, a.Name(), nodes[0].o.Node.Name, b.Name())
			}
			return nil
		})
	}
}

// history lists the versions in the form 3-text, and orphans in the form 3-text*.
func history(t testing.TB, s Store) (all []string) {
	t.Helper()
	list, err := s.List(t.Context(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range list {
		whole, err := s.Get(t.Context(), v.Number)
		mark := ""
		if v.Orphan {
			mark = "*"
			whole, err = s.Orphan(t.Context(), v.Number, v.Hash)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%d-%s%s", v.Number, whole.Text, mark))
	}
	return all
}

func wantHistory(t *testing.T, s Store, want ...string) {
	t.Helper()
	if got := history(t, s); !slices.Equal(got, want) {
		t.Errorf("the history is %v, want %v", got, want)
	}
}

// pair starts a primary and a replica that is in sync.
func pair(t *testing.T) (primary, replica *redistest.Server) {
	t.Helper()
	primary, replica = redistest.New(t, redistest.Options{}), redistest.New(t, redistest.Options{})
	follow(t, replica, primary)
	return primary, replica
}

func follow(t *testing.T, replica, primary *redistest.Server) {
	t.Helper()
	host, port, _ := strings.Cut(primary.Addr, ":")
	do(t, replica, "REPLICAOF", host, port)
	inSync(t, replica, primary)
}

// inSync waits until a replica has everything that its primary had.
func inSync(t *testing.T, replica, primary *redistest.Server) {
	t.Helper()
	do(t, primary, "SET", "marker", fmt.Sprint(time.Now().UnixNano()))
	want := do(t, primary, "GET", "marker")
	until(t, func(ctx context.Context) error {
		if got, err := replica.Do(ctx, "GET", "marker"); err != nil || got != want {
			return fmt.Errorf("the replica has %v, %w", got, err)
		}
		return nil
	})
}

// A failover loses an acknowledged version, and the next version gets the same number. All nodes use the new version,
// and the lost one is in the history with its author.
func TestAFailoverThatLostAVersion(t *testing.T) {
	a, b := pair(t)
	n1, n2 := newSide(t, a, "n1", "first"), newSide(t, a, "n2", "first")
	decidesBy(t, "first", n1.node, n2.node)
	n1.publish(t, "second")
	decidesBy(t, "second", n1.node, n2.node)
	inSync(t, b, a)
	do(t, b, "REPLICAOF", "NO", "ONE") // later versions aren't replicated
	n1.publish(t, "lost")
	decidesBy(t, "lost", n1.node, n2.node)
	for _, n := range []*side{n1, n2} {
		n.proxy.Down()
	}
	a.Kill()
	s := overRedis(t, "redis://"+b.Addr)
	n3 := newNode(s, "n3", never, Version{})
	n3.Look(t.Context())
	until(t, func(context.Context) error { // as long as the other nodes may be alive, nobody can publish without the versions that they have
		_, err := n3.Publish(t.Context(), n3.change("third"))
		if err != nil && !errors.Is(err, ErrAwaited) {
			t.Fatal(err)
		}
		return err
	})
	if got := n3.Current().Number; got != 3 {
		t.Fatalf("the next version has number %d", got)
	}
	for _, n := range []*side{n1, n2} {
		if err := n.proxy.Redirect(b.Addr); err != nil {
			t.Fatal(err)
		}
	}
	decidesBy(t, "third", n1.node, n2.node, n3)
	wantHistory(t, s, "3-third", "3-lost*", "2-second", "1-first")
	all, err := s.List(t.Context(), 0, 10)
	if err != nil || all[1].Author != "n1" || all[1].Message != "why" {
		t.Errorf("the orphan is %v, %v", all[1], err)
	}
	for _, n := range []*side{n1, n2} {
		if n.log.count("the rule store has gone on without") != 1 || n.log.count("author=n1") == 0 {
			t.Errorf("%s doesn't say so:\n%s", n.o.Node.Name, n.log.text.String())
		}
	}
	if v := n2.publish(t, "fourth"); v.Number != 4 {
		t.Errorf("the next is %s", v.Name())
	}
	decidesBy(t, "fourth", n1.node, n2.node)
}

// A failover loses versions, and no new version was published since. Nodes restore the lost versions under their
// numbers.
func TestAFailoverWithNothingSince(t *testing.T) {
	a, b := pair(t)
	n1, n2 := newSide(t, a, "n1", "first"), newSide(t, a, "n2", "first")
	decidesBy(t, "first", n1.node, n2.node)
	inSync(t, b, a)
	do(t, b, "REPLICAOF", "NO", "ONE")
	n1.publish(t, "second")
	n1.publish(t, "third")
	decidesBy(t, "third", n1.node, n2.node)
	for _, n := range []*side{n2, n1} { // the node that only has the last version may come first
		if err := n.proxy.Redirect(b.Addr); err != nil {
			t.Fatal(err)
		}
	}
	s := overRedis(t, "redis://"+b.Addr)
	until(t, func(context.Context) error {
		if got := history(t, s); len(got) < 3 || got[0] != "3-third" {
			return fmt.Errorf("the history is %v", got)
		}
		return nil
	})
	n1.publish(t, "fourth")
	decidesBy(t, "fourth", n1.node, n2.node)
	wantHistory(t, s, "4-fourth", "3-third", "2-second", "1-first")
}

// During a network partition, rules are changed on both sides. Afterward, the versions on the primary are in force, and
// those of the other side are in the history.
func TestAPartitionWithAWriteOnEachSide(t *testing.T) {
	a, b := pair(t)
	n1, n2 := newSide(t, a, "n1", "first"), newSide(t, a, "n2", "first")
	decidesBy(t, "first", n1.node, n2.node)
	n1.publish(t, "second")
	decidesBy(t, "second", n1.node, n2.node)
	inSync(t, b, a)
	n2.proxy.Down()
	do(t, b, "REPLICAOF", "NO", "ONE")
	do(t, b, "DEL", "weir{nodes}", "weir{nodes}said") // as if ten seconds had passed
	if err := n2.proxy.Redirect(b.Addr); err != nil {
		t.Fatal(err)
	}
	n1.publish(t, "third here")
	n1.publish(t, "fourth here")
	until(t, func(ctx context.Context) error { // the node needs a new connection first
		_, err := n2.Publish(ctx, n2.change("third there"))
		return err
	})
	follow(t, a, b)
	if err := n1.proxy.Redirect(b.Addr); err != nil {
		t.Fatal(err)
	}
	decidesBy(t, "third there", n1.node, n2.node)
	s := overRedis(t, "redis://"+b.Addr)
	wantHistory(t, s, "4-fourth here*", "3-third there", "3-third here*", "2-second", "1-first")
	var v Version
	until(t, func(ctx context.Context) (err error) { // n1 has reported that it is at version 4, and stops doing so soon
		v, err = n1.Publish(ctx, n1.change("both"))
		return err
	})
	if v.Number != 5 {
		t.Errorf("the next version is %s, but 4 is taken", v.Name())
	}
	decidesBy(t, "both", n1.node, n2.node)
}

// After FLUSHALL, a node with other seed rules is the first to find the store empty. The rules of the running nodes
// stay in force, even if they were never changed.
func TestFlushAllAndANodeWithAnotherSeed(t *testing.T) {
	for name, changes := range map[string]int{"never changed": 0, "changed once": 1, "changed": 3} {
		t.Run(name, func(t *testing.T) {
			r := redistest.New(t, redistest.Options{})
			n1, n2 := newSide(t, r, "n1", "ours"), newSide(t, r, "n2", "ours")
			decidesBy(t, "ours", n1.node, n2.node)
			text := "ours"
			for i := range changes {
				text = fmt.Sprint("change ", i)
				n1.publish(t, text)
			}
			decidesBy(t, text, n1.node, n2.node)
			n1.proxy.Down()
			n2.proxy.Down()
			do(t, r, "FLUSHALL")
			s := overRedis(t, "redis://"+r.Addr)
			n3 := seeded(s, "n3", 100*time.Millisecond, "theirs")
			n3.Look(t.Context())
			if got := string(n3.Current().Text); got != "theirs" {
				t.Fatalf("the node starts with %q", got)
			}
			n3.run(t)
			for _, n := range []*side{n1, n2} {
				if err := n.proxy.Up(); err != nil {
					t.Fatal(err)
				}
			}
			decidesBy(t, text, n1.node, n2.node, n3)
			all, err := s.List(t.Context(), 0, 10)
			if err != nil || !strings.HasPrefix(all[0].Message, "restored: ") || all[0].Orphan {
				t.Errorf("the newest is %v, %v", all[0], err)
			}
			if got := fmt.Sprint(history(t, s)); !strings.Contains(got, "1-theirs") {
				t.Errorf("the other seed isn't in the history: %s", got)
			}
		})
	}
}

// If someone changes the new seed rules before the other nodes reconnect, that change was acknowledged and stays in
// force. The other nodes' rules become an orphan.
func TestFlushAllAndAChangeOfAnotherSeed(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	n1 := newSide(t, r, "n1", "ours")
	decidesBy(t, "ours", n1.node)
	n1.publish(t, "ours, changed")
	n1.proxy.Down()
	do(t, r, "FLUSHALL")
	s := overRedis(t, "redis://"+r.Addr)
	n2 := seeded(s, "n2", 100*time.Millisecond, "theirs")
	n2.Look(t.Context())
	n2.publish(t, "theirs, changed")
	if err := n1.proxy.Up(); err != nil {
		t.Fatal(err)
	}
	decidesBy(t, "theirs, changed", n1.node, n2)
	wantHistory(t, s, "2-theirs, changed", "2-ours, changed*", "1-theirs", "1-ours*")
}
