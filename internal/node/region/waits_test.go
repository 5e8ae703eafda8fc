package region

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

// asksOf returns how often a region has asked others for tokens.
func asksOf(s *site) (n uint64) {
	for _, p := range s.link.Peers() {
		n += p.Asks
	}
	return n
}

// timed calls take and also returns how long it took.
func timed(s *site, charges ...counter.Charge) ([]counter.Result, time.Duration) {
	begun := time.Now()
	return take(s, charges...), time.Since(begun)
}

// TestRequestsWaitForOneThatRests checks that requests wait up to a quarter of a second for a lender that rests, which
// means that it isn't asked for a while. If all lenders rest for longer, requests are refused at once, and no lender is
// asked.
func TestRequestsWaitForOneThatRests(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		p := sharedPolicy(t, "w", budget)
		for _, s := range []*site{us, eu, ap} {
			drainOf(t, s, p, "a")
		}
		time.Sleep(10 * time.Second)
		take(eu, asks(p, "a", 1)) // all have nothing, and rest
		give := func(n int64) {
			if err := us.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{{Counter: asks(p, "a", 1).Counter, N: n}}); err != nil {
				t.Fatal(err)
			}
		}
		for restOf(eu, p, "a", "us", "ap") <= patience { // lenders rest longer each time
			if r, d := timed(eu, asks(p, "a", 1)); r[0].Allowed || d == 0 || d > DefaultTimeout {
				t.Fatalf("%+v after %v", r[0], d)
			}
		}
		give(100)
		before := asksOf(eu)
		if r, d := timed(eu, asks(p, "a", 60)); r[0].Allowed || d > 0 || asksOf(eu) != before {
			t.Errorf("all rest for longer: %+v after %v", r[0], d)
		}
		time.Sleep(restOf(eu, p, "a", "us", "ap") - patience/2)
		if r, d := timed(eu, asks(p, "a", 60)); !r[0].Allowed || d < patience/2 || d > DefaultTimeout {
			t.Errorf("one may soon be asked: %+v after %v", r[0], d)
		}
	})
}

// restOf returns the time until a region may ask one of the given regions.
func restOf(s *site, p *counter.Policy, subject string, of ...string) time.Duration {
	named := counter.Counter{Policy: p, Subject: secret.name(p.ID, []byte(subject))}
	rest := int64(math.MaxInt64)
	_ = s.stakes.cells.Update(context.Background(), []string{keyOf(&named)}, func(values [][]byte, now int64) []Cell {
		for _, name := range of {
			rest = min(rest, stake.Decode(values[0]).Rests(name, now))
		}
		return []Cell{{Value: values[0]}}
	})
	return time.Duration(rest) * time.Microsecond
}

// TestRequestsThatDontWait checks requests that don't wait for other regions: those for more than the whole limit,
// those of shadow rules, and those that another limit refuses. Only shadow rules ask other regions. Peeks don't ask
// either.
func TestRequestsThatDontWait(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		p, own, shadow := sharedPolicy(t, "w", budget), policyOf(t, "own", counter.PerHour(1), false), sharedPolicy(t, "s", budget)
		shadow = shadow.With(func(d *counter.Definition) { d.Shadow, d.ID = true, 1 })
		peek := asks(p, "a", 200)
		peek.Peek = true
		take(eu, asks(own, "a", 1))
		for name, charges := range map[string][]counter.Charge{
			"more than all":         {asks(p, "a", 1001)},
			"a shadow rule":         {asks(shadow, "a", 200)},
			"another limit refuses": {asks(own, "a", 1), asks(p, "a", 200)},
		} {
			before := asksOf(eu)
			r, d := timed(eu, charges...)
			time.Sleep(time.Second)
			if last := r[len(r)-1]; last.Allowed || last.Err != nil || d > 0 || asksOf(eu) > before && name != "a shadow rule" {
				t.Errorf("%s: %+v after %v; others were asked %d times", name, last, d, asksOf(eu)-before)
			}
		}
		if r := take(eu, asks(p, "a", 1001))[0]; r.RetryAfter != counter.Never {
			t.Errorf("more than all: %+v", r)
		}

		us.cut.Store(true)
		ap.cut.Store(true)
		take(eu, asks(p, "b", 45)) // this would ask ahead
		time.Sleep(time.Second)
		us.cut.Store(false)
		ap.cut.Store(false)
		peek = asks(p, "b", 1)
		peek.Peek = true
		before := asksOf(eu)
		take(eu, peek)
		time.Sleep(time.Second)
		if n := asksOf(eu); n != before {
			t.Error("a peek has asked ahead")
		}
	})
}

