package lease

import (
	"context"
	"slices"
	"time"

	"github.com/weirhq/weir"
)

// empty takes out all that is held, and returns what may still be given back.
func (x *holding) empty(now int64) (back weir.Return) {
	if x.held > 0 && now < x.until+margin {
		back = x.back(x.held)
	}
	x.held = 0
	return back
}

// giveBack returns tokens, beside the caller. If the store can't be reached they are stranded.
func (s *Store) giveBack(returns []weir.Return) {
	if len(returns) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	give := func() { _ = s.giveBackSome(context.Background(), returns) }
	if s.closed.Load() {
		go give()
		return
	}
	s.running.Go(give)
}

// giveBackSome returns tokens a few at a time: the store does nothing else while it is given back many at once.
func (s *Store) giveBackSome(ctx context.Context, returns []weir.Return) (err error) {
	for some := range slices.Chunk(returns, 64) {
		if err = s.inner.GiveBack(ctx, weir.Once{}, 0, some); err != nil {
			return err
		}
	}
	return nil
}

// Leases are looked at when their time is over, by ticks.
const (
	tick     = int64(5 * time.Millisecond)
	dueTicks = 4096 // more than twice what a lease has
)

// watch sees to it that what isn't spent by the end of a lease is given back. It is called with the holding's lock held.
func (s *Store) watch(x *holding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return
	}
	if s.waiting == 0 {
		s.swept = s.now() / tick
	}
	at := max(x.until/tick, s.swept+1)
	s.due[at%dueTicks] = append(s.due[at%dueTicks], x)
	if s.waiting++; s.waiting == 1 || at < s.next {
		s.wake(at)
	}
}

// wake has sweep look at a tick in time. It is called with the store's lock held.
func (s *Store) wake(at int64) {
	s.next = at
	in := time.Duration(max(0, (at-1)*tick-s.now()))
	if s.timer == nil {
		s.timer = time.AfterFunc(in, s.sweep)
	} else {
		s.timer.Reset(in)
	}
}

// sweep gives back what is left of the leases that are about to end.
func (s *Store) sweep() {
	now := s.now()
	var over []*holding
	s.mu.Lock()
	for s.swept < now/tick+1 {
		s.swept++
		at := &s.due[s.swept%dueTicks]
		over = append(over, *at...)
		clear(*at)
		*at = (*at)[:0]
	}
	if s.waiting -= len(over); s.waiting > 0 {
		at := s.swept + 1
		for len(s.due[at%dueTicks]) == 0 {
			at++
		}
		s.wake(at)
	}
	s.mu.Unlock()
	var returns []weir.Return
	for _, x := range over {
		x.mu.Lock()
		if x.until/tick <= now/tick+1 { // otherwise there is a newer lease
			if !x.sparse(now) {
				x.every = max(x.every, float64(now-x.came))
			}
			if back := x.empty(now); back.N > 0 && !x.plenty() {
				returns = append(returns, back)
			}
		}
		x.unlock()
	}
	s.giveBack(returns)
}
