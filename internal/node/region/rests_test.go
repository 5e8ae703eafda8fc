package region

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// TestForgottenRegionsArentAsked checks that a forgotten region isn't asked for tokens, even if it is up again, so that
// no request waits for it.
func TestForgottenRegionsArentAsked(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		p := sharedPolicy(t, "w", budget)
		if err := us.link.SetState(t.Context(), "ap", Forgotten, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * beatEvery)
		drainOf(t, eu, p, "a")
		slow := 0
		for range 100 {
			at := time.Now()
			if take(eu, asks(p, "a", 1))[0].Allowed {
				t.Error("allowed")
			}
			if time.Since(at) >= DefaultTimeout-10*time.Millisecond {
				slow++
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := eu.link.peers["ap"].status().Asks; n > 0 || slow > 5 {
			t.Errorf("%d of 100 refused requests waited for the whole time-out; ap was asked %d times", slow, n)
		}
	})
}

// TestOneNodeThatCantReachTheHome checks that a node that can't reach the home doesn't keep other nodes of its region
// from asking the home.
func TestOneNodeThatCantReachTheHome(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		link, err := NewLink(Options{Name: "eu", Home: "us", Secret: secret, Peers: map[string][]string{"us": {"us"}, "ap": {"ap"}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range link.peers {
			q.client.Transport = roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route") })
		}
		bad := NewStore(eu.own, link, eu.stakes.cells)
		defer bad.stakes.close()
		time.Sleep(4 * time.Second)
		p := sharedPolicy(t, "w", budget)
		for range 60 { // eu owns 50; after that, the bad node can't borrow for some seconds
			take(bad, asks(p, "a", 1))
			time.Sleep(100 * time.Millisecond)
		}
		at := time.Now()
		refused, admitted := 0, 0
		for range 20 {
			if r := take(eu, asks(p, "a", 10))[0]; !r.Allowed {
				refused++
			} else {
				admitted += 10
			}
			take(bad, asks(p, "a", 1))
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("%d of 20 refused in %v, %d admitted of 1000", refused, time.Since(at), admitted+50)
		if refused > 0 {
			t.Errorf("%d of 20 requests of a node that reaches the home are refused", refused)
		}
	})
}

// TestNobodyWaitsForASilentHome checks that no request waits for a home that has been silent for 3 s.
func TestNobodyWaitsForASilentHome(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		p := sharedPolicy(t, "w", budget)
		us.cut.Store(true)
		ap.cut.Store(true)
		time.Sleep(6 * time.Second)
		if eu.link.peers["us"].status().Up {
			t.Fatal("up")
		}
		drainOf(t, eu, p, "a")
		for _, pause := range []time.Duration{0, 10 * time.Second} {
			time.Sleep(pause)
			slow, most := 0, time.Duration(0)
			for range 400 {
				at := time.Now()
				take(eu, asks(p, "a", 1))
				d := time.Since(at)
				if d > 20*time.Millisecond {
					slow++
				}
				most = max(most, d)
				time.Sleep(25 * time.Millisecond)
			}
			t.Logf("%d of 400 waited for a silent home, up to %v", slow, most)
			if slow > 0 {
				t.Error("the docs say that requests don't wait for a home that is silent for 3 s")
			}
		}
	})
}

// TestRetryTimesWhileLendersRest checks that retry times are never too short after a period in which all lenders had
// nothing.
func TestRetryTimesWhileLendersRest(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		b := sharedPolicy(t, "b", counter.Limit{Count: 60, Window: time.Minute, Burst: 100})
		drainOf(t, us, b, "a")
		drainOf(t, eu, b, "a")
		short, tries := 0, 0
		for range 20 {
			for range 150 {
				take(us, asks(b, "a", 1))
				take(ap, asks(b, "a", 1))
				take(eu, asks(b, "a", 1))
				time.Sleep(20 * time.Millisecond)
			}
			r := take(eu, asks(b, "a", 1))[0]
			if r.Allowed {
				continue
			}
			tries++
			time.Sleep(r.RetryAfter + 200*time.Millisecond) // without other requests
			if q := take(eu, asks(b, "a", 1))[0]; !q.Allowed {
				short++
				t.Logf("refused after a RetryAfter of %v; now %v", r.RetryAfter, q.RetryAfter)
			}
		}
		t.Logf("%d of %d", short, tries)
		if short > 0 {
			t.Error("retry times were too short")
		}
	})
}
