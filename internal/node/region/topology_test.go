package region

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

// drainOf takes tokens from a region one by one until it refuses, and returns how many it took.
func drainOf(t *testing.T, s *site, p *counter.Policy, subject string) (n int64) {
	t.Helper()
	for {
		var r [1]counter.Result
		s.Take(t.Context(), []counter.Charge{{Counter: counter.Counter{Policy: p, Subject: []byte(subject)}, N: 1}}, r[:])
		if r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		if !r[0].Allowed {
			return n
		}
		n++
	}
}

func sharedPolicy(t testing.TB, name string, l counter.Limit) *counter.Policy {
	p := policyOf(t, name, l, true)
	p = p.With(func(d *counter.Definition) { d.Travels, d.Floor = false, 5 })
	return p
}

// inTime runs three regions in virtual time until f returns.
func inTime(t *testing.T, f func(t *testing.T, us, eu, ap *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sites := world(t, time.Now, "us", "eu", "ap")
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for _, s := range sites {
			s.link.timeout = DefaultTimeout
			all.Go(func() { _ = s.link.Run(ctx) })
		}
		defer all.Wait()
		defer stop()
		time.Sleep(3 * beatEvery)
		f(t, sites[0], sites[1], sites[2])
	})
}

// budget has a short window. Regions exchange messages every second, and tests wait for the next window.
var budget = counter.Limit{Algorithm: counter.FixedWindow, Count: 1000, Window: 10 * time.Minute}

// TestHomeMoves checks that the old home steps down at once, and that the new one owns the rest later: a bucket starts
// empty then, and a window counts from its next start. No token is admitted twice.
func TestHomeMoves(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		window, bucket := sharedPolicy(t, "w", budget), sharedPolicy(t, "b", counter.Limit{Count: 3600, Window: time.Hour, Burst: 1000})
		if n := drainOf(t, us, window, "a"); n != 1000 {
			t.Errorf("us had %d of the window, with what the others own", n)
		}
		used := drainOf(t, us, bucket, "a")
		if used < 1000 || used > 1005 {
			t.Errorf("us had %d of the bucket", used)
		}
		begun := time.Now()
		if err := ap.link.Move(t.Context(), "us", "eu", false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * beatEvery)
		for _, s := range []*site{us, eu, ap} {
			if h := s.link.Here(); h.Home != "eu" || h.Epoch != 2 || h.Grace != (s == eu) {
				t.Errorf("%s: %+v", s.link.name, h)
			}
		}
		if n := drainOf(t, us, window, "fresh") + drainOf(t, eu, window, "fresh") + drainOf(t, ap, window, "fresh"); n > 150 {
			t.Errorf("while the new home waits, all have %d: three floors are 150", n)
		}
		time.Sleep(grace)
		if n := drainOf(t, eu, window, "fresh"); n != 0 {
			t.Errorf("eu has %d of a window that began before", n)
		}
		if h := eu.link.Here(); h.Grace {
			t.Errorf("%+v", h)
		}
		n := drainOf(t, eu, bucket, "a") + drainOf(t, us, bucket, "a") + drainOf(t, ap, bucket, "a")
		if most := int64(time.Since(begun).Seconds()) + 10; n > most {
			t.Errorf("%d of the bucket after %s", n, time.Since(begun))
		}
		time.Sleep(budget.Window)
		if n := drainOf(t, eu, window, "fresh"); n != 1000 {
			t.Errorf("eu has %d of the next window", n)
		}
		if n := drainOf(t, us, window, "fresh") + drainOf(t, ap, window, "fresh"); n != 0 {
			t.Errorf("and the others %d more", n)
		}
		// The home moves back. What eu admitted in this window isn't admitted again, and changing the state of another
		// region doesn't restart the grace period.
		if err := us.link.Move(t.Context(), "eu", "us", false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(grace + time.Second)
		if n := drainOf(t, us, window, "fresh"); n != 0 || us.link.Here().Grace {
			t.Errorf("us has %d more, %+v", n, us.link.Here())
		}
		time.Sleep(budget.Window)
		if err := us.link.SetState(t.Context(), "ap", Drained, false); err != nil || us.link.Here().Grace {
			t.Errorf("%v, %+v", err, us.link.Here())
		}
		if n := drainOf(t, us, window, "fresh"); n != 1000 || us.link.Here().Home != "us" {
			t.Errorf("us has %d, %+v", n, us.link.Here())
		}
	})
}

