package top_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/internal/top"
	"github.com/weirhq/weir/redisstore"
)

// join makes a node that uses a Redis, and waits until it is known there.
func join(t *testing.T, r *redistest.Server, name string, o top.Options) *top.Shared {
	t.Helper()
	s, err := redisstore.New(redisstore.Options{URL: "redis://" + r.Addr, Name: name, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for {
		all, err := s.Peers(t.Context())
		if err == nil && s.Health().Up && slices.ContainsFunc(all, func(p redisstore.Peer) bool { return p.Name == name }) {
			return top.Share(top.New(o), s, name)
		}
	}
}

// tells has a node tell its list, as one does that is asked, until another has it.
func tells(t *testing.T, s *top.Shared, r *redistest.Server, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = s.Run(ctx) }()
	for {
		if _, err := r.Do(ctx, "SET", "weir{top}asked", "1"); err != nil {
			t.Fatal(err)
		}
		if n, err := r.Do(ctx, "EXISTS", "weir{top}:"+name); err != nil || n == int64(1) {
			break
		}
	}
	if _, err := r.Do(ctx, "PERSIST", "weir{top}:"+name); err != nil {
		t.Fatal(err)
	}
}

func names(a top.Answer) (all []string) {
	for _, n := range a.Nodes {
		all = append(all, n.Name)
	}
	return all
}

// TestNodesThatCantBeRead are missing, and nobody else is.
func TestNodesThatCantBeRead(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	a, b, c := join(t, r, "a", top.Options{}), join(t, r, "b", top.Options{}), join(t, r, "c", top.Options{})
	tells(t, b, r, "b")
	tells(t, c, r, "c")
	for _, command := range []string{"DEL weir{top}:b", "LPUSH weir{top}:b x"} {
		if _, err := r.Do(t.Context(), strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	got, err := a.Answer(t.Context(), top.Query{K: 1})
	if err == nil || !slices.Equal(names(got), []string{"a", "c"}) || !slices.Equal(got.NodesMissing, []string{"b"}) {
		t.Errorf("%v: nodes %v, missing %v", err, names(got), got.NodesMissing)
	}
	if got.Partial == "" || strings.Contains(got.Partial, "alone") {
		t.Errorf("two nodes are in it, and it says %q", got.Partial)
	}
}

// TestAnOldListIsTheLastResort: the first question waits for one that is new.
func TestAnOldListIsTheLastResort(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	a := join(t, r, "a", top.Options{})
	b := join(t, r, "b", top.Options{Now: func() time.Time { return time.Now().Add(-6 * time.Second) }})
	tells(t, b, r, "b")
	began := time.Now()
	got, err := a.Answer(t.Context(), top.Query{K: 1})
	if err != nil || len(got.Nodes) != 2 || got.Nodes[1].AgeMS < 6000 {
		t.Fatalf("%v: %+v", err, got.Nodes)
	}
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("a list of six seconds ago is taken after %v", waited)
	}
}

// TestQuestionsShareAnAnswer: the nodes are asked once a second, by however many.
func TestQuestionsShareAnAnswer(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	a := join(t, r, "a", top.Options{})
	sets := func() int {
		t.Helper()
		info, err := r.Info(t.Context(), "commandstats")
		if err != nil {
			t.Fatal(err)
		}
		calls, _, _ := strings.Cut(strings.TrimPrefix(info["cmdstat_set"], "calls="), ",")
		n, _ := strconv.Atoi(calls)
		return n
	}
	before, began := sets(), time.Now()
	var asking sync.WaitGroup
	for range 100 {
		asking.Go(func() {
			if got, err := a.Answer(t.Context(), top.Query{K: 1}); err != nil || len(got.Nodes) != 1 {
				t.Errorf("%v: %+v", err, got.Nodes)
			}
		})
	}
	asking.Wait()
	if n, most := sets()-before, 1+int(time.Since(began)/time.Second); n < 1 || n > most {
		t.Errorf("the nodes were asked %d times for 100 answers, want %d at most", n, most)
	}
}
