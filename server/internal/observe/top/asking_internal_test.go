package top

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/redisstore"
)

// TestQuestionsAreBounded: of those that wait for nodes there are some, and not as many as somebody likes to ask; those that nobody waits for
// any more are gone.
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
	s := Share(New(Options{}), store, "a", nil)
	until := func(what func() bool) {
		t.Helper()
		for {
			s.hour.Lock()
			there := what()
			s.hour.Unlock()
			if there {
				return
			}
			if t.Context().Err() != nil {
				t.Fatal("it never was")
			}
			time.Sleep(time.Millisecond)
		}
	}
	// Nobody gets a turn, so that they stay.
	for range atOnce {
		s.seats <- struct{}{}
	}
	ctx, leave := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	ask := func(rule string) {
		asking.Go(func() {
			if a := s.askOthers(ctx, question{rule: rule}); a.err != context.Canceled {
				t.Errorf("%s: %v", rule, a.err)
			}
		})
	}
	for i := range mostAsked {
		ask(fmt.Sprint(i))
	}
	until(func() bool { return s.asking == mostAsked })
	if a := s.askOthers(t.Context(), question{rule: "one more"}); a.err != ErrBusy {
		t.Errorf("one more: %v", a.err)
	}
	ask("0") // it shares
	until(func() bool { return s.asks["rule:0"].waiting == 2 })
	if _, err := NewHour(s.top, "a", s).Resolve(t.Context(), "00000001"); err != ErrBusy {
		t.Errorf("resolve: %v", err)
	}
	leave()
	asking.Wait()
	until(func() bool { return s.asking == 0 && len(s.asks) == 0 })
	for range atOnce {
		<-s.seats
	}
	if n, err := r.Do(t.Context(), "EXISTS", "weir{top}questions"); err != nil || n != int64(0) {
		t.Errorf("%v: %v of the questions that nobody waited for were asked", err, n)
	}
	if a := s.askOthers(t.Context(), question{rule: "0"}); a.err != nil || !slices.Equal(a.missing, []string{"silent"}) {
		t.Errorf("afterwards: %v, without %v", a.err, a.missing)
	}
	if s.room.Load() != heard {
		t.Errorf("there is room for %d, want %d", s.room.Load(), heard)
	}
}

// TestAnswersAreForgotten: those that are old, and the oldest of those that weigh too much; then there is room for others.
func TestAnswersAreForgotten(t *testing.T) {
	s := Share(New(Options{}), nil, "a", nil)
	keep := func(weights ...int) {
		s.room.Store(heard)
		for i, w := range weights {
			s.room.Add(-int64(w))
			s.asks[fmt.Sprint(i)] = &asked{over: true, weight: w, at: time.Now().Add(time.Duration(i) * time.Millisecond)}
		}
		s.asks["running"] = &asked{}
		s.forgetOldLocked()
	}
	for name, c := range map[string]struct {
		weights []int
		left    []string
	}{
		"few":   {[]int{1, 2, 3}, []string{"0", "1", "2", "running"}},
		"many":  {make([]int, kept+2), []string{"2", "3", "4", "5", "6", "7", "8", "9", "running"}},
		"heavy": {[]int{heard / 4, heard / 4, heard / 4, heard / 8}, []string{"2", "3", "running"}},
	} {
		keep(c.weights...)
		var left []string
		weight := 0
		for text, a := range s.asks {
			left, weight = append(left, text), weight+a.weight
		}
		slices.Sort(left)
		if !slices.Equal(left, c.left) || s.room.Load() != int64(heard-weight) {
			t.Errorf("%s: %v are left, and room for %d", name, left, s.room.Load())
		}
		clear(s.asks)
	}
	s.asks["old"] = &asked{over: true, at: time.Now().Add(-remembered)}
	if s.forgetOldLocked(); len(s.asks) != 0 {
		t.Error("an old one is kept")
	}
}
