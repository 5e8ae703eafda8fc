package region

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// TestRefusalsThatArentBelieved checks cases in which a check asks the home although it has just refused.
func TestRefusalsThatArentBelieved(t *testing.T) {
	small := counter.Limit{Algorithm: counter.FixedWindow, Count: 10, Window: time.Hour}
	for _, c := range []struct {
		name  string
		limit counter.Limit
		do    func(t *testing.T, us, eu *site, p, q *counter.Policy)
	}{
		{"it is time to retry", counter.Limit{Count: 10, Window: time.Second, Burst: 10}, func(t *testing.T, us, eu *site, p, q *counter.Policy) {
			take(eu, asks(p, "a", 10))
			r := take(eu, asks(p, "a", 1))[0]
			if r.Allowed || r.RetryAfter >= believeFor {
				t.Fatalf("%+v", r)
			}
			time.Sleep(r.RetryAfter)
			if r := take(eu, asks(p, "a", 1))[0]; !r.Allowed {
				t.Errorf("%+v", r)
			}
		}},
		{"it was reserved before", small, func(t *testing.T, us, eu *site, p, q *counter.Policy) {
			held := asks(p, "a", 8)
			held.Hold = &counter.Hold{ID: counter.Once{1}, For: time.Hour}
			take(eu, held)
			take(eu, asks(p, "a", 5))
			if r := take(eu, held)[0]; !r.Allowed || !r.Again {
				t.Errorf("repeated: %+v", r)
			}
		}},
		{"it only looks", small, func(t *testing.T, us, eu *site, p, q *counter.Policy) {
			take(eu, asks(p, "a", 8))
			take(eu, asks(p, "a", 5))
			take(eu, asks(p, "a", 1))
			peek := asks(p, "a", 5)
			peek.Peek = true
			if r := take(eu, peek)[0]; r.Remaining != 1 {
				t.Errorf("%+v", r)
			}
		}},
		{"only a peek didn't fit", small, func(t *testing.T, us, eu *site, p, q *counter.Policy) {
			take(eu, asks(p, "a", 8))
			peek := asks(p, "a", 5)
			peek.Peek = true
			take(eu, peek)
			if err := eu.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{{Counter: peek.Counter, N: 8}}); err != nil {
				t.Fatal(err)
			}
			if r := take(eu, asks(p, "a", 5))[0]; !r.Allowed {
				t.Errorf("%+v", r)
			}
		}},
		{"another limit of the same home is asked, too", small, func(t *testing.T, us, eu *site, p, q *counter.Policy) {
			take(eu, asks(p, "a", 10), asks(q, "a", 3))
			take(eu, asks(p, "a", 1))
			if r := take(eu, asks(p, "a", 1), asks(q, "a", 1)); r[0].Allowed || !r[1].Allowed || r[1].Remaining != 7 {
				t.Errorf("%+v", r)
			}
		}},
		{"it was allowed", small, func(t *testing.T, us, eu *site, p, q *counter.Policy) {
			for i := range 20 {
				if r := take(eu, asks(p, "a", 1))[0]; r.Allowed != (i < 10) {
					t.Errorf("%d: %+v", i, r)
				}
			}
		}},
		{"it never fits", small, func(t *testing.T, us, eu *site, p, q *counter.Policy) {
			for range 2 {
				if r := take(eu, asks(p, "a", 11))[0]; r.Allowed || r.RetryAfter != counter.Never {
					t.Errorf("%+v", r)
				}
				time.Sleep(time.Millisecond)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTime(t, func(t *testing.T, us, eu, _ *site) {
				eu.refusals.believed = believeFor
				p, q := policyOf(t, "p", c.limit, true), policyOf(t, "q", c.limit, true)
				q = q.With(func(d *counter.Definition) { d.ID = 1 })
				c.do(t, us, eu, p, q)
			})
		})
	}
}

// TestRefusalsAreBounded checks that a node remembers a limited number of refusals, because clients may make up names.
func TestRefusalsAreBounded(t *testing.T) {
	r, p := refusals{believed: believeFor}, policyOf(t, "p", counter.PerHour(10), true)
	for i := range maxRefusals + 10 {
		c := asks(p, fmt.Sprint(i), 1)
		r.note(&c, &counter.Result{RetryAfter: time.Hour})
	}
	if n := len(r.by); n == 0 || n > maxRefusals {
		t.Errorf("%d are remembered", n)
	}
}
