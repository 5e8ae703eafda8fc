package httplimit_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"pgregory.net/rapid"
)

var algorithms = []counter.Algorithm{weir.TokenBucket, weir.LeakyBucket, weir.LeakyQueue, weir.FixedWindow, weir.SlidingLog, weir.SlidingCounter}

func drawClient(t *rapid.T) weir.Request {
	req := weir.Request{
		APIKey: rapid.StringN(0, 8, 8).Draw(t, "key"), User: rapid.StringN(0, 4, 4).Draw(t, "user"), Org: rapid.StringN(0, 4, 4).Draw(t, "org"),
	}
	if four := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip"); rapid.Bool().Draw(t, "has an address") {
		req.IP = netip.AddrFrom4([4]byte(four))
	}
	return req
}

// ceil returns a duration in whole seconds, rounded up.
func ceil(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Retry-After is a whole number of seconds, at least one. It is never earlier than the true time, and at most a fifth or thirty
// seconds later. Below two seconds it has no jitter if the counter belongs to one client.
func TestRetryAfterIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wait := time.Duration(rapid.Int64Range(0, int64(400*24*time.Hour/time.Microsecond)).Draw(t, "wait")) * time.Microsecond
		if rapid.Bool().Draw(t, "short") {
			wait %= 5 * time.Second
		}
		req := drawClient(t)
		d := weir.Decision{Reason: weir.ReasonLimited, RetryAfter: wait, Policy: &counter.Policy{Definition: counter.Definition{PerClient: rapid.Bool().Draw(t, "per client")}}}
		got := httplimit.RetryAfter(&req, &d)
		most := ceil(wait + min(wait/5, 30*time.Second))
		if wait < 2*time.Second && d.Policy.PerClient {
			most = ceil(wait)
		}
		if got < 1 || got < ceil(wait) || got > max(1, most) {
			t.Errorf("%d s for a wait of %s", got, wait)
		}
		if again := httplimit.RetryAfter(&req, &d); again != got {
			t.Errorf("%d s, then %d s", got, again)
		}
		d.RetryAfter = weir.Never
		if got := httplimit.RetryAfter(&req, &d); got != 0 {
			t.Errorf("%d s for what never fits", got)
		}
		d.Reason = weir.ReasonUnavailable // other fields may have any value if the store was unreachable
		if got := httplimit.RetryAfter(&req, &d); got < 1 || got > 4 {
			t.Errorf("%d s until the store is tried again", got)
		}
		d = weir.Decision{Allowed: true}
		if got := httplimit.RetryAfter(&req, &d); got != 0 {
			t.Errorf("%d s for what was allowed", got)
		}
	})
}

// A client that waits as long as it is told, and is alone, is admitted by every algorithm, from any state.
func TestRetryAfterIsTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_700_000_000, rapid.Int64Range(0, 1e9-1).Draw(t, "ns"))
		limit := weir.Limit{Count: rapid.Int64Range(1, 20).Draw(t, "count"), Window: time.Duration(rapid.Int64Range(1, 5_000_000).Draw(t, "window")) * time.Millisecond}
		rule := weir.Rule{ID: "a", Algorithm: rapid.SampledFrom(algorithms).Draw(t, "algorithm"), By: rapid.SampledFrom([][]string{{"api_key"}, {"ip"}}).Draw(t, "by"), Limits: []weir.Limit{limit}}
		rs, err := weir.Compile(rules(rule))
		if err != nil {
			t.Fatal(err)
		}
		store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
		l := weir.NewLimiter(store, rs, weir.Options{})
		req := drawClient(t)
		for range 60 {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(limit.Window)).Draw(t, "pause") / rapid.Int64Range(1, 1000).Draw(t, "part")))
			req.Cost = rapid.Int64Range(1, limit.Count).Draw(t, "cost")
			d, err := l.Check(t.Context(), &req)
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				continue
			}
			seconds := httplimit.RetryAfter(&req, &d)
			now = now.Add(time.Duration(seconds) * time.Second)
			if d, _ := l.Check(t.Context(), &req); !d.Allowed {
				t.Fatalf("told to wait %d s, and refused then for another %s", seconds, d.RetryAfter)
			}
		}
	})
}

