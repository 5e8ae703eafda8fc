package memstore

import (
	"math/bits"

	"github.com/weirhq/weir"
)

// slot is one counter in 24 bytes, without pointers.
//
//	tag    the counter's hash; 0 is an empty slot
//	when   State.Time since the table's epoch (50 bits) · span (8 bits) · used (6 bits)
//	level  State.Level; for a sliding counter also Prev, 32 bits each
//
// Span says how long after its time the counter is full again, and used how far from untouched it
// was then. They are rounded and serve only to choose what is forgotten: neither needs the policy,
// which the table doesn't keep.
type slot struct{ tag, when, level uint64 }

const (
	usedBits = 6
	spanBits = 8
	maxUsed  = 1<<usedBits - 1 // as [weir.Policy.Spent] has it
	maxTime  = 1<<(64-usedBits-spanBits) - 1
)

// encode packs a state. The epoch lies far enough back for clocks to be set back by years.
func encode(p *weir.Policy, s weir.State, epoch int64) (when, level uint64) {
	used, whole := p.Spent(s)
	t := uint64(min(max(s.Time-epoch, 1), maxTime))
	when = t<<(usedBits+spanBits) | uint64(spanCode(whole))<<usedBits | uint64(used)
	level = uint64(s.Level)
	if p.Limit.Algorithm == weir.SlidingCounter {
		level |= uint64(s.Prev) << 32
	}
	return when, level
}

func (s *slot) decode(p *weir.Policy, epoch int64) weir.State {
	st := weir.State{Time: s.time(epoch), Level: int64(s.level)}
	if p.Limit.Algorithm == weir.SlidingCounter {
		st.Level, st.Prev = int64(s.level&(1<<32-1)), int64(s.level>>32)
	}
	return st
}

func (s *slot) time(epoch int64) int64 { return int64(s.when>>(usedBits+spanBits)) + epoch }

// worth is what evicting the counter would give away, from 0, when it is full again, to just above
// 1, when it blocks its client.
func (s *slot) worth(now, epoch int64) float32 {
	span := spanLength(uint8(s.when >> usedBits))
	left := s.time(epoch) + span - now
	if left <= 0 {
		return 0
	}
	return float32(1+s.when&maxUsed) / (maxUsed + 1) * min(1, float32(left)/float32(span))
}

// spanCode rounds a length of time up to four steps an octave.
func spanCode(us int64) uint8 {
	x := uint64(max(us, 4))
	e := bits.Len64(x) - 3
	return uint8(e<<2|int(x>>e)&3) + 1
}

func spanLength(code uint8) int64 { return int64(4+code&3) << (code >> 2) }
