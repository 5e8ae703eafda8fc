package top

import (
	"crypto/cipher"
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestAnswersHaveTheirSize checks that an answer doesn't exceed its size, however much a node remembers, and that it
// leaves out the least important part.
func TestAnswersHaveTheirSize(t *testing.T) {
	top := New(Options{})
	now := time.Now()
	top.mu.Lock()
	top.hour.advance(now, top.key.Load(), nil)
	top.hour.slot -= 300
	for j := range 300 {
		top.hour.slot++
		for i := range 1000 {
			if j >= i/5 {
				top.hour.count(&charged{rule: "busy", tokens: int64(1 + j%7), refused: j%3 == 0}, fmt.Appendf(nil, "\x00sk_%04d", i), float64(1+j%5), now)
			}
		}
	}
	for i := range 9000 {
		for range 1 + i%3 {
			top.hour.count(&charged{rule: fmt.Sprint("rule-", i), tokens: 1, used: uint8(i % 251), full: time.Hour}, fmt.Appendf(nil, "\x00sk_%d", i), float64(1+i), now)
		}
	}
	top.mu.Unlock()
	for _, most := range []int{leastTold, 80 << 10, mostTold} {
		for _, q := range []question{{kind: ofRules}, {ofRule, "busy"}} {
			b, err := top.packTold(q, "n", most, nil)
			var got told
			left := unpacked * most
			if err == nil {
				got, err = unpackTold(b, &left, q, time.Now(), time.Time{})
			}
			if err != nil || len(b) > most {
				t.Fatalf("%s within %d: %d bytes: %v", q, most, len(b), err)
			}
			t.Logf("%s within %d: %d bytes for %d rules and %d keys", q, most, len(b), len(got.Rules), len(got.Rules[0].Rows))
			if q.kind == ofRules {
				if got.Left+len(got.Rules) != 9001 || len(got.Rules) < 30 || most == mostTold && got.Left > 0 {
					t.Errorf("%d rules are reported, and %d left out", len(got.Rules), got.Left)
				}
				if got.Left > 0 && !slices.ContainsFunc(got.Rules, func(r toldRule) bool { return r.Rule == "busy" }) {
					t.Error("the busiest rule is left out")
				}
				continue
			}
			if r := got.Rules[0]; len(r.Rows) < 20 || r.Rows[0].Sum.Requests < r.Rows[len(r.Rows)-1].Sum.Requests || r.Kept != r.Sum.Requests || r.Keys.N != 1000 {
				t.Errorf("%d keys: %+v", len(r.Rows), r.Sum)
			}
		}
	}
}

// TestKeysOverNodesAreCountedOnce checks that a key on several nodes is counted once, even if the nodes report only a
// part of their keys.
func TestKeysOverNodesAreCountedOnce(t *testing.T) {
	nodes := make([][]uint32, 5)
	k := newKey([]byte("0123456789abcdef"))
	for i := range 3000 { // each on two nodes
		id := uint32(k.subject(fmt.Append(nil, i))>>32) &^ 3
		nodes[i%5] = append(nodes[i%5], id|1)
		nodes[(i+1)%5] = append(nodes[(i+1)%5], id|uint32(1+i%3))
	}
	for _, most := range []int{1 << 20, 200} {
		var all []sketched
		for _, n := range nodes {
			all = append(all, sketchOf(slices.Clone(n), most))
		}
		n := union(all)
		sum := n[1] + n[2] + n[3]
		if off := sum/3000 - 1; off > 0.1 || off < -0.1 || most > 3000 && sum != 3000 && len(all[0].Low) == all[0].N {
			t.Errorf("of %d each: %.0f keys, want 3000", most, sum)
		}
		if off := n[3]/1000 - 1; off > 0.2 || off < -0.2 {
			t.Errorf("of %d each: %.0f of the highest class, want 1000", most, n[3])
		}
	}
	if n := union([]sketched{{N: 5}, {N: 2, Low: []uint32{4, 8}}}); n[0] != 0 {
		t.Errorf("a node that reports no names makes it %v", n)
	}
}

// TestNamesMustMatchTheirHash checks that a client with access to Redis can't have another key shown as a client's.
func TestNamesMustMatchTheirHash(t *testing.T) {
	k := newKey([]byte("0123456789abcdef"))
	mine, theirs := newBox([]byte("mine"), k.secret), newBox([]byte("theirs"), k.secret)
	who := Identity{"api_key", "sk_prod_1"}
	sealed := func(box cipher.AEAD, value string) told {
		out := told{Names: []toldName{{named: named{k.hash(who), "", "api_key"}, value: value}}}
		out.seal(box)
		out.Names[0].value = ""
		return out
	}
	for name, c := range map[string]struct {
		told told
		want string
	}{
		"as it is":     {sealed(mine, who.Value), who.Value},
		"another key":  {sealed(mine, "sk_prod_2"), ""},
		"other tokens": {sealed(theirs, who.Value), ""},
		"no tokens":    {sealed(nil, who.Value), ""},
		"nothing":      {told{Names: []toldName{{named: named{ID: 1}, Sealed: []byte("x")}}}, ""},
	} {
		c.told.open(mine, k)
		if got := c.told.Names[0].value; got != c.want {
			t.Errorf("%s: %q is believed", name, got)
		}
	}
	// An answer with a client for another fingerprint isn't accepted.
	id := k.hash(who)
	for q, good := range map[question]bool{{ofClient, fingerprint(id)}: true, {ofClient, fingerprint(id + 1<<32)}: false, {ofRule, "r"}: false} {
		if name := sealed(mine, who.Value).Names[0]; name.sane(q) != good {
			t.Errorf("%s is taken for an answer to %s", fingerprint(id), q)
		}
	}
	two := []told{{Names: []toldName{{named: named{ID: 1 << 32}, value: "a"}}}, {Names: []toldName{{named: named{ID: 1<<32 | 1}, value: "b"}}}}
	if _, err := nameOf(two); err != ErrAmbiguousClient {
		t.Error(err)
	}
}

// TestTheClock checks that counts older than an hour are forgotten, that a clock that steps back by some seconds
// changes nothing, and that a larger step forgets everything.
func TestTheClock(t *testing.T) {
	h, k := newHour(), newKey(nil)
	now := time.Unix(2_000_000_000, 0)
	count := func(at time.Time) {
		h.advance(at, k, nil)
		h.count(&charged{rule: "r", tokens: 1}, []byte("\x00a"), 1, at)
	}
	count(now)
	count(now.Add(30 * time.Minute))
	count(now.Add(30*time.Minute - 20*time.Second)) // counts as now
	r := h.rules["r"]
	if got := h.sumOf(&r.total).Requests; got != 3 {
		t.Errorf("%d requests", got)
	}
	count(now.Add(65 * time.Minute))
	if got := h.sumOf(&r.total).Requests; got != 3 {
		t.Errorf("after an hour there are %d requests", got)
	}
	count(now)
	if got := h.sumOf(&h.rules["r"].total).Requests; got != 1 || h.rows != 1 {
		t.Errorf("after a step back by an hour there are %d requests", got)
	}
	count(now.Add(1000 * time.Hour))
	if got := h.sumOf(&h.rules["r"].total).Requests; got != 1 || h.rows != 1 {
		t.Errorf("after a step of weeks there are %d requests", got)
	}
	// The busiest keys stay the busiest when counts are scaled down.
	for i := range 2 * 64 * halved / 100 {
		at := now.Add(1000*time.Hour + time.Duration(i)*100*HourSlot)
		count(at)
		if i%2 == 0 {
			h.count(&charged{rule: "r", tokens: 1}, []byte("\x00b"), 1, at)
		}
	}
	if low := h.lowest("r"); len(h.rules["r"].rows) != 2 || low.id != k.subject([]byte("\x00b")) || !(low.count < 1e20) {
		t.Errorf("%+v", low)
	}
}
