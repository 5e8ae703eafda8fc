package region

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/stake"
)

// stakes decides limits that regions share: by what this region owns and has borrowed, and if that is too little, by asking the others.
type stakes struct {
	link  *Link
	cells Cells

	mu      sync.Mutex
	queues  map[string]*queue  // by key: changes that wait for one that is under way
	flights map[string]*flight // by key: asks that are under way
	running sync.WaitGroup     // nothing is added once it is closed
	closed  bool
}

// queue is changes of one stake, which are made together.
type queue struct {
	waiting []*change
}

// change is what to do to a stake.
type change struct {
	of   *weir.Policy
	do   func(k *stake.Stake, s stake.Share, now int64)
	done chan error
}

// flight is an ask that is under way. Requests wait for it.
type flight struct {
	done  chan struct{}
	need  int64 // what requests wait for: guarded by stakes.mu, as left is
	left  bool
	retry time.Duration // after how long the home would have it; 0 if it didn't say
}

func newStakes(l *Link, cells Cells) *stakes {
	return &stakes{link: l, cells: cells, queues: map[string]*queue{}, flights: map[string]*flight{}}
}

var errClosed = errors.New("the node stops")

// close ends all that is under way.
func (s *stakes) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
}

// keyOf names a stake. What belongs to it begins with the same, so that a Cluster has it in one place.
func keyOf(c *weir.Counter) string {
	return fmt.Sprintf("{%016x:%s}", c.Policy.ID, hex.EncodeToString(c.Subject))
}

// share is what of a limit is this region's own.
func (l *Link) share(p *weir.Policy, now int64) stake.Share {
	others := int64(len(l.peers))
	floor := min(int64(p.Floor), 100/(others+1))
	own := stake.Whole(p) * floor / 100
	if l.homeOf(p) != "" {
		return stake.Share{Own: own, Rate: 10 * floor}
	}
	return stake.Share{Own: stake.Whole(p) - others*own, Rate: 1000 - 10*floor*others}
}

// shares reports whether regions share a limit, rather than to ask its home at every check.
func (l *Link) shares(p *weir.Policy) bool { return stake.Reaches(p, len(l.peers)+1) }

// update changes one stake. Changes of one that are under way at the same moment are made together.
func (s *stakes) update(ctx context.Context, key string, p *weir.Policy, do func(k *stake.Stake, s stake.Share, now int64)) error {
	c := &change{p, do, make(chan error, 1)}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	q := s.queues[key]
	if q == nil {
		q = &queue{}
		s.queues[key] = q
		s.running.Go(func() { s.work(key, q) })
	}
	q.waiting = append(q.waiting, c)
	s.mu.Unlock()
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// work makes the changes of a stake until there are none.
func (s *stakes) work(key string, q *queue) {
	for {
		s.mu.Lock()
		list := q.waiting
		q.waiting = nil
		if len(list) == 0 {
			delete(s.queues, key)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), s.link.timeout)
		err := s.cells.Update(ctx, []string{key}, func(values [][]byte, now int64) []Cell {
			k := stake.Decode(values[0])
			for _, c := range list {
				c.do(k, s.link.share(c.of, now), now)
			}
			p := list[len(list)-1].of
			return []Cell{{k.Encode(), k.TTL(p, s.link.share(p, now), now)}}
		})
		cancel()
		for _, c := range list {
			c.done <- err
		}
	}
}

// hold is the record of a charge with a hold.
type hold struct {
	N    int64 `json:"n"`
	Slot int64 `json:"slot"`
}

