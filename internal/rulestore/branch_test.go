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

	"pgregory.net/rapid"

	"github.com/weirhq/weir/internal/redistest"
)

// side is a node that reaches a Redis through a proxy, which may lead it elsewhere.
type side struct {
	*node
	proxy *redistest.Proxy
}

// newSide makes a node that runs. An empty store begins with its seed, if it has one.
func newSide(t *testing.T, r *redistest.Server, name, seed string) *side {
	t.Helper()
	s := &side{proxy: redistest.NewProxy(t, r.Addr)}
	s.node = seeded(overRedis(t, "redis://"+s.proxy.Addr), name, 100*time.Millisecond, seed)
	s.run(t)
	return s
}

// seeded makes a node that doesn't run yet, with a seed.
func seeded(s Store, name string, poll time.Duration, seed string) *node {
	n := &node{log: &journal{}}
	o := Options{Store: s, Node: Node{Name: name}, Apply: n.apply, Poll: poll, Logger: slog.New(slog.NewTextHandler(n.log, nil))}
	if seed != "" {
		o.Seed = Version{Text: []byte(seed), Author: "weir", Message: "seed of " + name}
	}
	n.Follower = Follow(o)
	return n
}

// publish changes the rules by a node, which must be told that it did.
func (n *node) publish(t *testing.T, text string) Version {
	t.Helper()
	base := n.Current()
	v, err := n.Publish(t.Context(), Version{Parent: base.Number, ParentHash: base.Hash, Author: n.o.Node.Name, Message: "why", Text: []byte(text)})
	if err != nil {
		t.Fatalf("%s: %v", n.o.Node.Name, err)
	}
	return v
}

// decidesBy waits until all nodes decide by the same document.
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

// history lists the versions as 3-text, and orphans as 3-text*.
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

// pair is a primary with a replica that has all it has.
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

// inSync waits until a replica has all that its primary had.
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

// A failover loses a version that was acknowledged, and the next one gets its number: all nodes decide by the new one, and
// the lost one is in the history with its author.
func TestAFailoverThatLostAVersion(t *testing.T) {
	a, b := pair(t)
	n1, n2 := newSide(t, a, "n1", "first"), newSide(t, a, "n2", "first")
	decidesBy(t, "first", n1.node, n2.node)
	n1.publish(t, "second")
	decidesBy(t, "second", n1.node, n2.node)
	inSync(t, b, a)
	do(t, b, "REPLICAOF", "NO", "ONE") // what comes now isn't replicated
	n1.publish(t, "lost")
	decidesBy(t, "lost", n1.node, n2.node)
	for _, n := range []*side{n1, n2} {
		n.proxy.Down()
	}
	a.Kill()
	s := overRedis(t, "redis://"+b.Addr)
	n3 := newNode(s, "n3", never, Version{})
	n3.Look(t.Context())
	until(t, func(context.Context) error { // as long as they may still live, nobody goes on without what they have
		base := n3.Current()
		_, err := n3.Publish(t.Context(), Version{Parent: base.Number, ParentHash: base.Hash, Author: "n3", Text: []byte("third")})
		if err != nil && !errors.Is(err, ErrAwaited) {
			t.Fatal(err)
		}
		return err
	})
	if got := n3.Current().Number; got != 3 {
		t.Fatalf("it has number %d, as if nothing had been lost", got)
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
		if n.log.count("the store has gone on without") != 1 || n.log.count("author=n1") == 0 {
			t.Errorf("%s doesn't say so:\n%s", n.o.Node.Name, n.log.text.String())
		}
	}
	if v := n2.publish(t, "fourth"); v.Number != 4 {
		t.Errorf("the next is %s", v.Name())
	}
	decidesBy(t, "fourth", n1.node, n2.node)
}

