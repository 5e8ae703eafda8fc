package client_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/client"
)

// inProcess is a transport that calls a handler without a network, so that it works in virtual time.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result(), r.Context().Err()
}

func through(t *testing.T, h http.Handler, opts client.Options) *client.Client {
	t.Helper()
	opts.URL = "http://weir"
	c, err := client.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	c.Through(inProcess{h})
	return c
}

func slotsOf(n int64) weir.Rule {
	return weir.Rule{ID: "slots", Algorithm: weir.Concurrency, SlotTTL: 9 * time.Second, Limits: []weir.Limit{{Count: n}}}
}

func check(t *testing.T, c *client.Client, req client.Request) client.Decision {
	t.Helper()
	d, err := c.Check(t.Context(), &req)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// calls counts the requests for each path.
type calls struct {
	http.Handler
	mu    sync.Mutex
	paths map[string]int
	gone  atomic.Bool
}

func (c *calls) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	if c.paths == nil {
		c.paths = map[string]int{}
	}
	c.paths[r.URL.Path]++
	c.mu.Unlock()
	if c.gone.Load() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	c.Handler.ServeHTTP(w, r)
}

// TestHold checks that slots are renewed while they are held, many in one call, and are free after they are released.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 1200
		api := &calls{Handler: checkAPI(limiter(slotsOf(slots)))}
		c := through(t, api, client.Options{})
		var held []*client.Slot
		for range slots {
			d := check(t, c, client.Request{Key: "a"})
			if !d.Allowed || d.SlotTTL != 9*time.Second || d.Receipt == "" {
				t.Fatalf("%+v", d)
			}
			held = append(held, c.Hold(&d))
			time.Sleep(time.Millisecond) // one call renews all slots that are due at about the same time
		}
		time.Sleep(time.Minute)
		d := check(t, c, client.Request{Key: "a"})
		if d.Allowed || !d.RetryIsGuess || d.RetryAfter > 9*time.Second {
			t.Errorf("all slots are in use, but got %+v", d)
		}
		if n := api.paths["/v1/renew"]; n < 2*19 || n > 2*24 {
			t.Errorf("%d calls for %d slots, each of which was due 20 times", n, slots)
		}
		for _, s := range held {
			select {
			case <-s.Lost():
				t.Fatal("a slot was lost")
			default:
			}
			if err := s.Release(); err != nil {
				t.Fatal(err)
			}
		}
		if n := api.paths["/v1/release"]; n != slots || held[0].Release() != nil || api.paths["/v1/release"] != slots {
			t.Errorf("%d releases", n)
		}
		before := api.paths["/v1/renew"]
		time.Sleep(time.Minute)
		if n := api.paths["/v1/renew"]; n != before {
			t.Errorf("%d renewals after the last release", n-before)
		}
		if d := check(t, c, client.Request{Key: "a", Cost: slots}); !d.Allowed {
			t.Errorf("all slots should be free, but got %+v", d)
		}
	})
}

// TestHoldWithoutASlot checks that holding a decision without a slot sends no requests.
func TestHoldWithoutASlot(t *testing.T) {
	api := &calls{Handler: checkAPI(limiter(perHour(1)))}
	c := open(t, client.Options{URL: node(t, api)})
	for range 2 { // allowed, and refused
		d := check(t, c, client.Request{Key: "a"})
		if err := c.Hold(&d).Release(); err != nil {
			t.Error(err)
		}
	}
	if fmt.Sprint(api.paths) != "map[/v1/checks:2]" {
		t.Error(api.paths)
	}
}

// TestLost checks that a slot is lost if it expires while Weir is unreachable and another client takes it. Once there
// is room, the client gets a slot again.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(slotsOf(1))
		api := &calls{Handler: checkAPI(l)}
		c, other := through(t, api, client.Options{}), through(t, checkAPI(l), client.Options{})
		d := check(t, c, client.Request{Key: "a"})
		slot := c.Hold(&d)
		api.gone.Store(true)
		time.Sleep(8 * time.Second)
		api.gone.Store(false)
		time.Sleep(2 * time.Second)
		if d := check(t, other, client.Request{Key: "a"}); d.Allowed {
			t.Fatal("the slot wasn't renewed in time after a failed renewal")
		}
		api.gone.Store(true)
		time.Sleep(12 * time.Second)
		taken := check(t, other, client.Request{Key: "a"})
		if !taken.Allowed {
			t.Fatalf("%+v", taken)
		}
		select {
		case <-slot.Lost():
			t.Fatal("the slot was reported as lost while Weir was unreachable")
		default:
		}
		api.gone.Store(false)
		<-slot.Lost()
		if err := other.Renew(t.Context(), d.Receipt); !errors.Is(err, weir.ErrSlotLost) {
			t.Error(err)
		}
		for range 2 {
			if err := other.Release(t.Context(), taken.Receipt); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(4 * time.Second)
		if d := check(t, other, client.Request{Key: "a"}); d.Allowed {
			t.Error("the request in flight didn't get a slot again")
		}
		if err := slot.Release(); err != nil {
			t.Error(err)
		}
		if d := check(t, other, client.Request{Key: "a"}); !d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}

// TestReleaseWaitsForARenewal checks that a release waits for a renewal in flight. If the renewal arrived after the
// release, it would take the slot again.
func TestReleaseWaitsForARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(slotsOf(1))
		api := checkAPI(l)
		c := through(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/renew" {
				time.Sleep(100 * time.Millisecond) // simulates a slow store
			}
			api.ServeHTTP(w, r)
		}), client.Options{})
		d := check(t, c, client.Request{Key: "a"})
		slot := c.Hold(&d)
		time.Sleep(3*time.Second + time.Millisecond) // a renewal is now in flight
		if err := slot.Release(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if d := check(t, c, client.Request{Key: "a"}); !d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}

// TestHoldOfTheFallback checks that slots of the fallback are renewed and released in this process.
func TestHoldOfTheFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := through(t, http.NotFoundHandler(), client.Options{Fallback: limiter(slotsOf(1))})
		d := check(t, c, client.Request{Key: "a"})
		if !d.Allowed || d.Receipt != "" || d.SlotTTL != 9*time.Second || !d.Degraded {
			t.Fatalf("%+v", d)
		}
		slot := c.Hold(&d)
		time.Sleep(time.Minute)
		if d := check(t, c, client.Request{Key: "a"}); d.Allowed || !d.RetryIsGuess {
			t.Errorf("%+v", d)
		}
		if err := slot.Release(); err != nil {
			t.Error(err)
		}
		if d := check(t, c, client.Request{Key: "a"}); !d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}