// take decides a charge. If this region has too little, it asks the others, and waits for as long as the caller lets it.
func (s *stakes) take(ctx context.Context, c *weir.Charge, wait bool) weir.Result {
	p, key := c.Policy, keyOf(&c.Counter)
	var r weir.Result
	var low, may bool
	var stale string
	try := func() error {
		return s.charge(ctx, key, c, func(k *stake.Stake, share stake.Share, now int64, there bool) bool {
			fits := there
			switch {
			case there:
			case c.Peek:
				fits = k.Fits(p, share, now, c.N)
			default:
				fits = k.Take(p, share, now, c.N)
			}
			r = k.Report(p, share, now, c.N, fits)
			low, may, stale = k.Low(p, share, now), k.MayAsk(now), k.Stale(p, share, now)
			return fits
		})
	}
	if err := try(); err != nil {
		return weir.Result{Err: err}
	}
	for range 2 {
		if r.Allowed || !may || !wait || c.N > stake.Whole(p) {
			break
		}
		f := s.ask(key, &c.Counter, c.N, "")
		select {
		case <-f.done:
		case <-ctx.Done():
			return r
		}
		if err := try(); err != nil {
			return weir.Result{Err: err}
		}
		if !r.Allowed && f.retry > 0 && r.RetryAfter > 0 {
			r.RetryAfter = min(r.RetryAfter, f.retry)
		}
	}
	if !c.Peek && (low || stale != "") {
		s.ask(key, &c.Counter, 0, stale)
	}
	return r
}

// charge has a charge decided. One whose hold is there already takes nothing more.
func (s *stakes) charge(ctx context.Context, key string, c *weir.Charge, decide func(k *stake.Stake, s stake.Share, now int64, there bool) bool) error {
	p := c.Policy
	if c.Hold == nil || c.Peek {
		return s.update(ctx, key, p, func(k *stake.Stake, share stake.Share, now int64) { decide(k, share, now, false) })
	}
	return s.cells.Update(ctx, []string{key, recordOf(key, c.Hold)}, func(values [][]byte, now int64) []Cell {
		k, share := stake.Decode(values[0]), s.link.share(p, now)
		record := Cell{values[1], c.Hold.For}
		if there := len(values[1]) > 0; decide(k, share, now, there) && !there {
			record.Value, _ = json.Marshal(hold{c.N, k.Slot(p, now)})
		}
		return []Cell{{k.Encode(), k.TTL(p, share, now)}, record}
	})
}

func recordOf(key string, h *weir.Hold) string { return key + ":hold:" + hex.EncodeToString(h.ID[:]) }

// giveBack returns tokens, or settles reservations. If it may happen only once, each stake has its own mark of that.
func (s *stakes) giveBack(ctx context.Context, once weir.Once, keep time.Duration, returns []weir.Return) (err error) {
	used := 0
	for i := range returns {
		r := &returns[i]
		again := false
		key := keyOf(&r.Counter)
		keys := []string{key}
		if once != (weir.Once{}) {
			keys = append(keys, key+":once:"+hex.EncodeToString(once[:]))
		}
		if r.Hold != nil {
			keys = append(keys, recordOf(key, r.Hold))
		}
		e := s.cells.Update(ctx, keys, func(values [][]byte, now int64) []Cell {
			cells := make([]Cell, len(keys))
			for i := range cells {
				cells[i].Value = values[i]
			}
			if once != (weir.Once{}) {
				if again = len(values[1]) > 0; again {
					return cells
				}
				cells[1] = Cell{[]byte{'1'}, keep}
			}
			n, slot := r.N, r.Slot
			if r.Hold != nil {
				var h hold
				if record := values[len(keys)-1]; len(record) > 0 && json.Unmarshal(record, &h) == nil {
					n, slot = min(r.N, h.N)-r.Used, h.Slot
				} else { // it may never have been taken
					n, slot = min(r.N-r.Used, 0), 0
				}
				cells[len(keys)-1].Value = nil
			}
			k, share := stake.Decode(values[0]), s.link.share(r.Policy, now)
			k.GiveBack(r.Policy, share, now, n, slot)
			cells[0] = Cell{k.Encode(), k.TTL(r.Policy, share, now)}
			return cells
		})
		err = errors.Join(err, e)
		if again {
			used++
		}
	}
	if used > 0 && used == len(returns) {
		return weir.ErrUsed
	}
	return err
}

