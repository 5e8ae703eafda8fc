package region

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/stake"
)

// stakes decides limits that regions share: by what this region owns and has borrowed, and if that is too little, by asking the others.
type stakes struct {
	link  *Link
	cells Cells

	mu      sync.Mutex
	queues  map[string]*queue      // by key: changes that wait for one that is under way
	flights map[string]*flight     // by key: asks that are under way
	tidies  map[string]*time.Timer // by key: when to look whether what was borrowed is still needed
	running sync.WaitGroup         // nothing is added once it is closed
	closed  bool
}

// queue is changes of one stake, which are made together.
type queue struct {
	waiting []*change
}

// change is what to do to a stake.
type change struct {
	of      *weir.Policy
	records []string // keys of what is kept beside the stake, and changed with it
	do      func(k *stake.Stake, s stake.Share, now int64, records []*Cell)
	done    chan error
}

// maxChanges is how many changes of a stake are made together.
const maxChanges = 256

// flight is an ask that is under way. Requests wait for it.
type flight struct {
	done chan struct{}
	// need is what requests wait for, and most what one of them does: guarded by stakes.mu until it has left.
	need, most int64
	left       bool
}

// gather is how long an ask waits before it leaves, so that requests which the last answer left short can join it.
const gather = 5 * time.Millisecond

func newStakes(l *Link, cells Cells) *stakes {
	return &stakes{link: l, cells: cells, queues: map[string]*queue{}, flights: map[string]*flight{}, tidies: map[string]*time.Timer{}}
}

var errClosed = errors.New("the node stops")

