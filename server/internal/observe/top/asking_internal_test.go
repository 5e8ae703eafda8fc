package top

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/redisstore"
)

// TestQuestionsAreBounded checks that the number of questions that wait for nodes is bounded, and that a question that
// no caller waits for any longer is dropped.
func TestQuestionsAreBounded(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	open := func(name string) *redisstore.Store {
		s, err := redisstore.New(redisstore.Options{URL: "redis://" + r.Addr, Name: name, Timeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	store := open("a")
	open("silent")
	for {
		all, err := store.Peers(t.Context())
		if err == nil && store.Health().Up && slices.ContainsFunc(all, func(p redisstore.Peer) bool { return p.Name == "silent" }) {
			break
		}
	}
	s := NewCluster(New(Options{}), "a", store, nil)
	until := func(what func() bool) {
		t.Helper()
		for {
			s.mu.Lock()
			there := what()
			s.mu.Unlock()
			if there {
				return
			}
			if t.Context().Err() != nil {
				t.Fatal("the state was never reached")
			}
			time.Sleep(time.Millisecond)
		}
	}
	// All seats are taken, so that the questions wait.
	for range atOnce {
		s.seats <- struct{}{}
	}
	ctx, leave := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	ask := func(rule string) {
		asking.Go(func() {
			if a := s.askOthers(ctx, question{ofRule, rule}); a.err != context.Canceled {
				t.Errorf("%s: %v", rule, a.err)
			}
		})
	}
	for i := range mostAsked {
		ask(fmt.Sprint(i))
	}
	until(func() bool { return s.asking == mostAsked })
	if a := s.askOthers(t.Context(), question{ofRule, "one more"}); a.err != ErrBusy {
		t.Errorf("one more: %v", a.err)
	}
	ask("0") // shares the first question
	until(func() bool { return s.asks[question{ofRule, "0"}].waiting == 2 })
	if _, err := s.Resolve(t.Context(), "00000001"); err != ErrBusy {
		t.Errorf("resolve: %v", err)
	}
	leave()
	asking.Wait()
	until(func() bool { return s.asking == 0 && len(s.asks) == 0 })
	for range atOnce {
		<-s.seats
	}
	if n, err := r.Do(t.Context(), "EXISTS", "weir{top}questions"); err != nil || n != int64(0) {
		t.Errorf("%v: %v of the abandoned questions were asked", err, n)
	}
	if a := s.askOthers(t.Context(), question{ofRule, "0"}); a.err != nil || !slices.Equal(a.missing, []string{"silent"}) {
		t.Errorf("afterwards: %v, without %v", a.err, a.missing)
	}
	if s.room.Load() != heard {
		t.Errorf("there is room for %d, want %d", s.room.Load(), heard)
	}
}

// TestAnswersAreForgotten checks that an answer is cached for a few seconds, or not at all if it is large or the
// question failed, and that its room is then free.
func TestAnswersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewCluster(New(Options{}), "a", nil, nil)
		q := question{ofRule, "r"}
		for name, c := range map[string]struct {
			a     asked
			stays time.Duration
		}{
			"small":    {asked{weight: 1}, 3 * time.Second},
			"in parts": {asked{err: errBadList}, 3 * time.Second},
			"large":    {asked{weight: heard / 4}, 0},
			"failed":   {asked{err: redisstore.ErrUnavailable}, 0},
		} {
			kept := func() int {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.asks)
			}
			s.room.Add(-int64(c.a.weight))
			s.asks[q] = &c.a
			s.keep(q, &c.a, time.Now())
			time.Sleep(c.stays - time.Millisecond)
			synctest.Wait()
			if c.stays > 0 && kept() == 0 {
				t.Errorf("%s: it is forgotten already", name)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if kept() != 0 || s.room.Load() != heard {
				t.Errorf("%s: %d are left, and room for %d", name, kept(), s.room.Load())
			}
		}
	})
}