// reset makes a counter untouched in this region.
func (s *stakes) reset(ctx context.Context, c *weir.Counter) error {
	return s.cells.Update(ctx, []string{keyOf(c)}, func(values [][]byte, now int64) []Cell {
		k := stake.Decode(values[0])
		k.Reset(c.Policy, s.link.share(c.Policy, now), now)
		return []Cell{{k.Encode(), k.TTL(c.Policy, s.link.share(c.Policy, now), now)}}
	})
}

// ask asks other regions for what requests of a counter need, unless that is under way; with 0, for what will be needed soon. It returns
// at once. A region that is named is the only one that is asked.
func (s *stakes) ask(key string, c *weir.Counter, need int64, only string) *flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flights[key]; f != nil {
		if !f.left { // else what it brings may do
			f.need += need
		}
		return f
	}
	f := &flight{done: make(chan struct{}), need: need}
	if s.closed {
		close(f.done)
		return f
	}
	s.flights[key] = f
	counter := weir.Counter{Policy: c.Policy, Subject: slices.Clone(c.Subject)}
	s.running.Go(func() {
		s.fly(key, &counter, f, only)
		s.mu.Lock()
		delete(s.flights, key)
		s.mu.Unlock()
		close(f.done)
	})
	return f
}

// depart ends the time in which requests may join a flight, and returns what they need.
func (s *stakes) depart(f *flight) int64 {
	s.mu.Lock()
	waiting := f.need > 0
	s.mu.Unlock()
	if waiting {
		time.Sleep(time.Millisecond) // those who have waited for the flight before join this one
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.left = true
	return f.need
}

// fly asks the home first. Where that has too little for requests that wait, it asks the others, all at once.
func (s *stakes) fly(key string, c *weir.Counter, f *flight, only string) {
	ctx, cancel := context.WithTimeout(context.Background(), s.link.timeout)
	defer cancel()
	need, home := s.depart(f), s.link.homeOf(c.Policy)
	var others []string
	for _, name := range slices.Sorted(maps.Keys(s.link.peers)) {
		if name != home && s.link.peers[name].status().Up {
			others = append(others, name)
		}
	}
	switch {
	case only != "":
		s.askOne(ctx, key, c, f, only, need)
		return
	case home != "":
		if enough := s.askOne(ctx, key, c, f, home, need); enough || need == 0 {
			return
		}
	case need == 0: // at home: of those that have something of it
		if err := s.update(ctx, key, c.Policy, func(k *stake.Stake, _ stake.Share, _ int64) { others = k.Borrowers() }); err != nil {
			return
		}
	}
	var all sync.WaitGroup
	for _, name := range others {
		all.Go(func() { s.askOne(ctx, key, c, f, name, need) })
	}
	all.Wait()
}

// askOne asks a region, and reports whether it had enough.
func (s *stakes) askOne(ctx context.Context, key string, c *weir.Counter, f *flight, of string, need int64) (enough bool) {
	var m *stake.Message
	err := s.update(ctx, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
		m = k.Ask(c.Policy, share, now, of, need)
	})
	if err != nil {
		return false
	}
	answer, err := s.link.talk(ctx, of, c, m)
	if err != nil {
		return false
	}
	if of == s.link.homeOf(c.Policy) && answer.Retry > 0 {
		f.retry = time.Duration(answer.Retry) * time.Microsecond
	}
	err = s.update(ctx, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) { k.Hear(c.Policy, share, now, of, answer) })
	return err == nil && !answer.Short
}

// hear takes in what another region says, and returns the answer.
func (s *stakes) hear(ctx context.Context, from string, c *weir.Counter, m *stake.Message) (answer *stake.Message, err error) {
	err = s.update(ctx, keyOf(c), c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
		answer = k.Hear(c.Policy, share, now, from, m)
	})
	return answer, err
}
