package redisstore

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

// packed encodes numbers in the given number of bytes each.
func packed(sizesAndNumbers ...int64) string {
	var b []byte
	for i := 0; i < len(sizesAndNumbers); i += 2 {
		b = appendUint(b, int(sizesAndNumbers[i]), sizesAndNumbers[i+1])
	}
	return string(b)
}

// TestFieldsOfOtherVersions checks that the formats of fields are fixed, since data in Redis outlives the version that wrote
// it, and other versions read it. A new format gets a number of its own, and is written only after the neighboring versions can
// read it.
func TestFieldsOfOtherVersions(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
	const code = 150
	at := now.UnixMicro()
	begin := at - at%time.Hour.Microseconds()
	const token = 1_000_000
	for _, c := range []struct {
		name      string
		algorithm counter.Algorithm
		count     int64
		field     string
		want      int64 // remaining
	}{
		{"small, of a token bucket", counter.TokenBucket, 10, packed(1, 241, 1, code, 7, at, 4, 7*token), 7},
		{"small, of a leaky bucket", counter.LeakyBucket, 10, packed(1, 241, 1, code, 7, at, 4, 3*token), 7},
		{"small, of a window", counter.FixedWindow, 10, packed(1, 241, 1, code, 7, begin, 4, 3), 7},
		{"large", counter.TokenBucket, 10_000, packed(1, 242, 1, code, 7, at, 7, 7_000*token), 7_000},
		{"large, below zero", counter.TokenBucket, 10_000, packed(1, 242, 1, code, 7, at, 7, -3*token), 0},
		{"a pair", counter.SlidingCounter, 10, packed(1, 243, 1, code, 7, begin, 4, 3, 4, 0), 7},
		{"a pair, with the window before", counter.SlidingCounter, 10, packed(1, 243, 1, code, 7, begin, 4, 0, 4, 10), 1},
		{"an account", counter.TokenBucket, 10, packed(1, 244, 1, code, 7, at, 7, 7*token, 5, 2, 5, 1, 7, at, 3, 99, 1, 4), 7},
		{"a log", counter.SlidingLog, 10, packed(5, 0, 5, 0, 1, 0, 5, 0, 7, at, 6, 3, 7, at, 6, 3), 7},
		// From before formats had numbers. No release wrote these, and such counters start over.
		{"12 bytes", counter.TokenBucket, 10, packed(1, code, 7, at, 4, 7*token), 10},
		{"15 bytes", counter.TokenBucket, 10, packed(1, code, 7, at, 7, 7*token), 10},
		{"16 bytes", counter.SlidingCounter, 10, packed(1, code, 7, begin, 4, 3, 4, 0), 10},
		{"26 bytes", counter.TokenBucket, 10, packed(1, code, 7, at, 7, 7*token, 5, 2, 5, 1, 1, 0), 10},
		// From a future version.
		{"another form", counter.TokenBucket, 10, packed(1, 246, 1, code, 7, at, 4, 7*token), 10},
	} {
		p := policy(t, c.name, c.algorithm, c.count, time.Hour)
		f := field(p)
		name := string(f[:])
		if c.algorithm == counter.SlidingLog {
			name = "h"
		}
		do(t, r, "HSET", keyOf(s, p, c.name), name, c.field)
		if got := take(t.Context(), s, peek1(p, c.name))[0]; got.Err != nil || got.Remaining != c.want {
			t.Errorf("%s: %d are left, want %d (%v)", c.name, got.Remaining, c.want, got.Err)
		}
	}
}

