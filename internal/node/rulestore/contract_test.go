package rulestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestStores checks the contract of every store.
func TestStores(t *testing.T) {
	everyStore(t, func(t *testing.T, open func() Store) {
		s, ctx := open(), t.Context()
		if head, err := s.Head(ctx); head.Number != 0 || err != nil {
			t.Fatalf("the head of an empty store: %v, %v", head, err)
		}
		if all, err := s.List(ctx, 0, 10); len(all) != 0 || err != nil {
			t.Fatalf("the versions of an empty store: %v, %v", all, err)
		}
		if _, err := s.Get(ctx, 1); !errors.Is(err, ErrNotFound) {
			t.Errorf("get from an empty store: %v", err)
		}
		if _, err := s.Append(ctx, 0, Version{Parent: 1}); !errors.Is(err, ErrConflict) {
			t.Errorf("append after a version that doesn't exist: %v", err)
		}

		told := watchStore(t, s)
		when := time.Date(2026, 11, 15, 12, 0, 0, 123e6, time.FixedZone("", 3600))
		hostile := "rules: \x00\xff\r\n\"'{}\n# weir {\"number\": 7}\n"
		first := Version{Author: "ann <a@b.c>", Message: "because\n\"so\"", Time: when, Text: []byte(hostile)}
		got, err := s.Append(ctx, 0, first)
		if err != nil {
			t.Fatal(err)
		}
		first.Number, first.Time, first.Hash = 1, when.UTC(), got.Hash
		if !reflect.DeepEqual(got, first) {
			t.Errorf("append: got %v, want %v", got, first)
		}
		told(1)
		for _, view := range []Store{s, open()} {
			if got, err := view.Get(ctx, 1); err != nil || !reflect.DeepEqual(got, first) {
				t.Errorf("get: got %v, %v, want %v", got, err, first)
			}
		}

		begun := time.Now().Add(-time.Second)
		large, err := s.Append(ctx, 0, Version{Parent: 1, Text: bytes.Repeat([]byte("# a long document\n"), 60_000)})
		if err != nil {
			t.Fatal(err)
		}
		if large.Number != 2 || large.Time.Before(begun) {
			t.Errorf("append: number %d at %v", large.Number, large.Time)
		}
		if got, err := s.Get(ctx, 2); err != nil || !reflect.DeepEqual(got, large) {
			t.Errorf("a document of %d bytes came back with %d, %v", len(large.Text), len(got.Text), err)
		}
		told(2)
		for _, parent := range []int64{0, 1, 3, -1} {
			if _, err := s.Append(ctx, 0, Version{Parent: parent}); !errors.Is(err, ErrConflict) {
				t.Errorf("append after %d: %v", parent, err)
			}
		}

		// New numbers are higher than any that a node has had.
		if v, err := s.Append(ctx, 9, Version{Parent: 2}); err != nil || v.Number != 10 {
			t.Errorf("append above 9: %v, %v", v.Number, err)
		}
		back := dated(Version{Number: 19, Parent: 18, ParentHash: "18", Text: []byte("lost")})
		if p, err := s.Beat(ctx, Node{Name: "n", Version: "v1", RulesVersion: 19, RulesHash: back.Hash, Store: "up"}, back); p.Head.Number != 10 || p.Mine != Absent || err != nil {
			t.Errorf("beat: %v, %v", p, err)
		}
		until(t, says(s, 19))
		if _, err := s.Append(ctx, 0, Version{Parent: 10}); !errors.Is(err, ErrConflict) {
			t.Errorf("append before what a node has is put back: %v", err)
		}
		for range 2 {
			if err := s.PutBack(ctx, back); err != nil {
				t.Fatal(err)
			}
			if p, err := s.Beat(ctx, Node{Name: "n", Version: "v1", RulesVersion: 19, RulesHash: back.Hash, Store: "up"}, back); !p.Head.Is(back) || p.Mine != InLine || err != nil {
				t.Errorf("beat: %v, %v", p, err)
			}
		}
		if v, err := s.Append(ctx, 0, Version{Parent: 19}); err != nil || v.Number != 20 {
			t.Errorf("append above what a node has: %v, %v", v.Number, err)
		}
		told(20)

		for _, n := range []int64{1, 20} {
			if err := s.PutBack(ctx, Version{Number: n, Text: []byte("other")}); !errors.Is(err, ErrConflict) {
				t.Errorf("restore of %d: %v", n, err)
			}
		}
		back = dated(Version{Number: 30, Parent: 29, ParentHash: "29", Author: "ann", Time: first.Time, Message: "restored", Text: []byte("text")})
		if err := s.PutBack(ctx, back); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Append(ctx, 0, Version{Parent: 30, ParentHash: first.Hash}); !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), "it is "+back.Name()+", not 30-") {
			t.Errorf("append after another version of that number: %v", err)
		}
		told(30)
		if got, err := s.Get(ctx, 30); err != nil || !reflect.DeepEqual(got, back) {
			t.Errorf("restored: got %v, %v, want %v", got, err, back)
		}

		for _, c := range []struct {
			before int64
			limit  int
			want   []int64
		}{
			{0, 100, []int64{30, 20, 19, 10, 2, 1}},
			{0, 2, []int64{30, 20}},
			{20, 2, []int64{19, 10}},
			{15, 2, []int64{10, 2}},
			{1, 2, nil},
			{0, 0, nil},
		} {
			all, err := s.List(ctx, c.before, c.limit)
			var got []int64
			for _, v := range all {
				got = append(got, v.Number)
				if v.Text != nil {
					t.Errorf("list: version %d has a text", v.Number)
				}
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("list before %d, %d at most: got %v, %v, want %v", c.before, c.limit, got, err, c.want)
			}
		}
		all, err := s.List(ctx, 2, 1)
		first.Text = nil
		if err != nil || !reflect.DeepEqual(all, []Version{first}) {
			t.Errorf("list: got %v, %v, want %v", all, err, first)
		}

		orphans(t, s, open())

		r, over := s.(*Redis)
		if !over {
			return
		}
		nodes, err := r.nodes(ctx)
		if err != nil || len(nodes) != 1 {
			t.Fatalf("nodes: %v, %v", nodes, err)
		}
		if ago := time.Since(nodes[0].Seen); ago < 0 || ago > time.Minute {
			t.Errorf("a node was seen %v ago", ago)
		}
		nodes[0].Seen, nodes[0].Name = time.Time{}, "n" // the name is that of the node's store of counters
		if want := (Node{Name: "n", Version: "v1", RulesVersion: 19, RulesHash: nodes[0].RulesHash, Store: "up"}); !reflect.DeepEqual(nodes[0], want) || nodes[0].RulesHash == "" {
			t.Errorf("nodes: got %v, want %v", nodes[0], want)
		}
	})
}