// Clients that are refused at the same time are told different retry times.
func TestRetryAfterSpreads(t *testing.T) {
	d := weir.Decision{Reason: weir.ReasonLimited, RetryAfter: 100 * time.Second, Policy: &counter.Policy{}}
	for name, client := range map[string]func(i int) weir.Request{
		"keys":  func(i int) weir.Request { return weir.Request{APIKey: fmt.Sprintf("sk_prod_%d", i)} },
		"users": func(i int) weir.Request { return weir.Request{User: fmt.Sprint(i)} },
		"addresses": func(i int) weir.Request {
			return weir.Request{IP: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}
		},
		"IPv6 subnets": func(i int) weir.Request {
			return weir.Request{IP: netip.AddrFrom16([16]byte{0x20, 1, 6: byte(i >> 8), 7: byte(i)})}
		},
	} {
		const clients = 2000
		at := map[int64]int{}
		for i := range clients {
			req := client(i)
			at[httplimit.RetryAfter(&req, &d)]++
		}
		for s, n := range at {
			if s < 100 || s > 120 || n > clients/10 {
				t.Errorf("%s: %d of %d return after %d s", name, n, clients, s)
			}
		}
		if len(at) < 20 {
			t.Errorf("%s: %d different seconds", name, len(at))
		}
	}
	for whole := int64(2); whole <= 10; whole++ {
		d, at := weir.Decision{Reason: weir.ReasonLimited, RetryAfter: time.Duration(whole) * time.Second, Policy: &counter.Policy{Definition: counter.Definition{PerClient: true}}}, map[int64]int{}
		for i := range 1000 {
			at[httplimit.RetryAfter(&weir.Request{User: fmt.Sprint(i)}, &d)]++
		}
		for s, n := range at {
			if s < whole || n > 600 {
				t.Errorf("of 1000 that wait for %d s, %d return after %d s", whole, n, s)
			}
		}
	}
	gone := weir.Decision{Reason: weir.ReasonUnavailable}
	at := map[int64]int{}
	for i := range 1000 {
		at[httplimit.RetryAfter(&weir.Request{User: fmt.Sprint(i)}, &gone)]++
	}
	for s := int64(1); s <= 4; s++ {
		if n := at[s]; n < 150 || n > 350 {
			t.Errorf("without a store, %d of 1000 return after %d s", n, s)
		}
	}
	a := weir.Request{IP: netip.MustParseAddr("2001:db8::1")}
	b := weir.Request{IP: netip.MustParseAddr("2001:db8::ffff:2")}
	if httplimit.RetryAfter(&a, &d) != httplimit.RetryAfter(&b, &d) {
		t.Error("a client that wanders in its /64 is told two times")
	}
	a, b = weir.Request{IP: netip.MustParseAddr("198.51.100.1")}, weir.Request{IP: netip.MustParseAddr("::ffff:198.51.100.1")}
	if httplimit.RetryAfter(&a, &d) != httplimit.RetryAfter(&b, &d) {
		t.Error("a client in IPv6 clothes is told another time")
	}
}

// A client that waits less than two seconds for its own counter is told the true time. All other retry times are jittered.
func TestShortWaitsOfOnesOwn(t *testing.T) {
	own, shared := &counter.Policy{Definition: counter.Definition{PerClient: true}}, &counter.Policy{}
	for _, c := range []struct {
		name        string
		policy      *counter.Policy
		wait        time.Duration
		least, most int64 // the range of what many clients are told
	}{
		{"its own, now", own, 0, 1, 1},
		{"its own, a second", own, time.Second, 1, 1},
		{"its own, more than a second", own, 1900 * time.Millisecond, 2, 2},
		{"its own, nearly two seconds", own, 2*time.Second - time.Nanosecond, 2, 2},
		{"its own, two seconds, and more for each", own, 2 * time.Second, 2, 3},
		{"shared, less than a second", shared, 900 * time.Millisecond, 1, 2},
		{"shared, less than two seconds", shared, 1900 * time.Millisecond, 2, 3},
		{"of nobody knows which", nil, 1900 * time.Millisecond, 2, 3},
	} {
		d := weir.Decision{Reason: weir.ReasonLimited, RetryAfter: c.wait, Policy: c.policy}
		least, most := int64(1000), int64(0)
		for i := range 500 {
			got := httplimit.RetryAfter(&weir.Request{User: fmt.Sprint(i)}, &d)
			least, most = min(least, got), max(most, got)
		}
		if least != c.least || most != c.most {
			t.Errorf("%s: clients are told %d to %d s, want %d to %d", c.name, least, most, c.least, c.most)
		}
	}
}

