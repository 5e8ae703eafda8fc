package memstore

import (
	"math/bits"

	"github.com/weirhq/weir/counter"
)

// cell is one counter in 24 bytes, without pointers.
//
//	tag    the counter's hash; 0 marks an empty cell
//	when   State.Time since the table's epoch (50 bits) · span (8 bits) · used (6 bits)
//	level  State.Level; for a sliding counter also Prev, 32 bits each
//
// Used says how much of the limit was used at State.Time, and span how long after that time the
// counter is full again. Both are rounded, and serve only to choose which counter to evict: the
// table doesn't keep policies, so it couldn't compute them then.
type cell struct{ tag, when, level uint64 }

const (
	usedBits = 6
	spanBits = 8
	maxUsed  = 1<<usedBits - 1 // the scale of [counter.Policy.Spent]
	maxTime  = 1<<(64-usedBits-spanBits) - 1
)

// encode packs a state. The epoch lies far enough in the past that a clock may be set back by years.
func (c *cell) encode(p *counter.Policy, s counter.State, epoch int64) {
	used, whole := p.Spent(s)
	t := uint64(min(max(s.Time-epoch, 1), maxTime))
	c.when = t<<(usedBits+spanBits) | uint64(spanCode(whole))<<usedBits | uint64(used)
	c.level = uint64(s.Level)
	if p.Limit.Algorithm == counter.SlidingCounter {
		c.level |= uint64(s.Prev) << 32
	}
}

func (c *cell) decode(p *counter.Policy, epoch int64) counter.State {
	st := counter.State{Time: c.time(epoch), Level: int64(c.level)}
	if p.Limit.Algorithm == counter.SlidingCounter {
		st.Level, st.Prev = int64(c.level&(1<<32-1)), int64(c.level>>32)
	}
	return st
}

func (c *cell) time(epoch int64) int64 { return int64(c.when>>(usedBits+spanBits)) + epoch }

// worth says what share of the limit the client would get back if its counter were evicted: from 0
// if the counter is full again, to about 1 if it blocks the client.
func (c *cell) worth(now, epoch int64) float32 {
	span := spanLength(uint8(c.when >> usedBits))
	left := c.time(epoch) + span - now
	if left <= 0 {
		return 0
	}
	return float32(1+c.when&maxUsed) / (maxUsed + 1) * min(1, float32(left)/float32(span))
}

// spanCode rounds a duration up to one of four steps for each power of two.
func spanCode(us int64) uint8 {
	x := uint64(max(us, 4))
	e := bits.Len64(x) - 3
	return uint8(e<<2|int(x>>e)&3) + 1
}

func spanLength(code uint8) int64 { return int64(4+code&3) << (code >> 2) }
