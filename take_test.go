package weir_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

// ownPolicy returns the policy of an edge's own limit per hour.
func ownPolicy(t *testing.T, name string, n int64, mode counter.FailureMode) *counter.Policy {
	t.Helper()
	p, err := counter.NewPolicy(name, weir.Limit{Count: n, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	p = p.With(func(d *counter.Definition) { d.OnStoreFailure = mode })
	return p
}

func charge(p *counter.Policy, subject string, n int64) counter.Charge {
	return counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte(subject)}, N: n}
}

// left peeks at each counter and returns what is left.
func left(t *testing.T, l *weir.Limiter, charges ...counter.Charge) []int64 {
	t.Helper()
	d, err := private.Take(l, t.Context(), &weir.Request{Peek: true}, charges, nil)
	if err != nil {
		t.Fatal(err)
	}
	var left []int64
	for _, s := range d.Limits() {
		left = append(left, s.Remaining)
	}
	return left
}

func TestTakeIsAllOrNothing(t *testing.T) {
	var seen []weir.Decision
	rules := compile(t, weir.Rules{Version: 7, Rules: []weir.Rule{{ID: "a", Limits: per(1, time.Hour)}}, Deny: []string{"k"}})
	l := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{
		Observe: func(o *weir.Observation) { seen = append(seen, *o.Decision) }})
	small, large := ownPolicy(t, "small", 5, weir.FailAllow), ownPolicy(t, "large", 100, weir.FailAllow)
	charges := []counter.Charge{charge(large, "acme", 3), charge(small, "ada", 2)}
	req := &weir.Request{APIKey: "k"} // the rules deny this key, but they don't apply here
	for i := range 3 {
		d, err := private.Take(l, t.Context(), req, charges, nil)
		if err != nil || d.Allowed != (i < 2) || d.Rule != "small" || d.Policy != small || d.RulesVersion != 7 {
			t.Fatalf("take %d: %+v, %v", i, d, err)
		}
		if s := d.Limits()[0]; s.Policy != large || !s.Allowed || s.Remaining != []int64{97, 94, 94}[i] {
			t.Fatalf("take %d: %+v", i, s)
		}
	}
	if len(seen) != 3 || seen[2].Allowed || seen[2].Reason != weir.ReasonLimited {
		t.Errorf("the observer saw %+v", seen)
	}
	// Some of the charges may be peeks. They can bind, and take nothing.
	charges[1].Peek, charges[1].N = true, 1
	if d, _ := private.Take(l, t.Context(), req, charges, nil); !d.Allowed {
		t.Errorf("a peek beside a charge: %+v", d)
	}
	if got := left(t, l, charges...); !slices.Equal(got, []int64{91, 1}) {
		t.Errorf("left after a peek beside a charge: %v", got)
	}
	if charges[1].N = 2; !slices.Equal(left(t, l, charges...), []int64{91, 1}) {
		t.Error("a request that peeks took something")
	}
	if d, _ := private.Take(l, t.Context(), req, charges, nil); d.Allowed {
		t.Errorf("a peek that doesn't fit, beside a charge: %+v", d)
	}
	if got := left(t, l, charges...); !slices.Equal(got, []int64{91, 1}) {
		t.Errorf("left after a refusal: %v", got)
	}
	if d, err := private.Take(l, t.Context(), req, nil, nil); !d.Allowed || d.Reason != weir.ReasonUnlimited || err != nil {
		t.Errorf("no charges: %+v, %v", d, err)
	}
	// A cost out of range becomes the nearest valid cost.
	for n, want := range map[int64]int64{-3: 4, 0: 4, 1 << 62: 5} {
		l := limiter(t)
		d, err := private.Take(l, t.Context(), req, []counter.Charge{charge(small, "ada", n)}, nil)
		if err != nil || d.Allowed != (n <= 0) || d.Remaining != want {
			t.Errorf("a cost of %d: %+v, %v", n, d, err)
		}
	}
}

