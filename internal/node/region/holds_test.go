package region

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// bookings makes reservations for one limit in one region, all with the same id.
type bookings struct {
	*site
	of *counter.Policy
}

var booking = &counter.Hold{ID: counter.Once{1}, For: 2 * time.Hour}

func (b *bookings) held(n int64) counter.Charge {
	c := asks(b.of, "a", n)
	c.Hold = booking
	return c
}

func (b *bookings) reserve(n int64) counter.Result { return take(b.site, b.held(n))[0] }

// back settles a reservation of n, of which some was used. A mark of zero means none.
func (b *bookings) back(mark byte, n, used int64) error {
	return b.GiveBack(context.Background(), counter.Once{mark}, time.Hour, []counter.Return{{Counter: b.held(n).Counter, N: n, Used: used, Hold: booking}})
}

// TestSettledReservations checks that settling a reservation of a shared limit gives back at most what was reserved,
// and only once. A charge that was never made gives nothing back.
func TestSettledReservations(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, b *bookings)
		left int64 // of the 900 that the region owns; 100 are used before
	}{
		{"all of it", func(t *testing.T, b *bookings) {
			b.reserve(500)
			_ = b.back(1, 500, 0)
		}, 800},
		{"what wasn't used", func(t *testing.T, b *bookings) {
			b.reserve(500)
			_ = b.back(1, 500, 200)
		}, 600},
		{"more was used", func(t *testing.T, b *bookings) {
			b.reserve(500)
			_ = b.back(1, 500, 600)
		}, 200},
		{"a receipt says more than was reserved", func(t *testing.T, b *bookings) {
			b.reserve(50)
			_ = b.back(1, 150, 0)
		}, 800},
		{"twice, under two marks", func(t *testing.T, b *bookings) {
			b.reserve(50)
			_ = b.back(1, 50, 0)
			_ = b.back(2, 50, 0)
		}, 800},
		{"twice, without a mark", func(t *testing.T, b *bookings) {
			b.reserve(50)
			_ = b.back(0, 50, 0)
			_ = b.back(0, 50, 0)
		}, 800},
		{"twice, under one mark, and reserved again between", func(t *testing.T, b *bookings) {
			b.reserve(50)
			_ = b.back(1, 50, 0)
			b.reserve(50)
			if err := b.back(1, 50, 0); !errors.Is(err, counter.ErrUsed) {
				t.Errorf("%v", err)
			}
		}, 750},
		{"nothing yet, and it was asked for twice", func(t *testing.T, b *bookings) {
			b.reserve(50)
			if r := b.reserve(50); !r.Allowed || !r.Again {
				t.Errorf("%+v", r)
			}
		}, 750},
		{"it was never asked for", func(t *testing.T, b *bookings) {
			_ = b.back(1, 50, 0)
		}, 800},
		{"it was refused", func(t *testing.T, b *bookings) {
			if r := b.reserve(950); r.Allowed {
				t.Errorf("%+v", r)
			}
			_ = b.back(1, 50, 0)
		}, 800},
		{"another limit had refused", func(t *testing.T, b *bookings) {
			own := policyOf(t, "own", counter.PerHour(1), false)
			take(b.site, asks(own, "a", 1))
			if r := take(b.site, asks(own, "a", 1), b.held(50)); r[0].Allowed || r[1].Remaining != 800 {
				t.Errorf("%+v", r)
			}
			_ = b.back(1, 50, 0)
		}, 800},
		{"its window is over", func(t *testing.T, b *bookings) {
			b.reserve(500)
			time.Sleep(budget.Window)
			take(b.site, asks(b.of, "a", 100))
			_ = b.back(1, 500, 0)
		}, 800},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTime(t, func(t *testing.T, us, eu, ap *site) {
				eu.cut.Store(true) // us only has what it owns
				ap.cut.Store(true)
				time.Sleep(2 * silentAfter)
				p := sharedPolicy(t, "money", budget)
				take(us, asks(p, "a", 100))
				c.do(t, &bookings{us, p})
				peek := asks(p, "a", 1)
				peek.Peek = true
				if r := take(us, peek)[0]; r.Remaining != c.left || r.Err != nil {
					t.Errorf("%d are left, want %d: %v", r.Remaining, c.left, r.Err)
				}
			})
		})
	}
}

// TestMarksOfSeveralLimits checks that if only one of several limits was given back, a retry gives back the others
// only.
func TestMarksOfSeveralLimits(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		p, q := sharedPolicy(t, "p", budget), sharedPolicy(t, "q", budget)
		q = q.With(func(d *counter.Definition) { d.ID = p.ID + 1 })
		take(us, asks(p, "a", 100), asks(q, "a", 100))
		of := func(p *counter.Policy) counter.Return { return counter.Return{Counter: asks(p, "a", 1).Counter, N: 40} }
		for i, returns := range [][]counter.Return{{of(p)}, {of(p), of(q)}, {of(p), of(q)}} {
			if err := us.GiveBack(t.Context(), counter.Once{1}, time.Hour, returns); i < 2 && err != nil || i == 2 && !errors.Is(err, counter.ErrUsed) {
				t.Errorf("%d: %v", i, err)
			}
		}
		for _, p := range []*counter.Policy{p, q} {
			peek := asks(p, "a", 1)
			peek.Peek = true
			if n := take(us, peek)[0].Remaining; n != 900-60 {
				t.Errorf("%d are left of %s", n, p.Name)
			}
		}
	})
}
