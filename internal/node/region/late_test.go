package region

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/internal/node/stake"
)

// late delays responses, unless the caller gives up first.
func late(of http.RoundTripper, by time.Duration) roundTripper {
	return func(r *http.Request) (*http.Response, error) {
		w, err := of.RoundTrip(r)
		select {
		case <-time.After(by):
			return w, err
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// hangs never responds.
func hangs(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestLateAnswersAreHeard checks that a request waits only as long as it may, and that tokens from its ask are there
// for the next request.
func TestLateAnswersAreHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sites := world(t, time.Now, "us", "eu")
		us, eu := sites[0], sites[1]
		eu.link.timeout = DefaultTimeout
		peer := eu.link.peers["us"]
		peer.client.Transport = late(peer.client.Transport, 800*time.Millisecond)
		p := sharedPolicy(t, "w", budget)
		if r, d := timed(eu, asks(p, "a", 60)); r[0].Allowed || r[0].Err != nil || d > DefaultTimeout {
			t.Errorf("%+v after %v", r[0], d)
		}
		time.Sleep(DefaultTimeout)
		if r, d := timed(eu, asks(p, "a", 60)); !r[0].Allowed || d > 0 || asksOf(eu) != 1 || restOf(eu, p, "a", "us") != 0 {
			t.Errorf("the answer has come: %+v after %v and %d asks; us rests for %v", r[0], d, asksOf(eu), restOf(eu, p, "a", "us"))
		}
		take(us, asks(p, "b", 950))
		take(eu, asks(p, "b", 60))
		time.Sleep(400 * time.Millisecond)
		if rest := restOf(eu, p, "b", "us"); rest != 0 || asksOf(eu) != 2 {
			t.Errorf("us had nothing, which is no news when it says so late: it rests for %v more", rest)
		}
		take(eu, asks(p, "c", 60)) // this ask is in flight when the node stops
		closing := time.Now()
		if eu.stakes.close(); time.Since(closing) > 0 {
			t.Errorf("a node that stops waits for an answer for %v", time.Since(closing))
		}
		time.Sleep(beatEvery) // until the message has timed out
	})
}

// lateCells are cells with slow updates.
type lateCells struct {
	Cells
	by time.Duration
}

func (c lateCells) Update(ctx context.Context, keys []string, change func([][]byte, int64) []Cell) error {
	time.Sleep(c.by)
	return c.Cells.Update(ctx, keys, change)
}

// TestOwnStoreIsSlow checks that a lender that responded in time doesn't rest because the region's own store was slow.
func TestOwnStoreIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := world(t, time.Now, "us", "eu")[1]
		eu.link.timeout = DefaultTimeout
		eu.stakes.cells = lateCells{eu.stakes.cells, 200 * time.Millisecond}
		p := sharedPolicy(t, "w", budget)
		take(eu, asks(p, "a", 60)) // 0.2 s to find that there are too few tokens, and 0.2 s to ask, so the response is written too late
		time.Sleep(150 * time.Millisecond)
		if rest := restOf(eu, p, "a", "us"); rest != 0 || asksOf(eu) == 0 {
			t.Errorf("us rests for %v after %d asks", rest, asksOf(eu))
		}
		eu.stakes.close()
	})
}

// TestRegionsThatHangRest checks that a lender rests once a request has waited for it as long as it may, even if a
// response may still arrive.
func TestRegionsThatHangRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := world(t, time.Now, "us", "eu")[1]
		eu.link.timeout = DefaultTimeout
		eu.link.peers["us"].client.Transport = roundTripper(hangs)
		p := sharedPolicy(t, "w", budget)
		take(eu, asks(p, "a", 60))
		time.Sleep(10 * time.Millisecond)
		if rest := restOf(eu, p, "a", "us"); rest < 200*time.Millisecond || rest > 250*time.Millisecond {
			t.Errorf("us rests for %v", rest)
		}
		time.Sleep(beatEvery) // the message has timed out, which changes nothing
		if rest := restOf(eu, p, "a", "us"); rest != 0 {
			t.Errorf("us rests for %v more", rest)
		}
		eu.stakes.close()
	})
}