// TestHoldsOfOtherVersions does the same for holds.
func TestHoldsOfOtherVersions(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
	at := now.UnixMicro()
	mine := id(1)
	write := func(p *counter.Policy, form, n int64, more ...string) {
		records, ends := keysOf(s, p, p.Name)
		do(t, r, append([]string{"HSET", records, string(mine[:]), packed(1, form, 7, n, 7, at)}, more...)...)
		do(t, r, "ZADD", ends, fmt.Sprint(at+5_000_000), string(mine[:]))
	}

	p := slotted(t, "slots", 10, time.Minute)
	write(p, 246, 3, "s", packed(1, 249, 7, 3))
	if got := left(t, s, p, p.Name); got != 7 {
		t.Errorf("%d slots are left, want 7", got)
	}
	for _, c := range []struct {
		name       string
		form       int64
		left, late int64 // after 8 of 10 were taken and 2 of them used, in time, and after the end
	}{{"kept", 246, 8, 2}, {"goes back", 247, 8, 8}, {"went back", 248, 0, 2}} {
		for _, late := range []bool{false, true} {
			now = storetest.Start
			p := amounts(t, fmt.Sprint(c.name, late), counter.FixedWindow, 10, year)
			p = p.With(func(d *counter.Definition) { d.GivesBack = true })
			took := charge1(p, p.Name)
			took.N = 8_000_000
			at = take(t.Context(), s, took)[0].Slot
			write(p, c.form, 8_000_000)
			_, ends := keysOf(s, p, p.Name)
			do(t, r, "ZADD", ends, fmt.Sprint(now.UnixMicro()+5_000_000), string(mine[:]))
			want := c.left
			if late {
				now, want = now.Add(6*time.Second), c.late
			}
			settled := back(holding(p, p.Name, 8_000_000, 1), counter.Result{}, 2_000_000)
			if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{settled}); err != nil {
				t.Fatal(err)
			}
			if got := left(t, s, p, p.Name); got != want*1_000_000 {
				t.Errorf("%s: %d are left, want %d", p.Name, got, want)
			}
		}
	}
	n := newNamer("weir", []byte("secret"))
	counted := counter.Counter{Policy: p, Subject: []byte("s")}
	key, _ := n.subject(&counted)
	records, ends := (&charge{policy: p, key: key}).holdNames()
	if want := "weir{34}ZBotJQ3oImHeZfKzRGK5JQ/FivyTxtg"; records != want+".h" || ends != want+".e" {
		t.Errorf("holds are kept under %s and %s, want %s", records, ends, want)
	}
}

// TestNamesOfOtherVersions checks that names of keys are fixed. If another version named a counter differently, each client
// would have its limit twice while both versions run.
func TestNamesOfOtherVersions(t *testing.T) {
	rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "key", Limits: []counter.Limit{counter.PerMinute(10)}},
		{ID: "several", By: []string{"user", "ip", "org", "method", "tier"}, Algorithm: counter.LeakyBucket, Limits: []counter.Limit{counter.PerSecond(10), counter.PerHour(100)}},
		{ID: "window", By: []string{"ip"}, Algorithm: counter.FixedWindow, Limits: []counter.Limit{counter.PerHour(10)}},
		{ID: "counter", By: []string{"header:X-Tenant", "endpoint"}, Match: weir.Match{Endpoint: "GET /v1/{x...}"}, Algorithm: counter.SlidingCounter, Limits: []counter.Limit{counter.PerHour(10)}},
		{ID: "log", By: []string{"path", "org"}, Algorithm: counter.SlidingLog, Limits: []counter.Limit{counter.PerHour(10)}},
		{ID: "all", By: []string{}, Limits: []counter.Limit{counter.PerHour(10)}, Candidate: []counter.Limit{counter.PerHour(5)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	n := &naming{Store: memstore.New(memstore.Options{}), namer: newNamer("weir", []byte("secret"))}
	d, err := weir.NewLimiter(n, rs, weir.Options{}).Check(t.Context(), &weir.Request{
		APIKey: "sk_prod_1", User: "42", IP: netip.MustParseAddr("2001:db8::1"), Method: "GET", Path: "/v1/Orders/17",
		Attr: func(name string) string { return name },
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, l := range d.Limits() {
		f := field(l.Policy)
		got = append(got, n.names[i]+" "+base64.RawURLEncoding.EncodeToString(f[:]))
	}
	want := []string{
		"weir{c}HNeEGyL4LczUmLvHr70tCQ JMG_MYQT", "weir{ai}yofOII9BaFnHv1P2KcGR6Q FHxF8Wsx", "weir{ai}yofOII9BaFnHv1P2KcGR6Q tGYRCXm3",
		"weir{ju}Y6bm_FG4GK0s0tkGz1xF1A F-GwdaEC", "weir{c0}VJ5t_qX8RoKgPzsvvnEkZw RlgTGwTP", "weir{hw}xAsjzAX-LM9DqhFCUIeCcQ/oL3gAxhC oL3gAxhC",
		"weir{1b}q0QT05IAI6RdaaRFzB7mEA Hz353-Et", "weir{1b}q0QT05IAI6RdaaRFzB7mEA 5mz0HZHh",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}