// close ends all that is under way.
func (s *stakes) close() {
	s.mu.Lock()
	s.closed = true
	for _, t := range s.tidies {
		t.Stop()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// keyOf names a stake. What belongs to it begins with the same, so that a Cluster has it in one place.
func keyOf(c *weir.Counter) string {
	return fmt.Sprintf("{stake:%016x:%s}", c.Policy.ID, hex.EncodeToString(c.Subject))
}

// shares reports whether regions share a limit, rather than to ask its home at every check.
func (l *Link) shares(p *weir.Policy) bool { return stake.Reaches(p, len(l.peers)+1) }

// sharesHere reports whether this region decides by its own stake. One that was drained or forgotten asks the home.
func (l *Link) sharesHere(p *weir.Policy) bool {
	return p.Global && l.shares(p) && (l.homeOf(p) == "" || l.topology().Away[l.name] == "")
}

// update changes one stake. Changes of one that are under way at the same moment are made together.
func (s *stakes) update(ctx context.Context, key string, p *weir.Policy, do func(k *stake.Stake, s stake.Share, now int64)) error {
	return s.updateWith(ctx, key, p, nil, func(k *stake.Stake, s stake.Share, now int64, _ []*Cell) { do(k, s, now) })
}

// updateWith is update for changes that need records beside the stake.
func (s *stakes) updateWith(ctx context.Context, key string, p *weir.Policy, records []string, do func(*stake.Stake, stake.Share, int64, []*Cell)) error {
	c := &change{p, records, do, make(chan error, 1)}
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
		n := min(len(q.waiting), maxChanges)
		list := q.waiting[:n:n]
		q.waiting = q.waiting[n:]
		if len(list) == 0 {
			delete(s.queues, key)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		err := s.makeAll(key, list)
		for i, c := range list {
			if errors.Is(err, weir.ErrNoRoom) && len(list) > 1 { // for the record of one of them
				c.done <- s.makeAll(key, list[i:i+1])
			} else {
				c.done <- err
			}
		}
	}
}

// makeAll makes changes of a stake together.
func (s *stakes) makeAll(key string, list []*change) error {
	keys, at := []string{key}, map[string]int{}
	for _, c := range list {
		for _, record := range c.records {
			if at[record] == 0 {
				at[record] = len(keys)
				keys = append(keys, record)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.link.timeout)
	defer cancel()
	return s.cells.Update(ctx, keys, func(values [][]byte, now int64) []Cell {
		cells := make([]Cell, len(keys))
		for i := range cells {
			cells[i].Value = values[i]
		}
		k := stake.Decode(values[0])
		for _, c := range list {
			records := make([]*Cell, len(c.records))
			for i, record := range c.records {
				records[i] = &cells[at[record]]
			}
			c.do(k, s.link.share(c.of, now), now, records)
		}
		if k.Time != 0 {
			p := list[len(list)-1].of
			cells[0] = Cell{k.Encode(), k.TTL(p, s.link.share(p, now), now)}
		}
		return cells
	})
}

// hold is the record of a charge with a hold.
type hold struct {
	N    int64 `json:"n"`
	Slot int64 `json:"slot"`
}

// take decides a charge. If this region has too little, it asks the others, and waits for them for some time.
func (s *stakes) take(ctx context.Context, c *weir.Charge, wait time.Duration) weir.Result {
	p, key := c.Policy, keyOf(&c.Counter)
	home, tight := s.link.homeOf(p), c.Guest && s.cells.Tight()
	var r weir.Result
	var who, ahead lenders
	awaited := false
	try := func() error {
		return s.charge(ctx, key, c, func(k *stake.Stake, share stake.Share, now int64, there bool) bool {
			if k.Time == 0 && tight {
				r, who, ahead = weir.Result{Err: weir.ErrNoRoom}, lenders{}, lenders{}
				return false
			}
			fits := there
			switch {
			case there:
			case c.Peek:
				fits = k.Fits(p, share, now, c.N)
			case awaited:
				fits = k.TakeAwaited(p, share, now, c.N)
			default:
				fits = k.Take(p, share, now, c.N)
			}
			r = k.Report(p, share, now, c.N, fits)
			r.Again = there
			who, ahead = lenders{}, lenders{}
			if !fits {
				who = s.toAsk(k, home, now)
			}
			if of := k.Stale(p, share, now); of != "" {
				ahead.first = []string{of}
			} else if k.Low(p, share, now) {
				ahead = s.toAskAhead(k, home, now)
			}
			return fits
		})
	}
	if err := try(); err != nil {
		return weir.Result{Err: err}
	}
	// It asks until there is enough, or all others rest. One that an ask on its way didn't count waits for that, and then for one that
	// does. Those that came later may have taken what was brought for it.
	awaited = true
	enough := time.NewTimer(wait)
	defer enough.Stop()
	for !r.Allowed && r.Err == nil && wait > 0 && c.N <= stake.Whole(p) && who.after <= min(patience, wait/2) {
		var done <-chan struct{}
		var rested <-chan time.Time
		if who.after > 0 {
			rested = time.After(who.after)
		} else {
			done = s.ask(key, &c.Counter, c.N, who)
		}
		select {
		case <-done:
		case <-rested:
		case <-enough.C:
			return r
		case <-ctx.Done():
			return r
		}
		if err := try(); err != nil {
			return weir.Result{Err: err}
		}
	}
	if !c.Peek && len(ahead.first) > 0 {
		s.ask(key, &c.Counter, 0, ahead)
	}
	return r
}

// lenders are regions to ask: all of the first at once, and then the rest, if those had less than requests wait for. If nobody may be
// asked now, after is how long it is until somebody may.
type lenders struct {
	first, rest []string
	after       time.Duration
}

// patience is how long a request waits until others may be asked again.
const patience = 250 * time.Millisecond

// toAsk is whom to ask for what requests wait for: the home first, or all at once if that had too little the last time.
func (s *stakes) toAsk(k *stake.Stake, home string, now int64) (who lenders) {
	after := int64(math.MaxInt64 / 1000)
	for _, name := range s.reachable(home) {
		rest := k.Rests(name, now)
		after = min(after, rest)
		switch {
		case rest > 0:
		case home == "" || name == home || k.HadLittle(home):
			who.first = append(who.first, name)
		default:
			who.rest = append(who.rest, name)
		}
	}
	who.after = time.Duration(after) * time.Microsecond
	return who
}

// toAskAhead is whom to ask before requests wait: the home, or all if it had too little the last time. The home asks those that have something
// of it.
func (s *stakes) toAskAhead(k *stake.Stake, home string, now int64) lenders {
	names := []string{home}
	if home == "" {
		names = k.Borrowers()
	} else if k.HadLittle(home) {
		names = s.reachable(home)
	}
	return lenders{first: slices.DeleteFunc(names, func(name string) bool { return !k.MayAskAhead(name, now) })}
}

// reachable are the other regions, the home first. Those that aren't heard, or were forgotten, are left out.
func (s *stakes) reachable(home string) (names []string) {
	away := s.link.topology().Away
	for _, name := range slices.Sorted(maps.Keys(s.link.peers)) {
		switch {
		case away[name] == Forgotten || s.link.peers[name].silent():
		case name == home:
			names = slices.Insert(names, 0, name)
		default:
			names = append(names, name)
		}
	}
	return names
}

// charge has a charge decided. One whose hold is there already takes nothing more.
func (s *stakes) charge(ctx context.Context, key string, c *weir.Charge, decide func(k *stake.Stake, s stake.Share, now int64, there bool) bool) error {
	p := c.Policy
	if c.Hold == nil || c.Peek {
		return s.update(ctx, key, p, func(k *stake.Stake, share stake.Share, now int64) { decide(k, share, now, false) })
	}
	return s.updateWith(ctx, key, p, []string{recordOf(key, c.Hold)}, func(k *stake.Stake, share stake.Share, now int64, records []*Cell) {
		there := len(records[0].Value) > 0
		if decide(k, share, now, there) && !there {
			text, _ := json.Marshal(hold{c.N, k.Slot(p, now)})
			*records[0] = Cell{text, c.Hold.For}
		}
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
		var keys []string
		if r.Hold != nil {
			keys = append(keys, recordOf(key, r.Hold))
		}
		if once != (weir.Once{}) {
			keys = append(keys, key+":once:"+hex.EncodeToString(once[:]))
		}
		e := s.updateWith(ctx, key, r.Policy, keys, func(k *stake.Stake, share stake.Share, now int64, records []*Cell) {
			if once != (weir.Once{}) {
				mark := records[len(keys)-1]
				if again = len(mark.Value) > 0; again {
					return
				}
				*mark = Cell{[]byte{'1'}, keep}
			}
			n, slot := r.N, r.Slot
			if r.Hold != nil {
				var h hold
				if record := records[0].Value; len(record) > 0 && json.Unmarshal(record, &h) == nil {
					n, slot = min(r.N, h.N)-r.Used, h.Slot
				} else { // it may never have been taken
					n, slot = min(r.N-r.Used, 0), 0
				}
				records[0].Value = nil
			}
			k.GiveBack(r.Policy, share, now, n, slot)
		})
		if err = errors.Join(err, e); e == nil && again { // after an error, it may be done yet
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
// at once, with what is closed when they have answered. An ask that is under way may have left without what is needed: what it brings may do.
func (s *stakes) ask(key string, c *weir.Counter, need int64, who lenders) (done <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flights[key]; f != nil {
		if !f.left {
			f.need, f.most = f.need+need, max(f.most, need)
		}
		return f.done
	}
	f := &flight{done: make(chan struct{}), need: need, most: need}
	if s.closed {
		close(f.done)
		return f.done
	}
	s.flights[key] = f
	counter := weir.Counter{Policy: c.Policy, Subject: slices.Clone(c.Subject)}
	s.running.Go(func() {
		s.fly(key, &counter, f, need, who)
		s.mu.Lock()
		delete(s.flights, key)
		s.tidyLocked(key, &counter)
		s.mu.Unlock()
		close(f.done)
	})
	return f.done
}

// tidyEvery is how often a node looks whether what its region has borrowed is still needed. Requests look, too: this is for when none come.
const tidyEvery = 2 * time.Second

// tidyLocked has a counter looked at after a while, if it isn't yet.
func (s *stakes) tidyLocked(key string, c *weir.Counter) {
	if s.closed || s.tidies[key] != nil {
		return
	}
	s.tidies[key] = time.AfterFunc(tidyEvery, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.tidies, key)
		if !s.closed {
			s.running.Go(func() { s.tidy(key, c) })
		}
	})
}

// tidy gives back what was borrowed and isn't needed, before its term is over and it is lost. It goes on until nothing is borrowed.
func (s *stakes) tidy(key string, c *weir.Counter) {
	ctx, cancel := context.WithTimeout(context.Background(), s.link.timeout)
	defer cancel()
	var to []string
	var borrowed bool
	err := s.update(ctx, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
		to, borrowed = k.Owed(c.Policy, share, now)
	})
	switch {
	case err != nil: // the change may still be made, and write to
	case len(to) > 0:
		s.ask(key, c, 0, lenders{first: to})
	case borrowed:
		s.mu.Lock()
		s.tidyLocked(key, c)
		s.mu.Unlock()
	}
}

// fly asks lenders, once the requests that come with this one have said what they need.
func (s *stakes) fly(key string, c *weir.Counter, f *flight, need int64, who lenders) {
	ctx, cancel := context.WithTimeout(context.Background(), s.link.timeout)
	defer cancel()
	if need > 0 {
		time.Sleep(gather)
	}
	s.mu.Lock()
	f.left = true
	s.mu.Unlock()
	if s.askAll(ctx, key, c, f, who.first) < f.need {
		s.askAll(ctx, key, c, f, who.rest)
	}
}

// askAll asks regions at once, and returns what they brought.
func (s *stakes) askAll(ctx context.Context, key string, c *weir.Counter, f *flight, of []string) int64 {
	var brought atomic.Int64
	var all sync.WaitGroup
	for _, name := range of {
		all.Go(func() { brought.Add(s.askOne(ctx, key, c, f, name)) })
	}
	all.Wait()
	return brought.Load()
}

// askOne asks a region, and returns what it brought.
func (s *stakes) askOne(ctx context.Context, key string, c *weir.Counter, f *flight, of string) int64 {
	p := s.link.peers[of]
	if p == nil || p.silent() || ctx.Err() != nil { // nothing is sent, and other nodes may hear it
		return 0
	}
	var m *stake.Message
	err := s.update(ctx, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
		m = k.Ask(c.Policy, share, now, of, f.need)
		m.Most = f.most
	})
	if err != nil {
		return 0
	}
	answer, err := s.link.talk(ctx, of, c, m)
	if err != nil {
		_ = s.update(context.WithoutCancel(ctx), key, c.Policy, func(k *stake.Stake, _ stake.Share, now int64) { k.Unheard(of, now) })
		return 0
	}
	p.asks.Add(1)
	if answer.Short {
		p.short.Add(1)
	}
	var brought int64
	err = s.update(ctx, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
		brought = k.Heard(c.Policy, share, now, of, m, answer)
	})
	if err != nil {
		return 0 // the change may still be made, and write brought
	}
	return brought
}

// hear takes in what another region says of a counter, and returns the answer.
func (s *stakes) hear(ctx context.Context, from string, c *weir.Counter, m *stake.Message) (*stake.Message, error) {
	var answer *stake.Message
	err := s.update(ctx, keyOf(c), c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
		answer = k.Hear(c.Policy, share, now, from, m)
	})
	if err != nil {
		return nil, err // it may be heard yet, and answer be written
	}
	return answer, nil
}

// Standing is what a region has of a limit that regions share, in the units that it is asked for.
type Standing struct {
	Home     string
	Own      int64 // of the limit
	Borrowed int64
	Lent     int64
	// Until is when what was borrowed must be renewed, by the clock of the store; zero if it lasts as long as its window.
	Until time.Time
}

// Standing is what this region has of a counter, or nil if it doesn't decide by that.
func (l *Link) Standing(ctx context.Context, c *weir.Counter) (*Standing, error) {
	s := l.stakes.Load()
	if s == nil || !l.sharesHere(c.Policy) {
		return nil, nil
	}
	named := weir.Counter{Policy: c.Policy, Subject: l.secret.name(make([]byte, 0, 64), c.Policy.ID, c.Subject)}
	out := &Standing{Home: cmp.Or(l.homeOf(c.Policy), l.name)}
	err := s.cells.Update(ctx, []string{keyOf(&named)}, func(values [][]byte, now int64) []Cell {
		k, share := stake.Decode(values[0]), l.share(c.Policy, now)
		var until int64
		out.Own = share.Own
		out.Borrowed, out.Lent, until = k.Loans(c.Policy, share, now)
		if until > 0 {
			out.Until = time.UnixMicro(until)
		}
		return []Cell{{Value: values[0]}}
	})
	return out, err
}