// TestTimeoutsOfMessages checks the timeouts of messages: for checks, as long as a check may wait; for stakes and
// resets, at least a second, also if the message has both.
func TestTimeoutsOfMessages(t *testing.T) {
	for timeout, long := range map[time.Duration]time.Duration{DefaultTimeout: time.Second, 3 * time.Second: 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			eu := world(t, time.Now, "us", "eu")[1]
			eu.link.timeout = timeout
			p := eu.link.peers["us"]
			var left atomic.Int64
			p.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				end, _ := r.Context().Deadline()
				left.Store(int64(time.Until(end)))
				return hangs(r)
			})
			counter := wireCounter(counterOf(sharedPolicy(t, "w", budget)))
			said, check, reset := operation{Talk: &stakeMessage{counter, stake.Message{}}}, operation{Charges: []charge{{}}}, operation{Resets: []charge{{}}}
			for _, c := range []struct {
				acts []operation
				want time.Duration
			}{{[]operation{said}, long}, {[]operation{reset}, long}, {[]operation{check}, timeout}, {[]operation{said, check}, long}, {[]operation{check, said}, long}} {
				var batch []*pendingOperation
				for _, a := range c.acts {
					batch = append(batch, &pendingOperation{operation: a, ctx: t.Context(), done: make(chan struct{})})
				}
				p.mu.Lock()
				p.sending++
				p.mu.Unlock()
				if p.send(batch); time.Duration(left.Load()) != c.want {
					t.Errorf("%d acts: %v, want %v", len(c.acts), time.Duration(left.Load()), c.want)
				}
			}
			for _, c := range []struct {
				operation
				want time.Duration
			}{{said, long}, {reset, long}, {check, timeout}} {
				begun := time.Now()
				if _, err := p.do(t.Context(), c.operation); err == nil || time.Since(begun) != c.want {
					t.Errorf("%v after %v, want %v", err, time.Since(begun), c.want)
				}
			}
			time.Sleep(time.Minute)
		})
	}
}

// TestTalksThatHangLeaveRoomForChecks checks that unanswered messages about stakes don't keep checks for the home from
// being sent.
func TestTalksThatHangLeaveRoomForChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := world(t, time.Now, "us", "eu")[1]
		eu.link.timeout = DefaultTimeout
		var sent atomic.Int64
		eu.link.peers["us"].client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			sent.Add(1)
			return hangs(r)
		})
		c := counterOf(sharedPolicy(t, "w", budget))
		for range 19 { // each in a separate message
			go func() { _, _ = eu.link.talk(t.Context(), "us", c, &stake.Message{}) }()
			time.Sleep(talkEvery + time.Millisecond)
		}
		synctest.Wait()
		before := sent.Load()
		go take(eu, asks(policyOf(t, "t", budget, true), "a", 1))
		synctest.Wait()
		if sent.Load() != before+1 {
			t.Errorf("after %d talks the check isn't sent", before)
		}
		time.Sleep(2 * time.Second)
	})
}

// TestAddressesThatHang checks that if an address doesn't respond for as long as a check waits, the next one is tried,
// even if a response may still arrive.
func TestAddressesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := world(t, time.Now, "us", "eu")[1]
		eu.link.timeout = DefaultTimeout
		peer := eu.link.peers["us"]
		peer.addresses = []string{"hole", "us"}
		direct := peer.client.Transport
		peer.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "hole" {
				return hangs(r)
			}
			return direct.RoundTrip(r)
		})
		p := sharedPolicy(t, "w", budget)
		if take(eu, asks(p, "a", 60))[0].Allowed {
			t.Error("a hole has answered")
		}
		time.Sleep(2 * talkEvery) // the message was sent that much after the request
		if r, d := timed(eu, asks(p, "b", 60)); !r[0].Allowed || d > DefaultTimeout/2 {
			t.Errorf("%+v after %v", r[0], d)
		}
		eu.stakes.close()
		time.Sleep(beatEvery)
	})
}
