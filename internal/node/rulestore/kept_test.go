package rulestore

import (
	"context"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// disk returns a node that starts with the version it has kept.
func disk(s Store, v Version) *node { return newNode(s, "disk", never, v) }

// A version that a node has kept never replaces a version in the store, even if its number is higher. It is only
// restored if the store has lost it.
func TestKeptVersions(t *testing.T) {
	kept := dated(Version{Number: 100, Parent: 99, ParentHash: "99", Author: "ann", Message: "why", Text: []byte("kept")})
	open := func(t *testing.T) *Redis {
		return overRedis(t, "redis://"+redistest.New(t, redistest.Options{}).Addr)
	}
	t.Run("another history", func(t *testing.T) {
		s := open(t)
		write(t, s, "one")
		write(t, s, "two")
		n := disk(s, kept)
		if !n.Status().FromDisk {
			t.Error("the status doesn't say that the rules are from the disk")
		}
		n.Look(t.Context())
		if got := n.Current(); got.Number != 2 || n.Status().FromDisk {
			t.Errorf("%s is in force", got.Name())
		}
		wantHistory(t, s, "100-kept*", "2-two", "1-one")
		n.Look(t.Context())
		if v := write(t, s, "next"); v.Number != 101 {
			t.Errorf("the next is %s", v.Name())
		}
	})
	t.Run("the same version", func(t *testing.T) {
		s := open(t)
		v := write(t, s, "one")
		n := disk(s, v)
		n.Look(t.Context())
		if n.Status().FromDisk || len(n.numbers()) != 0 {
			t.Errorf("applied %v", n.numbers())
		}
	})
	t.Run("an older version", func(t *testing.T) {
		s := open(t)
		v := write(t, s, "one")
		write(t, s, "two")
		n := disk(s, v)
		n.Look(t.Context())
		if got := n.Current().Number; got != 2 {
			t.Errorf("%d is in force", got)
		}
		wantHistory(t, s, "2-two", "1-one")
	})
	t.Run("an empty store", func(t *testing.T) {
		s := open(t)
		n := disk(s, kept)
		n.Look(t.Context())
		wantHistory(t, s, "100-kept")
	})
	t.Run("a store that a new node has seeded", func(t *testing.T) {
		s := open(t)
		seeded(s, "new", never, "seed").Look(t.Context())
		n := disk(s, kept)
		n.Look(t.Context())
		wantHistory(t, s, "100-kept", "1-seed")
	})
	t.Run("the next version, which was lost", func(t *testing.T) {
		s := open(t)
		v := write(t, s, "one")
		v = write(t, s, "two")
		next := dated(Version{Number: 3, Parent: 2, ParentHash: v.Hash, Author: "ann", Text: []byte("kept")})
		n := disk(s, next)
		n.Look(t.Context())
		wantHistory(t, s, "3-kept", "2-two", "1-one")
	})
}

// Redis restarts from a snapshot that lacks the newest versions, and some nodes restart before any node has noticed.
// They restore the versions that they have kept, because those follow the snapshot's newest version. No node goes back
// to the snapshot's rules.
func TestRedisComesBackFromASnapshot(t *testing.T) {
	for name, c := range map[string]struct {
		again []int // nodes that restart, in the order in which they poll
		want  []string
	}{
		"none is started again": {nil, []string{"5-five", "4-four", "3-three", "2-two", "1-one"}},
		"one is started again":  {[]int{1}, []string{"5-five", "4-four", "3-three", "2-two", "1-one"}},
		"all are started again": {[]int{1, 2, 0}, []string{"5-five", "4-four", "2-two", "1-one"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := redistest.New(t, redistest.Options{})
			s := overRedis(t, "redis://"+r.Addr)
			var nodes []*node
			for _, name := range []string{"n0", "n1", "n2"} {
				nodes = append(nodes, newNode(s, name, never, Version{}))
			}
			for i, text := range []string{"one", "two", "three", "four", "five"} {
				nodes[0].publish(t, text)
				for _, n := range nodes {
					if n != nodes[2] || text != "five" { // node 2 never gets the last version
						n.Look(t.Context())
					}
				}
				if i == 1 {
					do(t, r, "SAVE")
				}
			}
			r.Kill()
			if err := r.Restart(); err != nil {
				t.Fatal(err)
			}
			until(t, func(ctx context.Context) error { // the client needs a new connection first
				head, err := s.Head(ctx)
				if err == nil && head.Number != 2 {
					t.Fatalf("the snapshot is at %s", head.Name())
				}
				return err
			})
			for _, i := range c.again {
				nodes[i] = disk(s, nodes[i].Current())
				nodes[i].Look(t.Context())
			}
			for range 2 {
				for _, n := range nodes {
					n.Look(t.Context())
				}
			}
			decidesBy(t, "five", nodes...)
			wantHistory(t, s, c.want...)
			for _, n := range nodes {
				if n.log.count("gone on without") != 0 {
					t.Errorf("%s has given something up:\n%s", n.o.Node.Name, n.log.text.String())
				}
			}
			nodes[1].publish(t, "six")
		})
	}
}

// A version's line lists the versions that led to it, even if some are cut off because it is too long.
func TestLine(t *testing.T) {
	var all []Version
	v := Version{}
	for n := range int64(lineLength + 20) {
		v = v.Next()
		v.Number = 2*n + 1 // with gaps, as after orphans
		v.Text = []byte("text")
		v = dated(v)
		all = append(all, v)
	}
	last := all[len(all)-1]
	for i, old := range all[:len(all)-1] {
		want := ancestor
		if i < len(all)-1-lineLength {
			want = unknown
		}
		if got := last.after(old); got != want {
			t.Errorf("%s led to %s: %d, want %d", old.Name(), last.Name(), got, want)
		}
		if old.after(last) == ancestor {
			t.Errorf("%s led to %s", last.Name(), old.Name())
		}
		old.Hash = "0123456789"
		if got := last.after(old); want == ancestor && got != stranger {
			t.Errorf("%s, of another hash: %d", old.Name(), got)
		}
		old.Number++
		if got := last.after(old); want == ancestor && got != stranger {
			t.Errorf("%d, which is between two: %d", old.Number, got)
		}
	}
	if last.after(last) == ancestor || all[0].after(Version{Number: 7, Hash: "x"}) != stranger {
		t.Error("a version led to itself, or another to the first")
	}
	// A version from before versions had lines only knows its parent.
	old := Version{Number: 9, Parent: 8, ParentHash: "0123456789"}
	if old.after(Version{Number: 8, Hash: "0123456789"}) != ancestor || old.after(Version{Number: 7}) != unknown || old.after(Version{Number: 8, Hash: "9"}) != stranger {
		t.Error("a version without a line doesn't know its parent")
	}
	if next := old.Next(); next.Line != "8-01234567 9" {
		t.Errorf("the next one's line is %q", next.Line)
	}
}
