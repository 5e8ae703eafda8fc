package redisstore

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
)

// naming is a store that records the name of the key that each charge would have in Redis.
type naming struct {
	counter.Store
	namer *namer
	names []string
	tags  []int
}

func (n *naming) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	for i := range charges {
		name, tag := n.namer.subject(&charges[i].Counter)
		n.names, n.tags = append(n.names, name), append(n.tags, tag)
	}
	n.Store.Take(ctx, charges, results)
}

func hostileRules(t testing.TB) *weir.RuleSet {
	t.Helper()
	limit := counter.Limit{Count: 1, Window: time.Hour}
	rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "pair", By: []string{"user", "org"}, Limits: []counter.Limit{limit}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// hostile has the pieces of which hostile values are made.
var hostile = []string{
	":", "{", "}", "{}", "\x00", "\r\n", "\n", "*", "?", "[", " ", "\\", "\xff", "\x01", "\x80", "%3A", "|", ",", "/", "=",
	"a", "A", "b", "\u0430", "\uff41", "\u00e1", "a\u0301", "\u200b", "\u202e", "weir{0}", "{nodes}", "{nodes}secret", "once:", "probe",
	"sk_prod_", "\x02\x00", "\x00\x02", strings.Repeat("a", 127), strings.Repeat("a", 128),
}

// hostilePair is two pairs of values that a careless encoding would confuse.
func hostilePair(r *rand.Rand, i int) (a, b [2]string) {
	text := func(n int) (s string) {
		for range n {
			s += hostile[r.IntN(len(hostile))]
		}
		return s
	}
	id := fmt.Sprintf("%x", i)
	x, y, z := text(1+r.IntN(3))+id, text(1+r.IntN(2)), text(1+r.IntN(3))
	switch r.IntN(6) {
	case 0: // the same run of bytes, cut elsewhere
		return [2]string{x + y, z}, [2]string{x, y + z}
	case 1: // the values swapped
		return [2]string{x, "_" + z}, [2]string{"_" + z, x}
	case 2: // one begins with the other
		return [2]string{x, z}, [2]string{x + y, z}
	case 3: // a length that reads as a part of the value
		n := byte(r.IntN(256))
		return [2]string{x + string([]byte{n}), z}, [2]string{x, string([]byte{n}) + z}
	case 4: // look-alikes
		return [2]string{x + "a", z}, [2]string{x + "\u0430", z}
	}
	return [2]string{x + ":" + y, z}, [2]string{x, y + ":" + z}
}

// identity tells subjects apart without using the code under test.
func identity(v [2]string) uint64 { return maphash.Comparable(identitySeed, v) }

var identitySeed = maphash.MakeSeed()

type named struct {
	name [16]byte
	who  uint64
}

func TestHostileSubjectsHaveNamesOfTheirOwn(t *testing.T) {
	const pairs = 1_000_000 / slowness
	n := &naming{Store: memstore.New(memstore.Options{}), namer: newNamer("weir", []byte("secret"))}
	limiter := weir.NewLimiter(n, hostileRules(t), weir.Options{})
	random := rand.New(rand.NewPCG(*seed, 1))
	seen := make([]named, 0, 2*pairs)
	var perTag [tags]float64
	for i := range pairs {
		a, b := hostilePair(random, i)
		n.names, n.tags = n.names[:0], n.tags[:0]
		for _, v := range [][2]string{a, b} {
			if _, err := limiter.Check(t.Context(), &weir.Request{User: v[0], Org: v[1]}); err != nil {
				t.Fatal(err)
			}
		}
		if len(n.names) != 2 || n.names[0] == n.names[1] {
			t.Fatalf("%q and %q are %q", a, b, n.names)
		}
		for j, v := range [][2]string{a, b} {
			hash := nameHash(t, n.names[j], n.tags[j])
			if len(v[0]) > 8 && strings.Contains(n.names[j], v[0]) {
				t.Fatalf("%q shows %q", n.names[j], v[0])
			}
			seen = append(seen, named{hash, identity(v)})
			perTag[n.tags[j]]++
		}
	}
	slices.SortFunc(seen, func(a, b named) int { return bytes.Compare(a.name[:], b.name[:]) })
	for i := range seen[1:] {
		if seen[i].name == seen[i+1].name && seen[i].who != seen[i+1].who {
			t.Fatalf("two subjects share the name %x", seen[i].name)
		}
	}
	evenly(t, perTag[:], float64(len(seen)))
}

// nameHash returns the hash in a name. All other parts of a name are fixed.
func nameHash(t testing.TB, name string, tag int) (hash [16]byte) {
	rest, ok := strings.CutPrefix(name, "weir{"+tagNames[tag]+"}")
	if b, err := base64.RawURLEncoding.Strict().DecodeString(rest); !ok || err != nil || len(b) != 16 {
		t.Fatalf("a strange name: %q", name)
	} else {
		copy(hash[:], b)
	}
	return hash
}

// evenly fails unless the counts look like those of a fair die: a chi-square that is 8 standard deviations from its mean isn't
// bad luck.
func evenly(t *testing.T, counts []float64, total float64) {
	t.Helper()
	expected, chi := total/float64(len(counts)), 0.0
	for _, n := range counts {
		chi += (n - expected) * (n - expected) / expected
	}
	freedom := float64(len(counts) - 1)
	if bound := freedom + 8*math.Sqrt(2*freedom); chi > bound {
		t.Errorf("chi-square %.0f over %d tags, want at most %.0f", chi, len(counts), bound)
	}
}

func TestRawSubjectsHaveNamesOfTheirOwn(t *testing.T) {
	n := newNamer("weir", []byte("secret"))
	p, q := policy(t, "p", counter.TokenBucket, 1, time.Hour), policy(t, "q", counter.TokenBucket, 1, time.Hour)
	l, m := policy(t, "p", counter.SlidingLog, 1, time.Hour), policy(t, "q", counter.SlidingLog, 1, time.Hour)
	if field(p) == field(q) {
		t.Error("two policies share a field")
	}
	seen := map[string]string{}
	name := func(p *counter.Policy, subject string) {
		t.Helper()
		key, _ := n.subject(&counter.Counter{Policy: p, Subject: []byte(subject)})
		who := fmt.Sprintf("%q", subject)
		if p.Limit.Algorithm == counter.SlidingLog {
			who += p.Name // a log is a key of its own, other counters share the subject's
		}
		if other, taken := seen[key]; taken && other != who {
			t.Fatalf("%s and %s share the name %q", who, other, key)
		}
		seen[key] = who
	}
	subjects := []string{""}
	for _, a := range hostile {
		subjects = append(subjects, a)
		for _, b := range hostile {
			subjects = append(subjects, a+b)
		}
	}
	for i := range 70_000 { // every length, of the same byte
		if i < 300 || i%997 == 0 {
			subjects = append(subjects, strings.Repeat("\x00", i+1))
		}
	}
	for _, s := range subjects {
		for _, p := range []*counter.Policy{p, q, l, m} {
			name(p, s)
		}
	}
	o := n.once(counter.Once{1}, 0)
	if n.probe(0) == o || seen[o] != "" || seen[n.probe(0)] != "" {
		t.Error("a mark or a probe shares a name with a subject")
	}
}

func TestAnotherSecretAndPrefixAreOtherNames(t *testing.T) {
	p := policy(t, "p", counter.TokenBucket, 1, time.Hour)
	names := map[string]bool{}
	namers := []*namer{newNamer("weir", nil), newNamer("weir", []byte("a")), newNamer("weir", []byte("b")), newNamer("weir", []byte("a\x00")), newNamer("other", []byte("a"))}
	for _, n := range namers {
		for i := range 1000 {
			name, _ := n.subject(&counter.Counter{Policy: p, Subject: fmt.Appendf(nil, "key-%d", i)})
			if names[name] {
				t.Fatalf("%q stands for two subjects", name)
			}
			names[name] = true
		}
	}
}

// TestTagsFillAClusterEvenly asks Redis where keys belong.
func TestTagsFillAClusterEvenly(t *testing.T) {
	r := redistest.NewCluster(t, redistest.Options{}).Nodes[0]
	n := newNamer("weir", []byte("secret"))
	var at []int
	for tag := range tags {
		key := n.probe(tag)
		slot := int(do(t, r, "CLUSTER", "KEYSLOT", key).(int64))
		if slot != slotOf(tagNames[tag]) || slot*tags/slots != tag {
			t.Fatalf("%q lies in slot %d, expected %d in run %d", key, slot, slotOf(tagNames[tag]), tag)
		}
		at = append(at, slot)
	}
	for shards := 1; shards <= 100; shards++ {
		counts := make([]int, shards)
		for _, slot := range at {
			counts[slot*shards/slots]++
		}
		if low, high := slices.Min(counts), slices.Max(counts); high-low > 3 {
			t.Errorf("of %d shards one has %d tags and one %d", shards, low, high)
		}
	}
}

// TestHostileSubjectsShareNoCounter checks in a real Redis that every subject has a counter of its own.
func TestHostileSubjectsShareNoCounter(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	limiter := weir.NewLimiter(s, hostileRules(t), weir.Options{})
	random := rand.New(rand.NewPCG(*seed, 2))
	var all [][2]string
	known := map[[2]string]bool{}
	for i := range 2000 {
		a, b := hostilePair(random, i)
		for _, v := range [][2]string{a, b} {
			if !known[v] {
				known[v] = true
				all = append(all, v)
			}
		}
	}
	for _, want := range []bool{true, false} {
		storm(32, len(all), func(i int) bool {
			d, err := limiter.Check(t.Context(), &weir.Request{User: all[i][0], Org: all[i][1]})
			if err != nil || d.Allowed != want {
				t.Errorf("%q: allowed %v, want %v (%v)", all[i], d.Allowed, want, err)
			}
			return true
		})
	}
	lasting(t, r)
}