// TestRegionsThatDontAnswer checks that a region that doesn't respond isn't asked again and again by one request.
func TestRegionsThatDontAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := world(t, time.Now, "us", "eu")[1]
		eu.link.timeout = DefaultTimeout
		var sent atomic.Int64
		eu.link.peers["us"].client.Transport = roundTripper(func(*http.Request) (*http.Response, error) {
			sent.Add(1)
			return nil, errors.New("lost")
		})
		r, d := timed(eu, asks(sharedPolicy(t, "w", budget), "a", 60))
		if n := sent.Load(); r[0].Allowed || r[0].Err != nil || n == 0 || n > 2 || d > DefaultTimeout {
			t.Errorf("%+v after %v and %d messages", r[0], d, n)
		}
		eu.stakes.close()
	})
}

// TestWaitingRequestsAreBounded checks that only some requests may wait for other regions, because they hold places
// that other requests could use. If the others just had too little for a client, only a quarter of the places is for
// that client.
func TestWaitingRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := world(t, time.Now, "us", "eu")[1]
		eu.link.timeout, eu.link.maxWaiting = DefaultTimeout, 8
		eu.link.peers["us"].client.Transport = roundTripper(hangs)
		p := sharedPolicy(t, "w", budget)
		var waiting atomic.Int64
		come := func(n int, client string) {
			for range n {
				waiting.Add(1)
				go func() {
					defer waiting.Add(-1)
					if r := take(eu, asks(p, client, 60))[0]; r.Allowed || r.Err != nil || r.RetryAfter <= 0 {
						t.Errorf("%+v", r)
					}
				}()
			}
			synctest.Wait()
		}
		want := func(what string, n int64) {
			t.Helper()
			eu.stakes.mu.Lock()
			defer eu.stakes.mu.Unlock()
			if waiting.Load() != n || eu.stakes.waiting.Taken() != n {
				t.Errorf("%s: %d wait, and %d by the count; want %d", what, waiting.Load(), eu.stakes.waiting.Taken(), n)
			}
		}
		come(100, "busy")
		want("one client", 8)
		come(1, "other")
		want("another one", 8)
		time.Sleep(DefaultTimeout)
		synctest.Wait()
		want("when they have waited", 0)
		come(100, "busy")
		want("a client for whom us had nothing", 2)
		come(100, "other")
		want("and others", 8)
		time.Sleep(DefaultTimeout)
		synctest.Wait()
		want("in the end", 0)
		if eu.stakes.close(); eu.stakes.waiting.Taken() != 0 {
			t.Errorf("%d are left", eu.stakes.waiting.Taken())
		}
		time.Sleep(beatEvery)
	})
}

