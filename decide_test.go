package weir_test

import (
	"context"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

// fullStore has no room for the subjects of guests.
type fullStore struct {
	*memstore.Store
	err  error
	gone string // a rule whose counters can't be reached
}

func (s *fullStore) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	for i := range charges {
		switch {
		case charges[i].Policy.Rule == s.gone:
			results[i] = counter.Result{Err: errGone}
			continue
		case charges[i].Guest:
			results[i] = counter.Result{Err: s.err}
			continue
		}
		s.Store.Take(ctx, charges[i:i+1], results[i:i+1])
	}
}

// Guests that the store has no room for share a counter by their address. Other clients keep their own counters.
func TestGuestsWithoutRoomAreCountedByAddress(t *testing.T) {
	for _, mode := range []counter.FailureMode{weir.FailAllow, weir.FailRefuse} {
		store := &fullStore{Store: memstore.New(memstore.Options{}), err: counter.ErrNoRoom}
		rs := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", OnStoreFailure: mode, Limits: per(2, time.Hour)}}})
		l := weir.NewLimiter(store, rs, weir.Options{})
		for i, key := range []string{"made-up-1", "made-up-2", "made-up-3"} {
			d := check(t, l, weir.Request{APIKey: key, IP: ip1})
			if d.Allowed != (i < 2) || !d.Degraded || d.Rule != "a" {
				t.Errorf("guest %d of one address: %+v", i, d)
			}
		}
		if d := check(t, l, weir.Request{APIKey: "made-up-4", IP: ip2}); !d.Allowed {
			t.Errorf("another address: %+v", d)
		}
		if d := check(t, l, weir.Request{APIKey: "real", KeyVerified: true, IP: ip1}); !d.Allowed || d.Degraded {
			t.Errorf("a verified key: %+v", d)
		}
		if d, err := l.Check(t.Context(), &weir.Request{APIKey: "made-up-5"}); d.Allowed != (mode == weir.FailAllow) || err == nil {
			t.Errorf("a guest without an address: %+v, %v", d, err)
		}
		store.err = errGone
		if d, err := l.Check(t.Context(), &weir.Request{APIKey: "made-up-6", IP: ip2}); d.Allowed != (mode == weir.FailAllow) || err == nil {
			t.Errorf("a guest whose store is gone: %+v, %v", d, err)
		}
	}
}

// Tokens taken from the counter of an address go back if the response's status doesn't count, and if the request is
// refused in the end. A peek gives nothing back.
func TestGuestsCountedByAddressAreGivenBack(t *testing.T) {
	left := func(t *testing.T, l *weir.Limiter) int64 {
		t.Helper()
		return check(t, l, weir.Request{APIKey: "another", IP: ip1, Peek: true}).Remaining
	}
	rule := weir.Rule{ID: "a", Limits: per(9, time.Hour), Statuses: []int{401}}
	store := &fullStore{Store: memstore.New(memstore.Options{}), err: counter.ErrNoRoom}
	l := weir.NewLimiter(store, compile(t, weir.Rules{Rules: []weir.Rule{rule}}), weir.Options{})
	for _, c := range []struct {
		status int
		want   int64
	}{{401, 8}, {200, 8}, {401, 7}} {
		d := check(t, l, weir.Request{APIKey: "made-up", IP: ip1})
		if !d.Allowed || !d.Unfinished() {
			t.Fatalf("%+v", d)
		}
		if err := l.Finish(t.Context(), &d, weir.Outcome{Status: c.status}); err != nil || left(t, l) != c.want {
			t.Errorf("after %d, %d are left, want %d; %v", c.status, left(t, l), c.want, err)
		}
	}
	// Another limit can't reach its store and fails closed, either before or after the limit by address.
	for _, first := range []bool{true, false} {
		rules := []weir.Rule{rule, {ID: "gone", Layer: "other", OnStoreFailure: weir.FailRefuse, By: []string{"ip"}, Limits: per(9, time.Hour)}}
		at := 0
		if first {
			rules[0], rules[1], at = rules[1], rules[0], 1
		}
		store.gone = "gone"
		l.SetRules(compile(t, weir.Rules{Rules: rules}))
		d, err := l.Check(t.Context(), &weir.Request{APIKey: "made-up", IP: ip1})
		if d.Allowed || err == nil || d.Limits()[at].Policy.Rule != "a" {
			t.Errorf("%+v, %v", d, err)
		}
		store.gone = ""
		l.SetRules(compile(t, weir.Rules{Rules: []weir.Rule{rule}}))
		if got := left(t, l); got != 7 {
			t.Errorf("first %v: %d are left, want 7", first, got)
		}
	}
}