func TestTakeIsFinishedLikeACheck(t *testing.T) {
	l := limiter(t)
	plain, login := ownPolicy(t, "plain", 10, weir.FailAllow), ownPolicy(t, "login", 10, weir.FailAllow)
	login = login.With(func(d *counter.Definition) { d.Statuses = []int{401} })
	charges := []counter.Charge{charge(plain, "ada", 3), charge(login, "ada", 2), charge(plain, "bob", 1)}
	charges[2].Peek = true
	for _, test := range []struct {
		receipt bool
		outcome weir.Outcome
		want    []int64
	}{
		{false, weir.Outcome{Status: 200}, []int64{7, 10, 10}},
		{false, weir.Outcome{Status: 401}, []int64{4, 8, 10}},
		{true, weir.Outcome{Abandoned: true}, []int64{4, 8, 10}},
	} {
		d, err := private.Take(l, t.Context(), &weir.Request{Receipt: test.receipt}, charges, nil)
		if err != nil || !d.Allowed || !d.Unfinished() || (d.Receipt != "") != test.receipt {
			t.Fatalf("%+v, %v", d, err)
		}
		if err := l.Finish(t.Context(), &d, test.outcome); err != nil {
			t.Fatal(err)
		}
		if got := left(t, l, charges...); !slices.Equal(got, test.want) {
			t.Errorf("%+v: %v left, want %v", test.outcome, got, test.want)
		}
	}
}

func TestTakeFollowsFailureModes(t *testing.T) {
	store := &brokenStore{Store: memstore.New(memstore.Options{})}
	l := weir.NewLimiter(store, nil, weir.Options{
		Local: memstore.New(memstore.Options{}), Emergency: ownPolicy(t, "emergency", 3, weir.FailAllow)})
	open, closed, local := ownPolicy(t, "open", 1, weir.FailAllow), ownPolicy(t, "closed", 9, weir.FailRefuse), ownPolicy(t, "local", 1, weir.FailLocal)
	healthy := ownPolicy(t, "healthy", 9, weir.FailAllow)
	store.fails = []string{"open", "closed", "local"}
	take := func(req weir.Request, charges ...counter.Charge) weir.Decision {
		d, err := private.Take(l, t.Context(), &req, charges, nil)
		if !errors.Is(err, errGone) || !d.Degraded {
			t.Errorf("%+v, %v", d, err)
		}
		return d
	}
	ada := weir.Request{IP: ip1}
	if d := take(ada, charge(closed, "ada", 1), charge(healthy, "ada", 1)); d.Allowed || d.Reason != weir.ReasonUnavailable || d.Rule != "closed" {
		t.Errorf("a failed limit that refuses: %+v", d)
	}
	if got := left(t, l, charge(healthy, "ada", 1)); got[0] != 9 {
		t.Errorf("what a refused take took didn't go back: %v", got)
	}
	for i := range 2 {
		if d := take(ada, charge(local, "ada", 1)); d.Allowed != (i < 1) || d.Rule != "local" {
			t.Errorf("local take %d: %+v", i, d)
		}
	}
	for i := range 3 {
		d := take(ada, charge(open, "bob", 1))
		if d.Allowed != (i < 2) || !d.Allowed && d.Rule != "emergency" {
			t.Errorf("take %d by an address that was admitted once: %+v", i, d)
		}
	}
	if d := take(weir.Request{IP: ip2, Peek: true}, charge(open, "bob", 1)); !d.Allowed || d.Remaining != 3 {
		t.Errorf("a peek: %+v", d)
	}
}

// The emergency limit counts takes without an address by their keys, so that one caller can't use it up for all. Checks
// without an address share a counter, because clients can make up their keys.
func TestEmergencyLimitWithoutAddresses(t *testing.T) {
	store := &brokenStore{Store: memstore.New(memstore.Options{}), fails: []string{"open", "all"}}
	l := weir.NewLimiter(store, compile(t, weir.Rules{Rules: []weir.Rule{{ID: "all", Limits: []weir.Limit{weir.PerSecond(1)}}}}), weir.Options{
		Local: memstore.New(memstore.Options{}), Emergency: ownPolicy(t, "emergency", 2, weir.FailAllow)})
	open := ownPolicy(t, "open", 1, weir.FailAllow)
	for _, key := range []string{"ada", "bob"} {
		for i := range 3 {
			d, err := private.Take(l, t.Context(), &weir.Request{APIKey: key}, []counter.Charge{charge(open, key, 1)}, nil)
			if !errors.Is(err, errGone) || d.Allowed != (i < 2) || d.Rule != "emergency" {
				t.Errorf("take %d of %s: %+v, %v", i, key, d, err)
			}
		}
	}
	for i, key := range []string{"ada", "bob", "eve"} {
		d, err := l.Check(t.Context(), &weir.Request{APIKey: key})
		if !errors.Is(err, errGone) || d.Allowed != (i < 2) || d.Rule != "emergency" {
			t.Errorf("check %d: %+v, %v", i, d, err)
		}
	}
}

