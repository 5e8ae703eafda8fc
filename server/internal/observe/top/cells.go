package top

import (
	"encoding/binary"
	"math"
	"time"
)

const (
	// HourSlot is the length of a slot in an hour's history. Slots begin at the same moments on all
	// nodes.
	HourSlot = 10 * time.Second
	// HourSlots is how many slots an hour has.
	HourSlots = 360
)

// cell is a piece of a history or of a subject. Cells hold no pointers, so a million of them cost
// the garbage collector nothing.
type cell struct {
	next int32  // of the same chain, or 0
	slot uint32 // of a history: that of the first entry
	n    uint8  // bytes in use
	data [23]byte
}

// slab is how many cells are allocated at a time.
const slab = 1 << 12

// cells is an arena of cells. It allocates them as they are needed, up to a maximum, and never
// gives them back to the runtime. Index 0 stands for no cell.
type cells struct {
	slabs [][]cell
	free  int32 // a chain
	fresh int32 // the lowest that was never used
	used  int32
	most  int32
}

func (c *cells) at(i int32) *cell { return &c.slabs[i/slab][i%slab] }

// left returns how many more cells may be taken.
func (c *cells) left() int32 { return c.most - c.used }

// take takes a cell. The caller has checked that one is left.
func (c *cells) take() int32 {
	c.used++
	if i := c.free; i != 0 {
		c.free = c.at(i).next
		c.at(i).next = 0
		return i
	}
	c.fresh = max(1, c.fresh)
	i := c.fresh
	if int(i/slab) == len(c.slabs) {
		c.slabs = append(c.slabs, make([]cell, slab))
	}
	c.fresh++
	return i
}

// give frees the cells of a chain from first up to, but not including, kept. It clears them, so
// that parts of a client's key don't stay in memory.
func (c *cells) give(first, kept int32) {
	for first != kept {
		f := c.at(first)
		next := f.next
		*f = cell{next: c.free}
		c.free = first
		c.used--
		first = next
	}
}

// write stores a text in a chain of cells.
func (c *cells) write(text []byte) (first int32) {
	last := &first
	for len(text) > 0 {
		i := c.take()
		f := c.at(i)
		f.n = uint8(copy(f.data[:], text))
		text = text[f.n:]
		*last = i
		last = &f.next
	}
	return first
}

// read appends the text of a chain.
func (c *cells) read(to []byte, first int32) []byte {
	for ; first != 0; first = c.at(first).next {
		f := c.at(first)
		to = append(to, f.data[:f.n]...)
	}
	return to
}

// series is the history of an hour by slot. Slots without requests take no space. The current slot
// is in the struct, and earlier ones are in cells.
type series struct {
	tokens            float64
	requests, refused float32
	elsewhere         float32
	slot              uint32 // that the numbers above are of
	first, last       int32
}

// add counts requests in a slot that is no older than the last one. Two cells must be free.
func (s *series) add(c *cells, slot uint32, n amount) {
	if slot != s.slot {
		s.flush(c)
		s.slot = slot
	}
	s.requests += float32(n.requests)
	s.refused += float32(n.refused)
	s.elsewhere += float32(n.elsewhere)
	s.tokens += n.tokens
}

// amount is what is counted in a slot. Requests that another rule refused are elsewhere: they took
// no tokens here, and none are counted for them.
type amount struct{ requests, refused, elsewhere, tokens float64 }

// flush moves the current slot into a cell, and forgets slots that are older than an hour.
func (s *series) flush(c *cells) {
	if s.requests > 0 {
		var entry [32]byte
		gap := uint32(0)
		if s.last != 0 {
			gap = s.slot - lastSlot(c.at(s.last))
		}
		text := appendEntry(entry[:0], gap, s.tick())
		if s.last == 0 || gap > mostGap || int(c.at(s.last).n)+len(text) > len(c.at(s.last).data) {
			i := c.take()
			if s.last == 0 {
				s.first = i
			} else {
				c.at(s.last).next = i
			}
			s.last = i
			c.at(i).slot = s.slot
			text = appendEntry(entry[:0], 0, s.tick())
		}
		f := c.at(s.last)
		f.n += uint8(copy(f.data[f.n:], text))
	}
	for s.first != s.last && c.at(c.at(s.first).next).slot+HourSlots <= s.slot+1 {
		next := c.at(s.first).next
		c.give(s.first, next)
		s.first = next
	}
	s.requests, s.refused, s.elsewhere, s.tokens = 0, 0, 0, 0
}

