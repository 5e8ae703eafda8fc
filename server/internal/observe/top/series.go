package top

import (
	"encoding/binary"
	"math"
	"slices"
	"time"
)

const (
	// HourSlot is the length of a slot in an hour's history. Slots start at the same moments on all
	// nodes.
	HourSlot = 10 * time.Second
	// HourSlots is how many slots an hour has.
	HourSlots = 360
)

// series is the last hour in slots of 10 seconds ([HourSlot]). Slots without requests take no
// memory. The struct's fields hold the current slot; earlier slots are packed.
type series struct {
	tokens            float64
	requests, refused float32
	elsewhere         float32
	slot              uint32 // the current slot, which the fields above describe
	packed
}

// packed holds encoded slots: see [appendEntry].
type packed struct {
	entries     []byte
	first, last uint32 // the slots of the first and last entry
}

func (p *packed) append(t tick) {
	gap := t.slot - p.last
	if len(p.entries) == 0 {
		p.first, gap = t.slot, 0
	}
	p.entries, p.last = appendEntry(p.entries, gap, t), t.slot
}

// add counts requests in a slot, which must not be older than the current one. It adds to held by
// how many bytes the series grew.
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

// amount is what a slot counts. elsewhere counts requests that another rule refused, so they took
// no tokens here; tokens doesn't include those requests.
type amount struct{ requests, refused, elsewhere, tokens float64 }

// flush packs the current slot. If there are enough slots older than an hour, it forgets them.
func (s *series) flush() {
	if s.requests > 0 {
		s.append(s.tick())
	}
	s.requests, s.refused, s.elsewhere, s.tokens = 0, 0, 0, 0
	if len(s.entries) > 0 && s.first+HourSlots+HourSlots/8 < s.slot {
		kept := packed{entries: s.entries[:0]} // never longer than what it overwrites
		s.since(s.slot-HourSlots+1, kept.append)
		if len(kept.entries) < cap(kept.entries)/4 {
			kept.entries = slices.Clone(kept.entries)
		}
		s.packed = kept
	}
}

// tick rounds the current slot to whole numbers. If anything happened in it, it has at least 1
// request.
func (s *series) tick() tick {
	t := tick{slot: s.slot, requests: max(1, toCount(float64(s.requests)))}
	t.refused = min(t.requests, toCount(float64(s.refused)))
	t.elsewhere = min(t.requests-t.refused, toCount(float64(s.elsewhere)))
	t.tokens = toCount(s.tokens)
	return t
}

// appendEntry encodes a slot. Most clients have few requests in a slot, which then takes a byte or
// two. Gap is the distance in slots from the previous entry, and 0 for the first entry. The low
// bits of the first number say which other numbers follow.
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

// mostCount limits the numbers of a slot.
const mostCount = 1<<35 - 1

func toCount(n float64) uint64 { return uint64(min(math.Round(n), mostCount)) }

// tick is a slot of a history.
type tick struct {
	slot                                 uint32
	requests, refused, elsewhere, tokens uint64
}

// asked returns how many requests needed tokens from this rule, including those that it refused.
func (t tick) asked() uint64 { return t.requests - t.elsewhere }

// readEntries calls tell with each encoded slot. The first entry is that of slot. It returns false
// if the text is malformed.
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

// since calls tell with each slot from oldest on, in order of time.
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

// past encodes the slots from oldest on for other nodes: the number of the first slot in four
// bytes, and then the entries.
func (s *series) past(oldest uint32) []byte {
	var p packed
	s.since(oldest, p.append)
	if len(p.entries) == 0 {
		return nil
	}
	return append(binary.BigEndian.AppendUint32(nil, p.first), p.entries...)
}

// readPast decodes what past has encoded.
func readPast(b []byte, tell func(tick)) bool {
	if len(b) == 0 {
		return true
	}
	return len(b) > 4 && readEntries(b[4:], binary.BigEndian.Uint32(b), tell)
}
