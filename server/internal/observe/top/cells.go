package top

import (
	"encoding/binary"
	"math"
	"time"
)

const (
	// HourSlot is the time that one number of an hour's history stands for. Slots begin at the same moments on all nodes.
	HourSlot = 10 * time.Second
	// HourSlots is how many of them there are.
	HourSlots = 360
)

// cell is a piece of a history, or of a subject. Cells hold no pointers, so that a million of them are nothing to the garbage
// collector.
type cell struct {
	next int32  // of the same chain, or 0
	slot uint32 // of a history: that of the first entry
	n    uint8  // bytes in use
	data [23]byte
}

// slab is how many cells are allocated at a time.
const slab = 1 << 12

// cells are allocated as they are needed, up to a number, and are never given back to the runtime. Cell 0 isn't used: it stands for none.
type cells struct {
	slabs [][]cell
	free  int32 // a chain
	fresh int32 // the lowest that was never used
	used  int32
	most  int32
}

func (c *cells) at(i int32) *cell { return &c.slabs[i/slab][i%slab] }

// left is how many more there are.
func (c *cells) left() int32 { return c.most - c.used }

// take takes a cell. There must be one.
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

// give gives cells back, up to one that is kept, and clears them: nothing of a client's key stays longer than it must.
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

// write makes a chain of a text.
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

// read is the text of a chain, appended.
func (c *cells) read(to []byte, first int32) []byte {
	for ; first != 0; first = c.at(first).next {
		f := c.at(first)
		to = append(to, f.data[:f.n]...)
	}
	return to
}

// series is how much there was in each slot of an hour. Slots in which nothing was take no space. The slot that runs is here, those before
// are in cells.
type series struct {
	tokens            float64
	requests, refused float32
	elsewhere         float32
	slot              uint32 // that the numbers above are of
	first, last       int32
}

// add counts in a slot, which is never older than the last one. There must be two free cells.
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

// amount is how much there was. Requests that another rule refused are elsewhere: they took no token here, and none is counted of them.
type amount struct{ requests, refused, elsewhere, tokens float64 }

// flush writes the slot that ran into a cell, and forgets what is older than an hour.
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

// tick is the slot that runs, in whole numbers. One that stands for a slot with anything is at least 1.
func (s *series) tick() tick {
	t := tick{slot: s.slot, requests: max(1, toCount(float64(s.requests)))}
	t.refused = min(t.requests, toCount(float64(s.refused)))
	t.elsewhere = min(t.requests-t.refused, toCount(float64(s.elsewhere)))
	t.tokens = toCount(s.tokens)
	return t
}

// drop forgets all of it.
func (s *series) drop(c *cells) {
	if s.first != 0 {
		c.give(s.first, 0)
	}
	*s = series{}
}

// appendEntry appends the numbers of a slot. Most have a request or few in each slot, and take a byte or two. The gap is how many slots
// after the entry before it is; 0 is for the first one of a cell.
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

// mostCount bounds every number of a history, and mostGap how far an entry is from the one before in its cell, so that one, of 23 bytes at
// most, always fits into a cell.
const (
	mostCount = 1<<35 - 1
	mostGap   = 1<<14 - 1
)

func toCount(n float64) uint64 { return uint64(min(math.Round(n), mostCount)) }

// tick is what was in a slot.
type tick struct {
	slot                                 uint32
	requests, refused, elsewhere, tokens uint64
}

// asked is how many requests asked this rule for tokens: it refused them, or they took theirs.
func (t tick) asked() uint64 { return t.requests - t.elsewhere }

// readEntries tells the entries of a text, of which the first is of the given slot. It reports false for a text that is none.
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

// since tells all slots from the given one on, the oldest first.
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