// If the counter of a guest's address refuses, the request takes nothing from its other limits, in any order.
func TestGuestsRefusedByAddressTakeNothing(t *testing.T) {
	address := weir.Rule{ID: "address", Layer: "1", By: []string{"ip"}, Limits: per(100, time.Hour)}
	wide := weir.Rule{ID: "wide", Layer: "2", By: []string{"api_key"}, Limits: per(100, time.Hour)}
	narrow := weir.Rule{ID: "narrow", Layer: "3", By: []string{"api_key"}, Limits: per(2, time.Hour)}
	booked := weir.Rule{ID: "booked", Layer: "4", By: []string{"api_key"}, Limits: per(100, time.Hour), Book: true}
	for _, rules := range [][]weir.Rule{{address, narrow}, {narrow, address}, {wide, narrow}, {narrow, wide}, {booked, narrow}, {narrow, booked}} {
		store := &fullStore{Store: memstore.New(memstore.Options{}), err: counter.ErrNoRoom}
		l := weir.NewLimiter(store, compile(t, weir.Rules{Rules: rules}), weir.Options{})
		admitted := 0
		for range 50 {
			if check(t, l, weir.Request{APIKey: "made-up", IP: ip1}).Allowed {
				admitted++
			}
		}
		d := check(t, l, weir.Request{APIKey: "made-up", IP: ip1, Peek: true})
		for _, s := range d.Limits() {
			want := map[string]int64{"address": 98, "wide": 98, "narrow": 0, "booked": 50}[s.Policy.Rule]
			if admitted != 2 || s.Remaining != want {
				t.Errorf("%s, %s: %d admitted; of %q %d are left, want %d", rules[0].ID, rules[1].ID, admitted, s.Policy.Rule, s.Remaining, want)
			}
		}
	}
}

// Finish gives back only what was taken from the store. It gives nothing back for limits that failed, were counted locally,
// or refused in shadow mode.
func TestFinishGivesBackOnlyWhatWasTaken(t *testing.T) {
	for _, mode := range []counter.FailureMode{weir.FailAllow, weir.FailLocal} {
		store := &brokenStore{Store: memstore.New(memstore.Options{})}
		l := weir.NewLimiter(store, nil, weir.Options{Local: memstore.New(memstore.Options{})})
		gone, healthy, shadow := ownPolicy(t, "gone", 9, mode), ownPolicy(t, "healthy", 9, weir.FailAllow), ownPolicy(t, "shadow", 3, weir.FailAllow)
		shadow = shadow.With(func(d *counter.Definition) { d.Shadow = true })
		charges := []counter.Charge{charge(gone, "s", 2), charge(healthy, "s", 2), charge(shadow, "s", 2)}
		for i, want := range []int64{7, 5} {
			if i == 1 {
				store.fails = []string{"gone"}
			}
			d, _ := private.Take(l, t.Context(), &weir.Request{Receipt: true}, charges, nil)
			if s := d.Limits()[1]; !d.Allowed || d.Degraded != (i == 1) || s.Remaining != want {
				t.Fatalf("%+v", d)
			}
			if i == 1 {
				store.fails = nil
				if err := l.Finish(t.Context(), &d, weir.Outcome{Abandoned: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		got := left(t, l, charges...)
		if got[0] != 7 || got[1] != 7 || got[2] != 1 {
			t.Errorf("mode %d: %v left, want 7, 7 and 1", mode, got)
		}
	}
}

// Among refusals, the one with the longest wait binds, and one that waiting can't cure is the longest. Among limits with the
// same number of requests left, the first binds.
func TestWhichLimitBinds(t *testing.T) {
	l := limiter(t)
	minute, err := counter.NewPolicy("minute", weir.PerMinute(1))
	if err != nil {
		t.Fatal(err)
	}
	hour, never, twin := ownPolicy(t, "hour", 1, weir.FailAllow), ownPolicy(t, "never", 1, weir.FailAllow), ownPolicy(t, "twin", 1, weir.FailAllow)
	m, h, n, w := charge(minute, "s", 1), charge(hour, "s", 1), charge(never, "s", 2), charge(twin, "s", 1)
	decide := func(charges ...counter.Charge) weir.Decision {
		t.Helper()
		d, err := private.Take(l, t.Context(), &weir.Request{}, charges, nil)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := decide(h, w); !d.Allowed || d.Degraded || d.Rule != "hour" {
		t.Errorf("two alike: %+v", d)
	}
	decide(m)
	for _, test := range []struct {
		charges []counter.Charge
		binds   string
	}{
		{[]counter.Charge{m, h}, "hour"}, {[]counter.Charge{h, m}, "hour"},
		{[]counter.Charge{m, n}, "never"}, {[]counter.Charge{n, m}, "never"}, {[]counter.Charge{n, h, m}, "never"},
	} {
		if d := decide(test.charges...); d.Allowed || d.Rule != test.binds || (d.RetryAfter == weir.Never) != (test.binds == "never") {
			t.Errorf("%+v, want %s", d, test.binds)
		}
	}
}

func TestListsTellNobodyToWait(t *testing.T) {
	rs := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(1, time.Hour)}}, Deny: []string{"bad"}, Allow: []string{"good"}})
	l := weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{})
	if d := check(t, l, weir.Request{APIKey: "bad"}); d.Allowed || d.RetryAfter != weir.Never {
		t.Errorf("denied: %+v", d)
	}
	if d := check(t, l, weir.Request{APIKey: "good", KeyVerified: true}); !d.Allowed || d.RetryAfter != 0 {
		t.Errorf("bypassed: %+v", d)
	}
}

// An emergency limit without a local store doesn't apply.
func TestEmergencyLimitNeedsALocalStore(t *testing.T) {
	store := &brokenStore{Store: memstore.New(memstore.Options{}), fails: []string{"a"}}
	rs := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(1, time.Hour)}}})
	l := weir.NewLimiter(store, rs, weir.Options{Emergency: ownPolicy(t, "emergency", 1, weir.FailAllow)})
	for range 3 {
		if d, err := l.Check(t.Context(), &weir.Request{APIKey: "k", IP: ip1}); !d.Allowed || err == nil {
			t.Errorf("%+v, %v", d, err)
		}
	}
}
