package lease

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// table finds counters by hash. It is a cache of a fixed size: a hash has seven places, and if all
// of them are taken, a new counter evicts the least recently used one. Lookups take no lock.
type table struct {
	shift uint8
	sets  []set
	_     [64]byte       // keeps the locks, which are written, off the cache lines above
	locks [64]sync.Mutex // guard changes of sets
}

const ways = 7

// set is the seven places of one group of hashes, in one cache line.
type set struct {
	tags     atomic.Uint64 // the low byte of each counter's hash
	counters [ways]atomic.Pointer[borrower]
}

func (t *table) init(counters int) {
	n := uint64(max(1, (counters+ways-1)/ways))
	t.shift = uint8(64 - bits.Len64(n-1))
	t.sets = make([]set, 1<<bits.Len64(n-1))
}

func (t *table) set(h uint64) *set { return &t.sets[h>>t.shift&uint64(len(t.sets)-1)] }

func (t *table) lock(h uint64) *sync.Mutex { return &t.locks[h>>t.shift%uint64(len(t.locks))] }

const eachByte = 0x0101010101010101

func (t *table) find(h uint64) *borrower {
	s := t.set(h)
	differ := s.tags.Load() ^ h&0xff*eachByte
	for same := (differ - eachByte) &^ differ & (0x80 * eachByte); same != 0; same &= same - 1 { // only the lowest match is certain
		if i := bits.TrailingZeros64(same) / 8; i < ways {
			if x := s.counters[i].Load(); x != nil && x.hash == h {
				return x
			}
		}
	}
	return nil
}

// room reports whether the hash has a free place, or one whose counter wasn't used after the moment
// since, which is in blinks of 10 ms.
func (t *table) room(h uint64, since uint32) bool {
	s := t.set(h)
	for i := range s.counters {
		if x := s.counters[i].Load(); x == nil || !later(x.seen.Load(), since) {
			return true
		}
	}
	return false
}

// add puts a counter into the table, unless it has one with the same hash already. It returns the
// counter that is there now, and the counter that was evicted.
func (t *table) add(x *borrower) (there, gone *borrower) {
	s, mu := t.set(x.hash), t.lock(x.hash)
	mu.Lock()
	defer mu.Unlock()
	place := 0
	for i := range s.counters {
		o := s.counters[i].Load()
		switch first := s.counters[place].Load(); {
		case o != nil && o.hash == x.hash:
			return o, nil
		case first == nil:
		case o == nil, later(first.seen.Load(), o.seen.Load()):
			place = i
		}
	}
	gone = s.counters[place].Load()
	s.counters[place].Store(x)
	s.tags.Store(s.tags.Load()&^(0xff<<(8*place)) | x.hash&0xff<<(8*place))
	return x, gone
}

func (t *table) all(f func(*borrower)) {
	for i := range t.sets {
		for j := range t.sets[i].counters {
			if x := t.sets[i].counters[j].Load(); x != nil {
				f(x)
			}
		}
	}
}

// sightings records when counters outside the table were last used. Each place remembers only the last counter that fell on it.
type sightings []atomic.Uint32 // the upper half is a part of the hash, the lower half a time in blinks of 10 ms

const (
	blink = int64(10 * time.Millisecond)
	often = int64(300 * time.Millisecond) // a counter used this often gets a place, whatever its limit
)

// blinks converts a time in ns to blinks of 10 ms. The result wraps around after more than a year.
func blinks(at int64) uint32 { return uint32(at / blink) }

func later(a, b uint32) bool { return int32(a-b) > 0 }

func (t *sightings) init(places int) { *t = make(sightings, 1<<bits.Len(uint(places-1))) }

// since returns roughly how long ago the counter was last used, or MaxInt64, and records that it is used now.
func (t sightings) since(h uint64, now int64) int64 {
	place := &t[h&uint64(len(t)-1)]
	mine := uint32(h>>48)<<16 | blinks(now)&0xffff
	was := place.Load()
	place.Store(mine)
	if (was^mine)>>16 != 0 || was == 0 {
		return math.MaxInt64
	}
	return max(blink/2, int64(uint16(mine-was))*blink)
}