// Within a window, the reset time that clients see is always the end of the window, whatever the latency of the store and the
// difference between its clock and the node's.
func TestResetDoesNotWobble(t *testing.T) {
	for _, a := range []counter.Algorithm{weir.FixedWindow, weir.SlidingCounter} {
		for _, window := range []time.Duration{10 * time.Second, time.Minute, 90 * time.Second, time.Hour, 7 * 24 * time.Hour} {
			for _, skew := range []time.Duration{0, 2 * time.Microsecond, time.Millisecond, -time.Millisecond, 700 * time.Millisecond, -2 * time.Second, 2 * time.Second} {
				synctest.Test(t, func(t *testing.T) {
					rng := rand.New(rand.NewPCG(1, uint64(window)))
					store := memstore.New(memstore.Options{Now: func() time.Time {
						return time.Now().Add(skew).Add(time.Duration(rng.IntN(5000)) * time.Microsecond) // the way there
					}})
					l := weir.NewLimiter(store, compile(t, rules(weir.Rule{ID: "a", Algorithm: a, Limits: per(3, window)})), weir.Options{})
					limited := wrap(l, httplimit.Options{}, ok)
					time.Sleep(12345*time.Second + 678_901_234)
					for range 120 {
						time.Sleep(time.Duration(rng.Int64N(int64(window / 20))))
						begin := time.Now().Add(skew).UnixMicro() / window.Microseconds()
						if end := time.Now().Add(skew+5*time.Millisecond).UnixMicro() / window.Microseconds(); end != begin {
							continue // the window ends on the way
						}
						want := (begin + 1) * int64(window/time.Second)
						if a == weir.SlidingCounter {
							want = 0 // the end of this window or of the next, by what is in it
						}
						w := httptest.NewRecorder()
						limited.ServeHTTP(w, request("/"))
						got := atoi(t, w.Header().Get("X-RateLimit-Reset"))
						if want == 0 && got%int64(window/time.Second) == 0 || got == want {
							continue
						}
						t.Fatalf("%s, %s, store off by %s: reset at %d, want %d", a, window, skew, got, want)
					}
				})
			}
		}
	}
}

