package region

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/inuse"
	"github.com/weirhq/weir/internal/node/stake"
)

// stakes decides limits that regions share. It uses the tokens that this region owns or has borrowed. If they aren't
// enough, it asks the other regions.
type stakes struct {
	link    *Link
	cells   Cells
	waiting inuse.Places[string] // checks that wait for other regions, by the counter's key

	mu      sync.Mutex
	queues  map[string][]*change // changes that wait for the change in progress, by the counter's key
	flights map[string]*flight   // requests to other regions in flight, by the counter's key
	tidies  map[string]bool      // counters that tidy watches, by key; true if a request has ended since tidy last looked
	running sync.WaitGroup       // once the node is stopping, only running work may add to it
	life    context.Context      // done once the node is stopping
	end     context.CancelFunc
}

type change struct {
	of      *counter.Policy
	records []string // keys of the records that change together with the stake
	do      func(k *stake.Stake, s stake.Share, now int64, records []*Cell)
	done    chan error
}

const maxChanges = 256

func newStakes(l *Link, cells Cells) *stakes {
	s := &stakes{link: l, cells: cells, queues: map[string][]*change{}, flights: map[string]*flight{}, tidies: map[string]bool{}}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

var errClosed = errors.New("the node is stopping")

func (s *stakes) close() {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	s.running.Wait()
}

// keyOf returns the key of a counter's stake. Keys of its records start with it, braces included,
// so that a Cluster keeps them in one hash slot.
func keyOf(c *counter.Counter) string {
	return fmt.Sprintf("{stake:%016x:%s}", c.Policy.ID, hex.EncodeToString(c.Subject))
}

// shares reports whether regions share a limit. Otherwise they ask its home on every check.
func (l *Link) shares(p *counter.Policy) bool { return stake.Reaches(p, len(l.peers)+1) }

// sharesHere reports whether this region decides a limit by its own stake. A region that was drained or forgotten asks
// the home instead, unless it is the home.
func (l *Link) sharesHere(p *counter.Policy) bool {
	return p.Global && l.shares(p) && (l.homeOf(p) == "" || l.topology().Away[l.name] == "")
}

// update changes one stake. Changes that arrive while another change is in progress are made together.
func (s *stakes) update(ctx context.Context, key string, p *counter.Policy, do func(k *stake.Stake, s stake.Share, now int64)) error {
	return s.updateWith(ctx, key, p, nil, func(k *stake.Stake, s stake.Share, now int64, _ []*Cell) { do(k, s, now) })
}

// changed is update for a change that returns a result. If there is an error, it returns no result, because the change
// may still be made later.
func changed[T any](ctx context.Context, s *stakes, key string, p *counter.Policy, do func(k *stake.Stake, s stake.Share, now int64) T) (none T, err error) {
	var out T
	if err := s.update(ctx, key, p, func(k *stake.Stake, s stake.Share, now int64) { out = do(k, s, now) }); err != nil {
		return none, err
	}
	return out, nil
}

// updateWith is update for changes that also read or write records, such as those of holds.
func (s *stakes) updateWith(ctx context.Context, key string, p *counter.Policy, records []string, do func(*stake.Stake, stake.Share, int64, []*Cell)) error {
	c := &change{p, records, do, make(chan error, 1)}
	s.mu.Lock()
	if s.life.Err() != nil {
		s.mu.Unlock()
		return errClosed
	}
	waiting, working := s.queues[key]
	if s.queues[key] = append(waiting, c); !working {
		s.running.Go(func() { s.work(key) })
	}
	s.mu.Unlock()
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// work makes the queued changes of one stake until none are left.
func (s *stakes) work(key string) {
	for {
		s.mu.Lock()
		waiting := s.queues[key]
		if len(waiting) == 0 {
			delete(s.queues, key)
			s.mu.Unlock()
			return
		}
		n := min(len(waiting), maxChanges)
		list := waiting[:n:n]
		s.queues[key] = waiting[n:]
		s.mu.Unlock()
		err := s.makeAll(key, list)
		for i, c := range list {
			if errors.Is(err, counter.ErrNoRoom) && len(list) > 1 { // the store has no memory left for a record: make each change separately
				c.done <- s.makeAll(key, list[i:i+1])
			} else {
				c.done <- err
			}
		}
	}
}

// makeAll makes several changes of a stake in one update.
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

// chargeRecord is stored for a charge with a hold.
type chargeRecord struct {
	N    int64 `json:"n"`
	Slot int64 `json:"slot"`
}

// take decides a charge. If this region has too few tokens, it asks other regions, and waits for their tokens for at
// most the given time.
func (s *stakes) take(ctx context.Context, c *counter.Charge, wait time.Duration) counter.Result {
	p, key := c.Policy, keyOf(&c.Counter)
	home, tight := s.link.homeOf(p), c.Guest && s.cells.Tight()
	var r counter.Result
	var who, ahead lenders
	awaited := false
	try := func() error {
		return s.charge(ctx, key, c, func(k *stake.Stake, share stake.Share, now int64, there bool) bool {
			if k.Time == 0 && tight {
				r, who, ahead = counter.Result{Err: counter.ErrNoRoom}, lenders{}, lenders{}
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
		return counter.Result{Err: err}
	}
	short := func() bool {
		return !r.Allowed && r.Err == nil && wait > 0 && c.N <= stake.Whole(p) && who.after <= min(patience, wait/2)
	}
	places := int64(s.link.maxWaiting)
	each := places
	if who.little { // the client is probably above its limit
		each = max(1, places/4)
	}
	if short() && s.waiting.Enter(key, places, each) {
		defer s.waiting.Leave(key)
		awaited = true
		enough := time.NewTimer(wait)
		defer enough.Stop()
		// Ask until there are enough tokens, or until no lender may be asked. If this check joins a request that has
		// already been sent, other checks may use up the tokens that it brings. The check then asks again, with a
		// request that includes its own need.
		for short() {
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
				return counter.Result{Err: err}
			}
		}
	}
	if !c.Peek && len(ahead.first) > 0 {
		s.ask(key, &c.Counter, 0, ahead)
	}
	return r
}

// charge calls decide to change a charge's stake. If there says that the charge's hold already exists, decide must take
// nothing more. If decide returns true, charge records the hold.
func (s *stakes) charge(ctx context.Context, key string, c *counter.Charge, decide func(k *stake.Stake, s stake.Share, now int64, there bool) bool) error {
	p := c.Policy
	if c.Hold == nil || c.Peek {
		return s.update(ctx, key, p, func(k *stake.Stake, share stake.Share, now int64) { decide(k, share, now, false) })
	}
	return s.updateWith(ctx, key, p, []string{recordOf(key, c.Hold)}, func(k *stake.Stake, share stake.Share, now int64, records []*Cell) {
		there := len(records[0].Value) > 0
		if decide(k, share, now, there) && !there {
			text, _ := json.Marshal(chargeRecord{c.N, k.Slot(p, now)})
			*records[0] = Cell{text, c.Hold.For}
		}
	})
}

func recordOf(key string, h *counter.Hold) string {
	return key + ":hold:" + hex.EncodeToString(h.ID[:])
}

// giveBack returns tokens or settles a reservation, and makes sure that this happens only once. For that, it stores a
// mark for once. If the return depends on the record of a hold, deleting that record has the same effect.
func (s *stakes) giveBack(ctx context.Context, once counter.Once, keep time.Duration, r *counter.Return) error {
	if r.Recorded {
		once = counter.Once{}
	}
	key := keyOf(&r.Counter)
	var keys []string
	if r.Hold != nil {
		keys = append(keys, recordOf(key, r.Hold))
	}
	if once != (counter.Once{}) {
		keys = append(keys, key+":once:"+hex.EncodeToString(once[:]))
	}
	again := false
	err := s.updateWith(ctx, key, r.Policy, keys, func(k *stake.Stake, share stake.Share, now int64, records []*Cell) {
		if once != (counter.Once{}) {
			mark := records[len(keys)-1]
			if again = len(mark.Value) > 0; again {
				return
			}
			*mark = Cell{[]byte{'1'}, keep}
		}
		n, slot := r.N, r.Slot
		if r.Hold != nil {
			if again = r.Recorded && len(records[0].Value) == 0; again {
				return
			}
			var h chargeRecord
			if record := records[0].Value; len(record) > 0 && json.Unmarshal(record, &h) == nil {
				n, slot = min(r.N, h.N)-r.Used, h.Slot
			} else { // without a record, the charge may never have been taken
				n, slot = min(r.N-r.Used, 0), 0
			}
			records[0].Value = nil
		}
		k.GiveBack(r.Policy, share, now, n, slot)
	})
	if err == nil && again { // after an error, the update may still be applied
		return counter.ErrUsed
	}
	return err
}

func (s *stakes) reset(ctx context.Context, c *counter.Counter) error {
	return s.update(ctx, keyOf(c), c.Policy, func(k *stake.Stake, share stake.Share, now int64) { k.Reset(c.Policy, share, now) })
}

// Standing describes a region's part of a shared limit, in the units of a check's cost.
type Standing struct {
	Home     string
	Own      int64 // this region's own part of the limit
	Borrowed int64
	Lent     int64
	// Until is the time, by the store's clock, at which the first loan to this region ends unless it is renewed. Zero
	// means that loans last as long as their window.
	Until time.Time
}

// Standing returns this region's part of a counter, or nil if the region doesn't decide the limit by a stake.
func (l *Link) Standing(ctx context.Context, c *counter.Counter) (*Standing, error) {
	s := l.stakes.Load()
	if s == nil || !l.sharesHere(c.Policy) {
		return nil, nil
	}
	named := *c
	l.rename(&named)
	return changed(ctx, s, keyOf(&named), c.Policy, func(k *stake.Stake, share stake.Share, now int64) *Standing {
		out := &Standing{Home: cmp.Or(l.homeOf(c.Policy), l.name), Own: share.Own}
		var until int64
		if out.Borrowed, out.Lent, until = k.Loans(c.Policy, share, now); until > 0 {
			out.Until = time.UnixMicro(until)
		}
		return out
	})
}