// A failover loses versions, and nobody has gone on without them: they are put back, each under its number.
func TestAFailoverWithNothingSince(t *testing.T) {
	a, b := pair(t)
	n1, n2 := newSide(t, a, "n1", "first"), newSide(t, a, "n2", "first")
	decidesBy(t, "first", n1.node, n2.node)
	inSync(t, b, a)
	do(t, b, "REPLICAOF", "NO", "ONE")
	n1.publish(t, "second")
	n1.publish(t, "third")
	decidesBy(t, "third", n1.node, n2.node)
	for _, n := range []*side{n2, n1} { // who has but the last comes first, perhaps
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

// A network is divided, and rules are changed on both sides. When it is whole again, what the primary holds is in force, and
// what was written on the other side is in the history.
func TestAPartitionWithAWriteOnEachSide(t *testing.T) {
	a, b := pair(t)
	n1, n2 := newSide(t, a, "n1", "first"), newSide(t, a, "n2", "first")
	decidesBy(t, "first", n1.node, n2.node)
	n1.publish(t, "second")
	decidesBy(t, "second", n1.node, n2.node)
	inSync(t, b, a)
	n2.proxy.Down()
	do(t, b, "REPLICAOF", "NO", "ONE")
	do(t, b, "DEL", "weir{nodes}", "weir{nodes}said") // ten seconds pass
	if err := n2.proxy.Redirect(b.Addr); err != nil {
		t.Fatal(err)
	}
	n1.publish(t, "third here")
	n1.publish(t, "fourth here")
	until(t, func(ctx context.Context) error { // its connection is new
		base := n2.Current()
		_, err := n2.Publish(ctx, Version{Parent: base.Number, ParentHash: base.Hash, Author: "n2", Text: []byte("third there")})
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
	until(t, func(ctx context.Context) (err error) { // n1 has said that it is at 4, and says so no more in a moment
		base := n1.Current()
		v, err = n1.Publish(ctx, Version{Parent: base.Number, ParentHash: base.Hash, Text: []byte("both")})
		return err
	})
	if v.Number != 5 {
		t.Errorf("the next is %s, and 4 was somebody's", v.Name())
	}
	decidesBy(t, "both", n1.node, n2.node)
}

// FLUSHALL while nodes run, and a node with other seed rules is the first to find the store empty: the rules of
// those that ran stay in force, also if nobody has ever changed them.
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
				t.Fatalf("it begins with %q", got)
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

// And if rules were changed on the seed before the others looked, that is what somebody was told is in force. What the others had is an orphan.
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

// disk makes a node that has been started with what it kept.
func disk(s Store, v Version) *node { return newNode(s, "disk", never, v) }

// What a node has kept never takes the place of what the store has, be its number higher; but it is put back where the store
// has lost it.
func TestWhatANodeHasKept(t *testing.T) {
	kept := dated(Version{Number: 100, Parent: 99, ParentHash: "99", Author: "ann", Message: "why", Text: []byte("kept")})
	open := func(t *testing.T) *Redis {
		return overRedis(t, "redis://"+redistest.New(t, redistest.Options{}).Addr)
	}
	t.Run("another history", func(t *testing.T) {
		s := open(t)
		write(t, s, "one")
		write(t, s, "two")
		n := disk(s, kept)
		if !n.FromDisk() {
			t.Error("nobody would know")
		}
		n.Look(t.Context())
		if got := n.Current(); got.Number != 2 || n.FromDisk() {
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
		if n.FromDisk() || len(n.numbers()) != 0 {
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

// Whatever stands in Redis beside versions, or in place of them, nodes go on with what they have, new ones
// never begin with their seed, and the rules can be changed.
func TestOddEntriesInRedis(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   []string // a command; %s is the number of the newest version
		healed  bool     // by a node that has the version
		without string   // what a new node has, if nobody heals it; "": nothing
	}{
		"a member that is no number":  {[]string{"ZADD", "weir{rules}numbers", "99", "abc"}, true, "two"},
		"a negative member":           {[]string{"ZADD", "weir{rules}numbers", "-7", "-7"}, true, "two"},
		"an infinite score":           {[]string{"ZADD", "weir{rules}numbers", "inf", "9"}, true, "two"},
		"a fraction":                  {[]string{"ZADD", "weir{rules}numbers", "9.5", "9.5"}, true, "two"},
		"another number's score":      {[]string{"ZADD", "weir{rules}numbers", "50", "1"}, true, "two"},
		"a number without a version":  {[]string{"ZADD", "weir{rules}numbers", "9", "9"}, true, "two"},
		"nothing known of the newest": {[]string{"HDEL", "weir{rules}about", "2"}, true, "one"},
		"nonsense about the newest":   {[]string{"HSET", "weir{rules}about", "2", "nonsense"}, true, "one"},
		"a list about the newest":     {[]string{"HSET", "weir{rules}about", "2", "[]"}, true, "one"},
		"null about the newest":       {[]string{"HSET", "weir{rules}about", "2", "null"}, true, "one"},
		"a hash that is a number":     {[]string{"HSET", "weir{rules}about", "2", `{"parent": 1, "hash": 7}`}, true, "one"},
		"no text":                     {[]string{"HDEL", "weir{rules}texts", "2"}, true, "one"},
		"no texts":                    {[]string{"DEL", "weir{rules}texts"}, true, ""},
		"another text":                {[]string{"HSET", "weir{rules}texts", "2", "spoiled"}, false, "one"},
		"half of the text":            {[]string{"HSET", "weir{rules}texts", "2", "tw"}, false, "one"},
		"no numbers":                  {[]string{"DEL", "weir{rules}numbers"}, true, "seed"},
		"nothing known of any":        {[]string{"DEL", "weir{rules}about"}, true, ""},
		"nonsense of a node":          {[]string{"HSET", "weir{nodes}said", "old", "nonsense"}, true, "two"},
		"a list of a node":            {[]string{"HSET", "weir{nodes}said", "old", "[7]"}, true, "two"},
		"numbers of another type":     {[]string{"SET", "weir{rules}numbers", "x"}, true, ""},
		"knowledge of another type":   {[]string{"SET", "weir{rules}about", "x"}, true, ""},
		"texts of another type":       {[]string{"SET", "weir{rules}texts", "x"}, true, ""},
		"orphans of another type":     {[]string{"SET", "weir{rules}orphans", "x"}, true, "two"},
		"nodes of another type":       {[]string{"SET", "weir{nodes}", "x"}, true, "two"},
		"what they said, likewise":    {[]string{"SET", "weir{nodes}said", "x"}, true, "two"},
	} {
		t.Run(name, func(t *testing.T) {
			r := redistest.New(t, redistest.Options{})
			s := overRedis(t, "redis://"+r.Addr)
			old := newNode(s, "old", never, Version{})
			old.publish(t, "one")
			old.publish(t, "two")
			old.Look(t.Context())
			do(t, r, c.spoil...)

			alone := seeded(s, "alone", never, "seed")
			if c.without != "seed" { // a store without a number is empty, as far as anybody can tell: but a node that lives has said what it has
				alone.Look(t.Context())
			}
			if got := string(alone.Current().Text); c.without != "seed" && got != c.without {
				t.Errorf("a new node decides by %q, want %q", got, c.without)
			}
			old.Look(t.Context())
			old.Look(t.Context())
			if got := string(old.Current().Text); got != "two" {
				t.Errorf("the old node decides by %q", got)
			}
			fresh := seeded(s, "fresh", never, "seed")
			fresh.Look(t.Context())
			if got := string(fresh.Current().Text); c.healed && got != "two" || !c.healed && got != c.without {
				t.Errorf("another new node decides by %q", got)
			}
			if v := old.publish(t, "three"); v.Number < 3 {
				t.Errorf("the next is %s", v.Name())
			}
			for _, n := range []*node{alone, fresh} {
				n.Look(t.Context())
				if got := string(n.Current().Text); got != "three" {
					t.Errorf("%s decides by %q at last", n.o.Node.Name, got)
				}
				if n.log.count("seed of") != 0 {
					t.Errorf("%s has applied its seed", n.o.Node.Name)
				}
			}
		})
	}
}

// Whatever is lost, and whoever looks when: in the end all nodes decide by one version, it is the
// store's, and what anybody was told is in force is in the history.
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
		var replica map[string]string // what a replica has that is behind
		// held drops what is only in the history that is about to be lost: nodes remember what led to what is in force on them, no more.
		held := func() {
			for text := range acked {
				if !slices.ContainsFunc(nodes, func(n *node) bool {
					return slices.ContainsFunc(append(n.before(n.Current()), n.Current()), func(v Version) bool { return string(v.Text) == text })
				}) {
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
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1, 2:
				n.Look(ctx)
			case 3, 4, 5, 6:
				base := n.Current()
				if base.Number == 0 {
					continue
				}
				v, err := n.Publish(ctx, Version{Parent: base.Number, ParentHash: base.Hash, Author: n.o.Node.Name, Text: fmt.Appendf(nil, "change %d", i)})
				if err == nil {
					acked[string(v.Text)] = true
				} else if !errors.Is(err, ErrConflict) {
					t.Fatal(err)
				}
			case 7:
				replica = snapshot()
			case 8: // a failover to that replica, after the nodes have been silent for a while, or not
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
			if got := n.Current(); !got.Is(head) {
				t.Errorf("%s is at %s, and the store at %s:\n%s", n.o.Node.Name, got.Name(), head.Name(), n.log.text.String())
			}
		}
		list, err := s.List(ctx, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
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
		for text := range acked {
			if !slices.Contains(all, text) {
				t.Errorf("%q is in nobody's history, which is %v", text, all)
			}
		}
	})
}

// Versions that were written before there were hashes are fetched once, and rejected once, as others are.
func TestVersionsWithoutAHash(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := overRedis(t, "redis://"+r.Addr)
	old := func(n, parent int, text string) {
		number := fmt.Sprint(n)
		about := fmt.Sprintf(`{"parent": %d, "author": "ada", "message": "why", "time": "2026-01-05T12:00:0%d.123456789Z"}`, parent, n)
		do(t, r, "HSET", "weir{rules}about", number, about)
		do(t, r, "HSET", "weir{rules}texts", number, text)
		do(t, r, "ZADD", "weir{rules}numbers", number, number)
	}
	fetched := func() (calls int) {
		for line := range strings.Lines(do(t, r, "INFO", "commandstats").(string)) {
			_, _ = fmt.Sscanf(line, "cmdstat_hget:calls=%d", &calls)
		}
		return calls
	}
	n := newNode(s, "n", never, Version{})
	look := func() (gets int) {
		n.Look(t.Context())
		before := fetched()
		n.Look(t.Context())
		return fetched() - before
	}
	old(1, 0, "good")
	if gets := look(); n.Current().Number != 1 || gets > 2 { // two are the beat's own
		t.Errorf("version %d is in force, and a look reads %d fields", n.Current().Number, gets)
	}
	old(2, 1, "bad")
	if gets := look(); n.Current().Number != 1 || n.Rejected() == nil || gets > 2 {
		t.Errorf("version %d is in force, rejected: %v, and a look reads %d fields", n.Current().Number, n.Rejected(), gets)
	}
	if got := n.log.count("rules rejected"); got != 1 {
		t.Errorf("logged %d times", got)
	}
	// A version that was lost is put back, also if the one before it has no hash.
	old(3, 2, "good again")
	n.Look(t.Context())
	n.publish(t, "newest")
	do(t, r, "ZREM", "weir{rules}numbers", "4")
	do(t, r, "HDEL", "weir{rules}about", "4")
	do(t, r, "HDEL", "weir{rules}texts", "4")
	n.Look(t.Context())
	wantHistory(t, s, "4-newest", "3-good again", "2-bad", "1-good")
}