// tick rounds the current slot to whole numbers. A slot in which anything happened has at least 1
// request.
func (s *series) tick() tick {
	t := tick{slot: s.slot, requests: max(1, toCount(float64(s.requests)))}
	t.refused = min(t.requests, toCount(float64(s.refused)))
	t.elsewhere = min(t.requests-t.refused, toCount(float64(s.elsewhere)))
	t.tokens = toCount(s.tokens)
	return t
}

// drop forgets the whole history.
func (s *series) drop(c *cells) {
	if s.first != 0 {
		c.give(s.first, 0)
	}
	*s = series{}
}

// appendEntry encodes a slot. Most clients have few requests in a slot, which takes a byte or two.
// Gap is the distance in slots to the entry before; 0 stands for the first entry of a cell.
func appendEntry(to []byte, gap uint32, t tick) []byte {
	head := t.requests << 4
	if gap > 1 {
		head |= 1
	}
	if t.refused > 0 {
		head |= 2
	}
	if t.tokens != t.asked() {
		head |= 4
	}
	if t.elsewhere > 0 {
		head |= 8
	}
	to = binary.AppendUvarint(to, head)
	if gap > 1 {
		to = binary.AppendUvarint(to, uint64(gap))
	}
	if t.refused > 0 {
		to = binary.AppendUvarint(to, t.refused)
	}
	if t.tokens != t.asked() {
		to = binary.AppendUvarint(to, t.tokens)
	}
	if t.elsewhere > 0 {
		to = binary.AppendUvarint(to, t.elsewhere)
	}
	return to
}

// mostCount bounds the numbers of a slot, and mostGap the gap between two entries of a cell, so
// that an entry never has more than the 23 bytes of a cell.
const (
	mostCount = 1<<35 - 1
	mostGap   = 1<<14 - 1
)

func toCount(n float64) uint64 { return uint64(min(math.Round(n), mostCount)) }

// tick is a slot of a history.
type tick struct {
	slot                                 uint32
	requests, refused, elsewhere, tokens uint64
}

// asked returns how many requests asked this rule for tokens, whether the rule refused them or not.
func (t tick) asked() uint64 { return t.requests - t.elsewhere }

// readEntries decodes entries, of which the first belongs to the given slot. It returns false for
// malformed text.
func readEntries(text []byte, slot uint32, tell func(tick)) bool {
	for first := true; len(text) > 0; first = false {
		ok := true
		next := func() uint64 {
			n, size := binary.Uvarint(text)
			if size <= 0 || n > mostCount<<4|15 {
				ok, text = false, nil
				return 0
			}
			text = text[size:]
			return n
		}
		head := next()
		t := tick{requests: head >> 4}
		gap := uint64(1)
		if head&1 != 0 {
			gap = next()
		}
		if head&2 != 0 {
			t.refused = next()
		}
		if head&4 != 0 {
			t.tokens = next()
		}
		if head&8 != 0 {
			t.elsewhere = next()
		}
		if !first {
			if gap < 1 || gap > math.MaxUint32-uint64(slot) {
				return false
			}
			slot += uint32(gap)
		}
		if t.slot = slot; !ok || t.requests > mostCount || t.refused > t.requests || t.elsewhere > t.requests-t.refused || t.tokens > mostCount {
			return false
		}
		if head&4 == 0 {
			t.tokens = t.asked()
		}
		tell(t)
	}
	return true
}

func lastSlot(f *cell) (slot uint32) {
	readEntries(f.data[:f.n], f.slot, func(t tick) { slot = t.slot })
	return slot
}

// since calls tell with each slot from oldest on, the oldest first.
func (s *series) since(c *cells, oldest uint32, tell func(tick)) {
	for i := s.first; i != 0; i = c.at(i).next {
		f := c.at(i)
		readEntries(f.data[:f.n], f.slot, func(t tick) {
			if t.slot >= oldest {
				tell(t)
			}
		})
	}
	if s.requests > 0 && s.slot >= oldest {
		tell(s.tick())
	}
}