// orphans checks that versions that lost their number or their place stay in the history, beside the versions that
// replaced them.
func orphans(t *testing.T, s, view Store) {
	t.Helper()
	ctx := t.Context()
	head, err := s.Head(ctx)
	if err != nil {
		t.Fatal(err)
	}
	here, err := s.Get(ctx, 20)
	if err != nil {
		t.Fatal(err)
	}
	twin := dated(Version{Number: 20, Parent: 19, Author: "bob", Message: "lost", Text: []byte("the other 20")})
	above := dated(Version{Number: 100, Parent: 99, Author: "cy", Text: []byte("stale")})
	for range 2 {
		for _, v := range []Version{twin, above, here} {
			v.Orphan = true
			if err := s.PutBack(ctx, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if now, err := view.Head(ctx); err != nil || !now.Is(head) {
		t.Errorf("an orphan is the newest: %v, %v", now, err)
	}
	if got, err := view.Get(ctx, 20); err != nil || !reflect.DeepEqual(got, here) {
		t.Errorf("version 20 is %v, %v", got, err)
	}
	want := twin
	want.Orphan = true
	for _, hash := range []string{twin.Hash, Short(twin.Hash)} {
		if got, err := view.Orphan(ctx, 20, hash); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the orphan is %v, %v", got, err)
		}
	}
	for _, hash := range []string{"", "nothing", here.Hash, twin.Hash + "0"} {
		if got, err := view.Orphan(ctx, 20, hash); !errors.Is(err, ErrNotFound) {
			t.Errorf("an orphan with the hash %q: %v, %v", hash, got, err)
		}
	}
	if err := s.PutBack(ctx, above); !errors.Is(err, ErrConflict) {
		t.Errorf("an orphan was put back: %v", err)
	}
	for _, c := range []struct {
		before int64
		limit  int
		want   string
	}{
		{0, 1, "[100* 30]"}, {30, 1, "[20 20*]"}, {20, 1, "[19]"}, {0, 2, "[100* 30 20 20*]"}, {21, 100, "[20 20* 19 10 2 1]"}, {0, 0, "[]"},
	} {
		all, err := view.List(ctx, c.before, c.limit)
		got := []string{}
		for _, v := range all {
			name := fmt.Sprint(v.Number)
			if v.Orphan {
				name += "*"
			}
			got = append(got, name)
			if v.Hash == "" || v.Text != nil || v.Orphan && v.Author == "" {
				t.Errorf("list: %v", v)
			}
		}
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("list before %d, %d at most: got %v, %v, want %s", c.before, c.limit, got, err, c.want)
		}
	}
	for i, v := range []Version{twin, above, here} {
		want := []Presence{Orphaned, Orphaned, InLine}[i]
		if p, err := s.Beat(ctx, Node{Name: "n", RulesVersion: v.Number, RulesHash: v.Hash}, v); p.Mine != want || err != nil {
			t.Errorf("of %s there is %v, want %v: %v", v.Name(), p.Mine, want, err)
		}
	}
	if p, err := s.Beat(ctx, Node{Name: "n", Version: "v1", RulesVersion: 19, RulesHash: "other", Store: "up"}, twin, here, Version{Number: 19, Hash: "other"}); p.Mine != Absent || len(p.Lost) != 1 || err != nil {
		t.Errorf("another version 19 is there: %v", err)
	}
	until(t, says(s, 19))
	// No number is used twice.
	if v, err := s.Append(ctx, 0, Version{Parent: head.Number, ParentHash: head.Hash}); err != nil || v.Number != 101 {
		t.Errorf("append above an orphan: %v, %v", v.Number, err)
	}
}

// watchStore watches a store until the test ends. It returns a function that waits for the message about a version.
func watchStore(t *testing.T, s Store) (told func(n int64)) {
	t.Helper()
	var mu sync.Mutex
	heard := map[int64]bool{}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		s.Watch(ctx, func(n int64) {
			mu.Lock()
			defer mu.Unlock()
			heard[n] = true
		})
	})
	t.Cleanup(func() {
		cancel()
		watching.Wait()
	})
	r, over := s.(*Redis)
	if !over { // other processes can't write to a folder
		return func(int64) {}
	}
	until(t, r.watched)
	return func(n int64) {
		t.Helper()
		until(t, func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if !heard[n] {
				return fmt.Errorf("not told of %d", n)
			}
			return nil
		})
	}
}