// Local counters are also all or nothing while the store is unreachable. This includes the emergency limit.
func TestFallingBackIsAllOrNothing(t *testing.T) {
	store := &brokenStore{Store: memstore.New(memstore.Options{}), fails: []string{"many", "few", "closed"}}
	l := weir.NewLimiter(store, nil, weir.Options{
		Local: memstore.New(memstore.Options{}), Emergency: ownPolicy(t, "emergency", 2, weir.FailAllow)})
	many, few := ownPolicy(t, "many", 9, weir.FailLocal), ownPolicy(t, "few", 1, weir.FailLocal)
	healthy, closed := ownPolicy(t, "healthy", 9, weir.FailAllow), ownPolicy(t, "closed", 9, weir.FailRefuse)
	take := func(req weir.Request, charges ...counter.Charge) weir.Decision {
		req.IP = ip1
		d, err := private.Take(l, t.Context(), &req, charges, nil)
		if !errors.Is(err, errGone) {
			t.Fatal(err)
		}
		return d
	}
	expect := func(why string, want ...int64) { // of healthy, many, emergency
		t.Helper()
		d := take(weir.Request{Peek: true}, charge(healthy, "s", 1), charge(many, "s", 1))
		for i, s := range d.Limits() {
			if s.Remaining != want[i] {
				t.Errorf("%s: %d left of %s, want %d", why, s.Remaining, s.Policy.Name, want[i])
			}
		}
	}
	all := []counter.Charge{charge(healthy, "s", 1), charge(many, "s", 1), charge(few, "s", 1)}
	if d := take(weir.Request{}, all...); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	expect("after one that was admitted", 8, 8, 1)
	if d := take(weir.Request{}, all...); d.Allowed || d.Rule != "few" {
		t.Fatalf("%+v", d)
	}
	expect("after a refusal by a local limit", 8, 8, 1)
	if d := take(weir.Request{}, charge(closed, "s", 1), charge(healthy, "s", 1), charge(many, "s", 1)); d.Allowed || d.Rule != "closed" {
		t.Fatalf("%+v", d)
	}
	expect("after a refusal by a failed limit", 8, 8, 1)
	if d := take(weir.Request{}, charge(healthy, "s", 9), charge(many, "s", 1)); d.Allowed || d.Rule != "healthy" {
		t.Fatalf("%+v", d)
	}
	expect("after a refusal by a healthy limit", 8, 8, 1)
	take(weir.Request{}, charge(many, "s", 1))
	if d := take(weir.Request{}, all[:2]...); d.Allowed || d.Rule != "emergency" {
		t.Fatalf("%+v", d)
	}
	expect("after a refusal by the emergency limit", 8, 7, 0)
	closed = closed.With(func(d *counter.Definition) { d.Shadow = true })
	if d := take(weir.Request{}, charge(closed, "s", 1), charge(many, "t", 1)); d.Allowed || d.Rule != "emergency" {
		t.Fatalf("%+v", d)
	}
}

// The store takes nothing for a request that one of its limits refuses. The limits that had room must not get tokens back,
// even if a third limit couldn't be reached: that would mint tokens.
func TestARefusalBesideAFailureGivesNothingBack(t *testing.T) {
	for _, mode := range []counter.FailureMode{weir.FailAllow, weir.FailRefuse, weir.FailLocal} {
		store := &brokenStore{Store: memstore.New(memstore.Options{}), fails: []string{"gone"}}
		l := weir.NewLimiter(store, nil, weir.Options{Local: memstore.New(memstore.Options{})})
		gone, few, many := ownPolicy(t, "gone", 9, mode), ownPolicy(t, "few", 1, weir.FailAllow), ownPolicy(t, "many", 9, weir.FailAllow)
		healthy := []counter.Charge{charge(few, "s", 1), charge(many, "s", 3)}
		if d, err := private.Take(l, t.Context(), &weir.Request{}, healthy, nil); !d.Allowed || err != nil {
			t.Fatal(d, err)
		}
		d, err := private.Take(l, t.Context(), &weir.Request{}, append(healthy, charge(gone, "s", 1)), nil)
		if d.Allowed || !errors.Is(err, errGone) {
			t.Fatal(d, err)
		}
		if got := left(t, l, healthy...); !slices.Equal(got, []int64{0, 6}) {
			t.Errorf("mode %d: %v left, want 0 and 6", mode, got)
		}
	}
}