func TestHomeThatCannotBeMoved(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		refused := func(err error, says string) {
			t.Helper()
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want %q", err, says)
			}
		}
		refused(eu.link.Move(t.Context(), "us", "mars", false), `no region is named "mars"`)
		refused(eu.link.Move(t.Context(), "us", "us", false), "already")
		refused(eu.link.Move(t.Context(), "ap", "us", false), "ap isn't the home")
		refused(eu.link.SetState(t.Context(), "us", Drained, false), "move that first")
		refused(eu.link.SetState(t.Context(), "ap", Forgotten, false), "ap is alive")
		us.cut.Store(true)
		time.Sleep(3 * silentAfter)
		refused(eu.link.Move(t.Context(), "us", "eu", false), "--force")
		refused(eu.link.Move(t.Context(), "eu", "us", true), "us can't be reached")
		if err := eu.link.Move(t.Context(), "us", "eu", true); err != nil {
			t.Error(err)
		}
		if h := us.link.Here(); h.Home != "us" {
			t.Errorf("us can't have heard of it: %+v", h)
		}
		us.cut.Store(false)
		time.Sleep(3 * beatEvery)
		if h := us.link.Here(); h.Home != "eu" || h.Epoch != 2 {
			t.Errorf("us has heard of it: %+v", h)
		}
	})
}

// TestHomeThatHasJustDied checks moves of the home while a region that has just died still counts as up. A move asks
// both the old and the new home, so it notices.
func TestHomeThatHasJustDied(t *testing.T) {
	for _, c := range []struct{ died, to, says string }{
		{"us", "ap", "us can't be reached. If it is only cut off"},
		{"us", "eu", "us can't be reached. If it is only cut off"}, // the move is requested at eu itself
		{"ap", "ap", "ap can't be reached"},
	} {
		inTime(t, func(t *testing.T, us, eu, ap *site) {
			dead := map[string]*site{"us": us, "ap": ap}[c.died]
			dead.cut.Store(true)
			begun := time.Now()
			err := eu.link.Move(t.Context(), "us", c.to, false)
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.says) || time.Since(begun) > beatEvery {
				t.Errorf("%s has died, and the home moves to %s: %v after %v", c.died, c.to, err, time.Since(begun))
			}
			for _, s := range eu.link.Peers() {
				if !s.Up {
					t.Errorf("%s doesn't count as heard any more: %+v", s.Region, s)
				}
			}
			if h := eu.link.Here(); h.Home != "us" || h.Epoch != 1 {
				t.Errorf("%s has died: %+v", c.died, h)
			}
			err = eu.link.Move(t.Context(), "us", c.to, true)
			if c.died == c.to { // force doesn't help here
				if !errors.Is(err, ErrRefused) {
					t.Errorf("the home was moved to one that has died: %v", err)
				}
				return
			}
			if h := eu.link.Here(); err != nil || h.Home != c.to || h.Epoch != 2 {
				t.Errorf("with force: %+v, %v", h, err)
			}
		})
	}
}

// TestOthersKnowTheGracePeriod checks that other regions know about the new home's grace period, and when it ends.
func TestOthersKnowTheGracePeriod(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		known := func(grace bool) {
			t.Helper()
			for _, of := range []*site{us, ap} {
				for _, s := range of.link.Peers() {
					if home := s.Region == "eu"; s.Home != home || s.Grace != (home && grace) {
						t.Errorf("%s knows %s: %+v", of.link.name, s.Region, s)
					}
				}
			}
		}
		move(t, us.link, "us", "eu")
		known(true)
		time.Sleep(grace - 6*beatEvery)
		known(true)
		time.Sleep(6 * beatEvery)
		known(false)
	})
}