// nodes returns the live nodes that report their rules.
func (r *Redis) nodes(ctx context.Context) ([]Node, error) {
	peers, err := r.store.Peers(ctx)
	return NodesOf(peers), err
}

// says returns a check that fails until a store's only node has reported that it has a version.
func says(s Store, n int64) func(context.Context) error {
	return func(ctx context.Context) error {
		r, over := s.(*Redis)
		if !over {
			return nil // a folder has the report at once
		}
		nodes, err := r.nodes(ctx)
		if err == nil && (len(nodes) != 1 || nodes[0].RulesVersion != n) {
			err = fmt.Errorf("the nodes say %v", nodes)
		}
		return err
	}
}

// watched returns nil if a node has subscribed.
func (r *Redis) watched(ctx context.Context) error {
	c, err := r.store.Client()
	if err != nil {
		return err
	}
	for _, server := range c.Nodes() {
		n, err := server.Do(ctx, server.B().PubsubNumsub().Channel(r.channel).Build()).AsIntMap()
		if err != nil {
			return err
		}
		if n[r.channel] > 0 {
			return nil
		}
	}
	return errors.New("no node has subscribed")
}

// If many nodes write at the same time, each version has one winner, and the history has no gaps.
func TestOneWriterWinsEachVersion(t *testing.T) {
	const writers, wins = 50, 4
	everyStore(t, func(t *testing.T, open func() Store) {
		views := []Store{open(), open(), open(), open()}
		var mu sync.Mutex
		won := map[int64]string{} // number → text
		var all sync.WaitGroup
		for w := range writers {
			s := views[w%len(views)]
			all.Go(func() {
				for i := 0; i < wins; {
					head, err := s.Head(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					text := fmt.Sprintf("%d of writer %d", i, w)
					v, err := s.Append(t.Context(), 0, Version{Parent: head.Number, ParentHash: head.Hash, Text: []byte(text)})
					if errors.Is(err, ErrConflict) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					i++
					mu.Lock()
					if other, twice := won[v.Number]; twice {
						t.Errorf("version %d was won by %q and by %q", v.Number, other, text)
					}
					won[v.Number] = text
					mu.Unlock()
				}
			})
		}
		all.Wait()
		versions, err := views[0].List(t.Context(), 0, 2*writers*wins)
		if err != nil || len(versions) != writers*wins {
			t.Fatalf("%d versions, %v", len(versions), err)
		}
		for i, v := range versions {
			if n := int64(len(versions) - i); v.Number != n || v.Parent != n-1 {
				t.Errorf("version %d is number %d after %d", n, v.Number, v.Parent)
			}
			whole, err := views[1].Get(t.Context(), v.Number)
			if err != nil || string(whole.Text) != won[v.Number] {
				t.Errorf("version %d is %q, %v, and %q won it", v.Number, whole.Text, err, won[v.Number])
			}
		}
	})
}
