package lease

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// table finds holdings by hash. It is a cache of a fixed size: a hash has eight
// places, and who comes when all are taken replaces whoever was not seen for longest.
// Finding takes no lock.
type table struct {
	shift uint8
	sets  []set
}

const ways = 8

type set struct {
	tags     [ways]atomic.Uint64
	holdings [ways]atomic.Pointer[holding]
	mu       sync.Mutex // guards changes
}

func (t *table) init(holdings int) {
	n := uint64(max(1, holdings/ways))
	t.shift = uint8(64 - bits.Len64(n-1))
	t.sets = make([]set, 1<<bits.Len64(n-1))
}

func (t *table) set(h uint64) *set { return &t.sets[h>>t.shift&uint64(len(t.sets)-1)] }

func (t *table) find(h uint64) *holding {
	s := t.set(h)
	for i := range s.tags {
		if s.tags[i].Load() == h {
			if x := s.holdings[i].Load(); x != nil && x.hash == h {
				return x
			}
		}
	}
	return nil
}

// add puts a holding in, unless there is one of its hash already. It returns the one that is there now, and
// the one that had to go.
func (t *table) add(x *holding) (there, gone *holding) {
	s := t.set(x.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	place := 0
	for i := range s.holdings {
		o := s.holdings[i].Load()
		switch first := s.holdings[place].Load(); {
		case o != nil && o.hash == x.hash:
			return o, nil
		case first == nil:
		case o == nil, o.seen.Load() < first.seen.Load():
			place = i
		}
	}
	gone = s.holdings[place].Load()
	s.holdings[place].Store(x)
	s.tags[place].Store(x.hash)
	return x, gone
}

// remove takes a holding out, if it is there.
func (t *table) remove(x *holding) {
	s := t.set(x.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.holdings {
		if s.holdings[i].Load() == x {
			s.tags[i].Store(0)
			s.holdings[i].Store(nil)
		}
	}
}

// all calls f with every holding.
func (t *table) all(f func(*holding)) {
	for i := range t.sets {
		for j := range t.sets[i].holdings {
			if x := t.sets[i].holdings[j].Load(); x != nil {
				f(x)
			}
		}
	}
}

// heat tells which counters that aren't held are asked for often: it counts them in windows of a second. Each
// place counts one at a time; who meets another there wears its count down, and takes the place when nothing is left.
type heat struct {
	places [1 << 16]atomic.Uint64 // 24 bits of the hash, the window's number, and 16 bits of count
}

const (
	heatWindow = int64(time.Second)
	hot        = 3 // times that a counter must come within a window
)

func (t *heat) is(h uint64, now int64) bool {
	place := &t.places[h>>48]
	window := uint64(now/heatWindow) & 0xffffff << 16
	mine := h<<40 | window
	was := place.Load()
	count := was & 0xffff
	switch {
	case was&^0xffff == mine && count >= hot-1:
		return true
	case was&^0xffff == mine:
		place.Store(was + 1) // two at the same moment may count as one
	case was&0xffffff0000 == window && count > 1:
		place.Store(was - 1)
	default:
		place.Store(mine | 1)
	}
	return false
}
