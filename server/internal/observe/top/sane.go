package top

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// What follows says what no node would tell. One number that isn't a rate would take the answer of all nodes with it.
const (
	mostRate = 1e12 // a second
	mostOne  = 1e9  // decisions that one stands for
	longest  = 1024 // bytes of a name
	aCentury = 100 * 365 * 24 * time.Hour
	// mostSum bounds what a node can have counted in an hour.
	mostSum = HourSlots * mostCount
)

// been reports whether a time can have been. Clocks differ.
func been(at, now time.Time) bool { return !at.After(now.Add(oldest)) && now.Sub(at) < aCentury }

// once is been, or never.
func once(at, now time.Time) bool { return at.IsZero() || been(at, now) }

// clean reports whether a name can be shown.
func clean(name string) bool {
	return len(name) <= longest && strings.IndexFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) < 0
}

func (r Rates) sane() bool {
	return r.Requests >= 0 && r.Requests <= mostRate && r.Refused >= 0 && r.Refused <= mostRate
}

func (c *listClient) sane() bool {
	return c.Rates.sane() && c.Lacks >= 0 && c.Lacks <= mostRate && clean(c.Client) && clean(c.Rule) && slices.Contains(kindNames[:], c.Kind)
}

func (r *listRule) sane(now time.Time) bool {
	return r.Rates.sane() && r.Shadow >= 0 && r.Shadow <= mostRate && clean(r.Rule) && once(r.LastHit, now) && once(r.LastRefusal, now)
}

func (s sum) sane() bool { return s.Refused <= s.Requests && s.Requests <= mostSum }

func (s *sketched) sane() bool {
	return s.N >= len(s.Low) && s.N <= hourRows && len(s.Low) <= perRule && slices.IsSorted(s.Low)
}

func (n *toldName) sane(q question) bool {
	return q.client != nil && uint32(n.ID>>32) == *q.client && n.ID != 0 && clean(n.Client) && clean(n.Kind) && len(n.Sealed) <= longest
}

func (r *toldRule) sane(now time.Time) bool {
	return clean(r.Rule) && once(r.Hit, now) && once(r.Refusal, now) && r.Sum.sane() && r.Kept <= r.Sum.Requests && r.Lacks <= r.Sum.Requests && r.Would <= mostSum &&
		r.Keys.sane() && r.Above.sane() && tells(r.Past, nil)
}

func (w *toldRow) sane() bool {
	return clean(w.Client) && clean(w.Kind) && w.Used <= usedAll && w.LowBy <= mostSum && tells(w.Past, &w.Sum)
}

// tells reports whether a history can be read, and is of that sum.
func tells(past []byte, of *sum) bool {
	if len(past) > 32*HourSlots {
		return false
	}
	var all sum
	ok := readPast(past, func(t tick) { all.add(sum{t.requests, t.refused}) })
	return ok && (of == nil || all == *of)
}