// TestCutOff checks what happens to shared limits if their home is silent for longer than loans last.
func TestCutOff(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		at := func(on counter.FailureMode) *counter.Policy {
			p := sharedPolicy(t, "w", budget)
			p = p.With(func(d *counter.Definition) { d.OnPartition, d.ID = on, uint64(on)+1 })
			return p
		}
		share, refuse, local := at(counter.FailAllow), at(counter.FailRefuse), at(counter.FailLocal)
		eu.cut.Store(true)
		time.Sleep(9 * time.Second) // loans may still exist
		for _, p := range []*counter.Policy{share, refuse, local} {
			if r := take(eu, asks(p, "a", 10))[0]; !r.Allowed || r.Local || r.Remaining != 40 {
				t.Errorf("after 9 s: %d: %+v", p.OnPartition, r)
			}
		}
		time.Sleep(2 * time.Second)
		if r := take(eu, asks(share, "a", 10))[0]; !r.Allowed || r.Local || r.Remaining != 30 {
			t.Errorf("share: %+v", r)
		}
		if r := take(eu, asks(refuse, "a", 10))[0]; !errors.Is(r.Err, counter.ErrPartition) {
			t.Errorf("refuse: %+v", r)
		}
		if r := take(eu, asks(local, "a", 10))[0]; !r.Allowed || !r.Local || r.Remaining != 990 {
			t.Errorf("local: %+v", r)
		}
		if r := take(us, asks(refuse, "a", 10))[0]; !r.Allowed || r.Local {
			t.Errorf("at home nothing is cut off: %+v", r)
		}
		eu.cut.Store(false)
		time.Sleep(2 * time.Second)
		for _, p := range []*counter.Policy{share, refuse, local} {
			if r := take(eu, asks(p, "a", 1))[0]; !r.Allowed || r.Local {
				t.Errorf("heard again: %d: %+v", p.OnPartition, r)
			}
		}
	})
}

// TestAsksAreCounted checks the numbers of asks, and of asks that brought less than half of what requests waited for.
func TestAsksAreCounted(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		p := sharedPolicy(t, "w", budget)
		status := func(of string) Status {
			for _, s := range eu.link.Peers() {
				if s.Region == of {
					return s
				}
			}
			return Status{}
		}
		if r := take(eu, asks(p, "a", 60))[0]; !r.Allowed || status("us").Asks != 1 || status("us").Short != 0 || status("ap").Asks != 0 {
			t.Errorf("%+v: us %+v, ap %+v", r, status("us"), status("ap"))
		}
		drainOf(t, us, p, "a")
		drainOf(t, eu, p, "a")
		if us, ap := status("us"), status("ap"); us.Short == 0 || us.Short >= us.Asks || ap.Short == 0 {
			t.Errorf("us %+v, ap %+v", us, ap)
		}
	})
}

// TestNodesThatHaveStopped checks that nodes that have stopped return errors and change nothing.
func TestNodesThatHaveStopped(t *testing.T) {
	us := world(t, time.Now, "us", "eu")[0]
	us.stakes.close()
	if r := take(us, asks(sharedPolicy(t, "w", budget), "a", 1))[0]; r.Allowed || !errors.Is(r.Err, errClosed) {
		t.Errorf("%+v", r)
	}
}

// TestAbandonedActsArentSent checks that operations whose callers have given up aren't sent, except those that give
// something back.
func TestAbandonedActsArentSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := world(t, time.Now, "us", "eu")[1]
		p := eu.link.peers["us"]
		var acts atomic.Int64
		next := p.client.Transport
		p.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			var m message
			if err := json.Unmarshal(text, &m); err != nil {
				return nil, err
			}
			acts.Add(int64(len(m.Acts)))
			time.Sleep(300 * time.Millisecond)
			r.Body = io.NopCloser(bytes.NewReader(text))
			return next.RoundTrip(r)
		})
		limit := policyOf(t, "p", counter.PerHour(1_000_000), true)
		counted := counter.Counter{Policy: limit, Subject: []byte("a")}
		one := wireCounter(&counted)
		one.N = 1
		take, back := operation{Charges: []charge{one}}, operation{Returns: []charge{one}}
		var all sync.WaitGroup
		do := func(a operation, patience time.Duration, answered bool) {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if _, err := p.do(ctx, a); (err == nil) != answered {
					t.Errorf("%+v: %v", a, err)
				}
			})
		}
		for range maxMessages {
			do(take, time.Hour, true)
		}
		synctest.Wait()
		for range 5000 {
			do(take, 100*time.Millisecond, false)
		}
		do(back, 100*time.Millisecond, false)
		do(take, time.Hour, true)
		all.Wait()
		time.Sleep(time.Second) // for operations that were sent although their callers had given up
		if n := acts.Load(); n != maxMessages+2 {
			t.Errorf("%d acts were sent, want those of %d that wait, and what is given back", n, maxMessages+1)
		}
		if len(p.queue) > 0 {
			t.Errorf("%d acts are left", len(p.queue))
		}
	})
}