// TestMissingHomes checks that, for a limit that couldn't be decided, a region can tell whether the home or its own
// store was missing.
func TestMissingHomes(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		travels, shared, refuses := policyOf(t, "t", counter.PerHour(10), true), sharedPolicy(t, "s", budget), sharedPolicy(t, "r", budget)
		refuses = refuses.With(func(d *counter.Definition) { d.OnPartition = counter.FailRefuse })
		own := policyOf(t, "o", budget, false)
		missing := func(s *site) (names [4]string) {
			for i, p := range []*counter.Policy{own, travels, shared, refuses} {
				names[i] = s.link.Missing(p)
			}
			return names
		}
		is := func(when string, s *site, want [4]string) {
			t.Helper()
			if got := missing(s); got != want {
				t.Errorf("%s, %s: %q, want %q", when, s.link.name, got, want)
			}
		}
		is("all are heard", eu, [4]string{"", "us", "", ""})
		is("at home", us, [4]string{})
		us.cut.Store(true)
		time.Sleep(2 * stake.Term)
		is("the home isn't heard", eu, [4]string{"", "us", "", "us"})
		us.cut.Store(false)
		time.Sleep(3 * beatEvery)
		if err := us.link.SetState(t.Context(), "eu", Drained, false); err != nil {
			t.Fatal(err)
		}
		is("drained", eu, [4]string{"", "us", "us", "us"})
	})
}

// TestRegionsLeave checks that a drained region asks the home for every token, and that a forgotten region loses what
// it has.
func TestRegionsLeave(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		window := sharedPolicy(t, "w", budget)
		if err := us.link.SetState(t.Context(), "ap", Drained, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * beatEvery)
		if n := drainOf(t, ap, window, "a"); n != 1000 {
			t.Errorf("ap has %d, by asking us", n)
		}
		if n := drainOf(t, eu, window, "a") + drainOf(t, us, window, "a"); n != 0 {
			t.Errorf("the others have %d more", n)
		}

		ap.cut.Store(true) // ap dies with what it has borrowed
		if err := us.link.SetState(t.Context(), "ap", "", false); err != nil {
			t.Fatal(err)
		}
		ap.cut.Store(false)
		time.Sleep(3 * beatEvery)
		var r [1]counter.Result
		ap.Take(t.Context(), []counter.Charge{{Counter: counter.Counter{Policy: window, Subject: []byte("b")}, N: 200}}, r[:])
		if !r[0].Allowed {
			t.Fatalf("%+v", r[0])
		}
		ap.cut.Store(true)
		time.Sleep(3 * silentAfter)
		before := drainOf(t, us, window, "b")
		if before > 800 {
			t.Errorf("us has %d beside ap's 200", before)
		}
		if err := us.link.SetState(t.Context(), "ap", Forgotten, false); err != nil {
			t.Fatal(err)
		}
		if n := drainOf(t, us, window, "b"); before+n != 1000 {
			t.Errorf("us has %d, and %d of what ap had", before, n)
		}
		ap.cut.Store(false)
		time.Sleep(3 * beatEvery)
		if n := drainOf(t, ap, window, "b"); n != 0 {
			t.Errorf("ap has heard of it, and has %d", n)
		}
	})
}

// TestRetryTimesWhileCutOff checks that a region that is cut off returns retry times from its own refill rate. While it
// can ask the home, the home's times apply.
func TestRetryTimesWhileCutOff(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		bucket := sharedPolicy(t, "b", counter.Limit{Count: 100, Window: time.Hour, Burst: 100})
		drainOf(t, eu, bucket, "a")
		refused := func() time.Duration {
			t.Helper()
			var results [1]counter.Result
			eu.Take(t.Context(), []counter.Charge{{Counter: counter.Counter{Policy: bucket, Subject: []byte("a")}, N: 1}}, results[:])
			r := results[0]
			if r.Allowed || r.Err != nil {
				t.Fatalf("%+v", r)
			}
			return r.RetryAfter
		}
		if d := refused(); d > time.Minute {
			t.Errorf("connected: %v, and all together have a token every 36 s", d)
		}
		eu.cut.Store(true)
		time.Sleep(24 * time.Minute)
		drainOf(t, eu, bucket, "a")
		d := refused()
		if d < 11*time.Minute || d > 12*time.Minute {
			t.Errorf("cut off: %v, and 5%% of the limit is a token every 12 minutes", d)
		}
		time.Sleep(d)
		if n := drainOf(t, eu, bucket, "a"); n != 1 {
			t.Errorf("%d after that", n)
		}
	})
}
