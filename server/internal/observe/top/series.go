package top

import (
	"encoding/binary"
	"math"
	"slices"
	"time"
)

const (
	// HourSlot is the length of a slot in the history of an hour. On all nodes, slots begin at the same times.
	HourSlot = 10 * time.Second
	// HourSlots is how many slots an hour has.
	HourSlots = 360
)

// series has the last hour in slots of 10 seconds ([HourSlot]). Slots without requests take no memory. The fields of
// the struct are the current slot, and earlier slots are packed.
type series struct {
	tokens            float64
	requests, refused float32
	elsewhere         float32
	slot              uint32 // number of the current slot, which the fields above describe
	packed
}

// packed has encoded slots: see [appendEntry].
type packed struct {
	entries     []byte
	first, last uint32 // numbers of the slots of the first and the last entry
}

func (p *packed) append(t tick) {
	gap := t.slot - p.last
	if len(p.entries) == 0 {
		p.first, gap = t.slot, 0
	}
	p.entries, p.last = appendEntry(p.entries, gap, t), t.slot
}

// add adds to the counts of a slot, which must not be older than the current slot. It adds to held the number of bytes
// by which the series has grown.
func (s *series) add(held *int, slot uint32, n amount) {
	if slot != s.slot {
		before := cap(s.entries)
		s.flush()
		s.slot = slot
		*held += cap(s.entries) - before
	}
	s.requests += float32(n.requests)
	s.refused += float32(n.refused)
	s.elsewhere += float32(n.elsewhere)
	s.tokens += n.tokens
}

// amount has the counts of a slot. elsewhere is the number of requests that another rule refused, so that they took no
// tokens from this rule. tokens doesn't include these requests.
type amount struct{ requests, refused, elsewhere, tokens float64 }

// flush packs the current slot. If enough slots are older than an hour, it forgets them.
func (s *series) flush() {
	if s.requests > 0 {
		s.append(s.tick())
	}
	s.requests, s.refused, s.elsewhere, s.tokens = 0, 0, 0, 0
	if len(s.entries) > 0 && s.first+HourSlots+HourSlots/8 < s.slot {
		kept := packed{entries: s.entries[:0]} // it never gets longer than the entries that it overwrites
		s.since(s.slot-HourSlots+1, kept.append)
		if len(kept.entries) < cap(kept.entries)/4 {
			kept.entries = slices.Clone(kept.entries)
		}
		s.packed = kept
	}
}

// tick returns the current slot, rounded to whole numbers. If the slot has any requests, the number is at least 1.
func (s *series) tick() tick {
	t := tick{slot: s.slot, requests: max(1, toCount(float64(s.requests)))}
	t.refused = min(t.requests, toCount(float64(s.refused)))
	t.elsewhere = min(t.requests-t.refused, toCount(float64(s.elsewhere)))
	t.tokens = toCount(s.tokens)
	return t
}

// appendEntry encodes a slot. Most clients send few requests in a slot, which then takes one or two bytes. gap is the
// distance to the previous entry in slots, and 0 for the first entry. The low bits of the first number say which other
// numbers follow.
func appendEntry(to []byte, gap uint32, t tick) []byte {
	head := t.requests << 4
	others := make([]byte, 0, 4*binary.MaxVarintLen64)
	for i, o := range [...]struct{ value, usual uint64 }{{uint64(max(1, gap)), 1}, {t.refused, 0}, {t.tokens, t.asked()}, {t.elsewhere, 0}} {
		if o.value != o.usual {
			head |= 1 << i
			others = binary.AppendUvarint(others, o.value)
		}
	}
	return append(binary.AppendUvarint(to, head), others...)
}

// mostCount is the maximum of each number in a slot.
const mostCount = 1<<35 - 1

func toCount(n float64) uint64 { return uint64(min(math.Round(n), mostCount)) }

// tick is one slot of a history.
type tick struct {
	slot                                 uint32
	requests, refused, elsewhere, tokens uint64
}

// asked returns the number of requests that needed tokens from this rule, including those that the rule refused.
func (t tick) asked() uint64 { return t.requests - t.elsewhere }

// readEntries calls tell with each encoded slot. slot is the number of the first one. If the text is malformed, it
// returns false.
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
		t, gap := tick{requests: head >> 4}, uint64(1)
		for i, to := range [...]*uint64{&gap, &t.refused, &t.tokens, &t.elsewhere} {
			if head&(1<<i) != 0 {
				*to = next()
			}
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

// since calls tell, in order of time, with each slot that isn't older than oldest.
func (s *series) since(oldest uint32, tell func(tick)) {
	readEntries(s.entries, s.first, func(t tick) {
		if t.slot >= oldest {
			tell(t)
		}
	})
	if s.requests > 0 && s.slot >= oldest {
		tell(s.tick())
	}
}

// past encodes the slots that aren't older than oldest, for other nodes. The result has the number of the first slot in
// four bytes, followed by the entries.
func (s *series) past(oldest uint32) []byte {
	var p packed
	s.since(oldest, p.append)
	if len(p.entries) == 0 {
		return nil
	}
	return append(binary.BigEndian.AppendUint32(nil, p.first), p.entries...)
}

// readPast decodes the result of past.
func readPast(b []byte, tell func(tick)) bool {
	if len(b) == 0 {
		return true
	}
	return len(b) > 4 && readEntries(b[4:], binary.BigEndian.Uint32(b), tell)
}