// A reset time is shown as the end of the window if it is at most five seconds, and at most a quarter of the window, away from
// it. Other reset times are shown unchanged, rounded up.
func TestResetOfWindows(t *testing.T) {
	const ms = time.Millisecond
	fixed := func(window time.Duration) weir.Limit {
		return weir.Limit{Algorithm: weir.FixedWindow, Count: 1, Window: window}
	}
	sliding := weir.Limit{Algorithm: weir.SlidingCounter, Count: 1, Window: time.Hour}
	daily := weir.Limit{Algorithm: weir.FixedWindow, Count: 1, Window: 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Day, Zone: "Asia/Kathmandu"}}
	midnight := time.Date(2027, 3, 1, 0, 0, 0, 0, time.FixedZone("", 5*3600+45*60)) // 18:15 UTC
	hour := midnight.Add(45 * time.Minute)
	answerer, err := httplimit.NewAnswerer(httplimit.Answers{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		limit weir.Limit
		edge  time.Time
		off   time.Duration // of the reset, from the edge
		want  int64         // seconds from the edge
	}{
		{"at the edge", fixed(time.Hour), hour, 0, 0},
		{"a hair behind it", fixed(time.Hour), hour, time.Microsecond, 0},
		{"five seconds behind it", fixed(time.Hour), hour, 5 * time.Second, 0},
		{"more behind it", fixed(time.Hour), hour, 5*time.Second + ms, 6},
		{"minutes behind it", fixed(time.Hour), hour, 10 * time.Minute, 600},
		{"five seconds before it", fixed(time.Hour), hour, -5 * time.Second, 0},
		{"more before it", fixed(time.Hour), hour, -5*time.Second - ms, -5},
		{"minutes before it", fixed(time.Hour), hour, -10 * time.Minute, -600},
		{"a quarter of a short window behind it", fixed(10 * time.Second), hour, 2500 * ms, 0},
		{"more than that", fixed(10 * time.Second), hour, 2501 * ms, 3},
		{"a quarter of a short window before it", fixed(10 * time.Second), hour, -2500 * ms, 0},
		{"more than that before it", fixed(10 * time.Second), hour, -3500 * ms, -3},
		{"of a sliding counter", sliding, hour, -ms, 0},
		{"of a sliding counter, a while behind it", sliding, hour, 6 * time.Second, 6},
		{"of a day, at its end", daily, midnight, 0, 0},
		{"of a day, a little behind its end", daily, midnight, 2 * ms, 0},
		{"of a day, a little before its end", daily, midnight, -2 * time.Second, 0},
		{"of a day, a while behind its end", daily, midnight, 7 * time.Second, 7},
		{"of a bucket", weir.Limit{Count: 1, Window: time.Hour}, hour, 2 * ms, 1},
	} {
		show := func(now time.Time, after time.Duration) int64 {
			h := http.Header{}
			d := weir.Decision{Allowed: true, ResetAfter: after, Policy: &counter.Policy{Definition: counter.Definition{Limit: c.limit}}}
			answerer.SetHeaders(h, &weir.Request{}, &d, now)
			return atoi(t, h.Get("X-RateLimit-Reset")) - c.edge.Unix()
		}
		at := c.edge.Add(c.off)
		if got := show(at.Add(-time.Minute), time.Minute); got != c.want {
			t.Errorf("%s: shown %d s from the edge, want %d", c.name, got, c.want)
		}
		// A counter that is already full shows the current time.
		if got, want := show(at, 0), ceil(time.Hour+c.off)-3600; got != want {
			t.Errorf("%s, full already: shown %d s from the edge, want %d", c.name, got, want)
		}
	}
}

// RateLimit says when to retry, rounded up. It has no time if waiting doesn't help or the time is unknown.
func TestTimeInRateLimit(t *testing.T) {
	answerer, err := httplimit.NewAnswerer(httplimit.Answers{})
	if err != nil {
		t.Fatal(err)
	}
	bucket, slots := weir.Limit{Count: 9, Window: time.Minute}, weir.Limit{Algorithm: weir.Concurrency, Count: 9, Window: time.Minute}
	for _, c := range []struct {
		name         string
		limit        weir.Limit
		allowed      bool
		reset, retry time.Duration
		want         string
	}{
		{"full again in a while", bucket, true, 1500 * time.Millisecond, 0, ";t=2"},
		{"full already", bucket, true, 0, 0, ";t=0"},
		{"never full again", bucket, true, weir.Never, 0, ""},
		{"refused for a while", bucket, false, time.Minute, 1500 * time.Millisecond, ";t=2"},
		{"refused for no time", bucket, false, time.Minute, 0, ";t=0"},
		{"refused for ever", bucket, false, time.Minute, weir.Never, ""},
		{"a slot", slots, true, time.Minute, 0, ""},
		{"no slot", slots, false, time.Minute, 3 * time.Second, ";t=3"},
	} {
		h := http.Header{}
		d := weir.Decision{Allowed: c.allowed, Remaining: 5, ResetAfter: c.reset, RetryAfter: c.retry, Policy: &counter.Policy{Definition: counter.Definition{Name: "a", Limit: c.limit}}}
		answerer.SetHeaders(h, &weir.Request{}, &d, time.Unix(1_800_000_000, 0))
		if got, want := h.Get("RateLimit"), `"a";r=5`+c.want; got != want {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
	}
}
