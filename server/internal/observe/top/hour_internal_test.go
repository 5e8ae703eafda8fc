package top

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"
)

// newTestHour returns an hour without rules.
func newTestHour() (h *hour, now time.Time) {
	all := newHour()
	now = time.Unix(2_000_000_000, 0)
	all.advance(now, newKey(nil), nil)
	return &all, now
}

// lowest returns the key of a rule with the lowest count.
func (h *hour) lowest(rule string) *row {
	return slices.MinFunc(slices.Collect(maps.Values(h.rules[rule].rows)), func(a, b *row) int { return cmp.Compare(a.count, b.count) })
}

// TestNumbersAreClamped checks that whatever is counted, a slot's numbers can be packed and read again.
func TestNumbersAreClamped(t *testing.T) {
	var s series
	held := 0
	for i, n := range []amount{{1e30, 1e30, 1e30, 1e300}, {0.2, 0, 0, 0.2}, {1, 5, 0, math.Inf(1)}, {3, 1, 1, 7}, {0.2, 0.2, 0, 0}, {3, 1, 5, 0}} {
		s.add(&held, uint32(100+2*i), n)
	}
	var got []tick
	s.since(0, func(t tick) { got = append(got, t) })
	want := []tick{{100, mostCount, mostCount, 0, mostCount}, {102, 1, 0, 0, 0}, {104, 1, 1, 0, mostCount}, {106, 3, 1, 1, 7}, {108, 1, 0, 0, 0}, {110, 3, 1, 2, 0}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if b := s.past(102); !tells(b, &sum{9, 3}) {
		t.Errorf("other nodes would reject %x", b)
	}
}

// TestSumsStayRight checks that the sums of keys, bytes and rules stay right when keys replace others.
func TestSumsStayRight(t *testing.T) {
	h, now := newTestHour()
	for i := range 40 {
		at := now.Add(time.Duration(i) * HourSlot)
		h.advance(at, h.key, nil)
		for j := range 200 {
			h.keep = 20
			h.count(&charged{rule: fmt.Sprint("r", j%5), tokens: 9, would: j%2 == 0}, fmt.Appendf(nil, "\x00sk_prod_of_some_length_%d", j*(i+1)%700), 1, at)
		}
	}
	rows, held := 0, 0
	for _, r := range h.rules {
		rows, held = rows+len(r.rows), held+cap(r.total.entries)+cap(r.would.entries)
		for _, k := range r.rows {
			held += cap(k.subject) + cap(k.entries)
		}
	}
	if h.rows < 75 || h.rows > 100 || rows != h.rows || h.held < 100 || h.held != held {
		t.Errorf("%d rows, %d in the maps, %d bytes of %d", h.rows, rows, h.held, held)
	}
	for len(h.rules) > 0 {
		h.forgetRules()
	}
	if h.rows != 0 || h.held != 0 {
		t.Errorf("after all rules were forgotten, %d rows and %d bytes are left", h.rows, h.held)
	}
	// An hour without requests, in which buffers are emptied many times, forgets them all.
	now = now.Add(40 * HourSlot)
	h.advance(now, h.key, nil)
	h.count(&charged{rule: "r", tokens: 1}, []byte("\x00a"), 1, now)
	for i := range 3 * HourSlots {
		if h.advance(now.Add(time.Duration(i)*HourSlot), h.key, nil); i < HourSlots && h.rows != 1 {
			t.Fatalf("after %d slots it is forgotten", i)
		}
	}
	if h.rows != 0 {
		t.Errorf("%d rows of hours ago are left", h.rows)
	}
	// A key that never pauses takes no more memory than one hour needs, and a pause frees the memory.
	var s series
	bytes := 0
	for i := range 10 * HourSlots {
		s.add(&bytes, uint32(i), amount{1, 0, 0, 1})
	}
	if bytes != cap(s.entries) || bytes > 2*HourSlots {
		t.Errorf("an hour takes %d bytes, but %d are counted", cap(s.entries), bytes)
	}
	s.add(&bytes, 12*HourSlots, amount{1, 0, 0, 1})
	s.add(&bytes, 12*HourSlots+1, amount{1, 0, 0, 1})
	s.add(&bytes, 14*HourSlots, amount{1, 0, 0, 1})
	if bytes != cap(s.entries) || bytes > HourSlots/4 {
		t.Errorf("%d bytes are used after a pause, but %d are counted", cap(s.entries), bytes)
	}
}

// TestTheBusiestKeys checks that a new key takes over the count of the key that it replaces, that older requests
// count less, and that more keys are kept once there is memory again.
func TestTheBusiestKeys(t *testing.T) {
	h, now := newTestHour()
	count := func(key string, n int) {
		for range n {
			h.count(&charged{rule: "r", tokens: 1}, []byte("\x00"+key), 1, now)
		}
	}
	lowest := func() (uint64, float64) {
		k := h.lowest("r")
		return k.id, k.count
	}
	h.keep = 2
	count("a", 5)
	count("b", 3)
	count("c", 1)
	if id, n := lowest(); id != h.key.subject([]byte("\x00c")) || n != 4 {
		t.Errorf("the lowest has %v, want c with 4", n)
	}
	now = now.Add((2*halved - 1) * HourSlot) // a is just within the hour
	h.advance(now, h.key, nil)
	count("c", 2) // as many requests as a
	if id, _ := lowest(); id != h.key.subject([]byte("\x00a")) {
		t.Error("requests of an hour ago count as much as new ones")
	}
	if h.keep != 3 {
		t.Errorf("%d keys are kept, want one more", h.keep)
	}
	count("d", 1)
	if n := len(h.rules["r"].rows); n != 3 {
		t.Errorf("there are %d keys", n)
	}
}

// TestCountsAreScaledDown checks that counts are scaled down in proportion when they grow too large, so that a new key
// doesn't rank last because of it.
func TestCountsAreScaledDown(t *testing.T) {
	h, now := newTestHour()
	for range 64*halved/100 + 2 {
		now = now.Add(100 * HourSlot)
		h.advance(now, h.key, nil)
		h.count(&charged{rule: "r", tokens: 1}, []byte("\x00a"), 1, now)
	}
	for range 10 {
		h.count(&charged{rule: "r", tokens: 1}, []byte("\x00b"), 1, now)
	}
	if k := h.lowest("r"); len(h.rules["r"].rows) != 2 || k.id != h.key.subject([]byte("\x00a")) {
		t.Errorf("the lowest has %v", k.count)
	}
}

// TestSketchesInPart checks that sketches of different sizes are merged over the part that all of them cover, each key
// in the highest class that any sketch has.
func TestSketchesInPart(t *testing.T) {
	each := float64(1<<32) / 12
	n := union([]sketched{{100, []uint32{4 | 3, 8 | 1}}, {100, []uint32{4 | 1, 8 | 1, 12 | 1, 16 | 1}}})
	if n != [4]float64{0, each, 0, each} {
		t.Errorf("%v, want %v of the first and of the third class", n, each)
	}
	h, r, k := hour{}, hourRule{}, row{used: 200, at: 900_000, full: 1000}
	for at, want := range map[int64]uint8{900: 200, 950: 100, 1000: 0, 1001: 0, 5000: 0} {
		if got := h.usedNow(&r, &k, time.Unix(at, 0)); got != want {
			t.Errorf("%d of a bucket is used after %d s, want %d", got, at-900, want)
		}
	}
}

// TestKeptRequestsAreNoMoreThanAll checks that the kept keys don't have more requests than the rule, although each number is
// rounded.
func TestKeptRequestsAreNoMoreThanAll(t *testing.T) {
	h, now := newTestHour()
	for _, key := range []string{"a", "b", "c"} {
		h.count(&charged{rule: "r", tokens: 1}, []byte("\x00"+key), 0.6, now)
	}
	if got, _ := h.tell(h.rules["r"], question{ofRule, "r"}, alone, alone, now); got.Kept != 2 || got.Sum.Requests != 2 || len(got.Rows) != 3 {
		t.Errorf("%+v", got)
	}
	// An answer also has no more rows than fit.
	if got, _ := h.tell(h.rules["r"], question{ofRule, "r"}, 1, alone, now); len(got.Rows) != 1 || got.Keys.N != 3 {
		t.Errorf("%+v", got)
	}
}

// TestKeysOfSeveralNodes checks that a key on several nodes becomes one row with the sums of all and with what any of
// them knows.
func TestKeysOfSeveralNodes(t *testing.T) {
	past := func(slot uint32) []byte {
		var s series
		s.add(new(int), slot, amount{2, 1, 0, 2})
		return s.past(0)
	}
	const first = 1000
	row := func(used uint8, at int64, special bool, slot uint32) *toldRule {
		return &toldRule{Sum: sum{4, 2}, Kept: 2, Would: 3, Rows: []toldRow{{named: named{ID: 7 << 32}, Sum: sum{2, 1}, Used: used, At: at, Special: special, Past: past(slot)}}}
	}
	parts := []*toldRule{row(250, 1, false, first), row(200, 9, true, first+HourSlots-1), row(30, 3, false, first-1), row(20, 2, false, first+HourSlots)}
	rule, rows := mergeRule("r", parts, false), mergeRows(parts)
	if rule.Requests != 16 || rule.Refused != 8 || rule.WouldRefuse != 12 || rule.Coverage != 0.5 {
		t.Errorf("%+v", rule)
	}
	if len(rows) != 1 || rows[0].Sum != (sum{8, 4}) || rows[0].Used != 200 || !rows[0].Special {
		t.Fatalf("%+v", rows)
	}
	span, all := Span{first: first}, newPast()
	span.addTo(&all, rows[0].pasts...)
	for i, n := range all.Requests {
		if want := map[int]uint64{0: 2, HourSlots - 1: 2}[i]; n != want || all.Refused[i] != want/2 {
			t.Errorf("slot %d has %d", i, n)
		}
	}
	if got := coverage(1999, 2000, false); got != 0.999 {
		t.Errorf("1999 of 2000 are %v: 1 is all", got)
	}
	if got := coverage(5, 4, false); got != 1 {
		t.Errorf("5 of 4 are %v", got)
	}
	if got := coverage(4, 4, true); got != 0.999 {
		t.Errorf("the coverage of 4 of 4 is %v, although not all were looked at", got)
	}
}
