package load

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// If one client is admitted too often, that doesn't make up for another client's losses.
func TestOracleComparesByClient(t *testing.T) {
	refuse := func(client uint32) Target {
		return target(func(_ context.Context, n uint32) Answer {
			if n == client {
				return Answer{Outcome: Refused}
			}
			return Answer{}
		})
	}
	o := NewOracle(refuse(1), refuse(2), 10)
	without := NewOracle(target(func(context.Context, uint32) Answer { return Answer{Degraded: true} }), refuse(0), 1)
	without.Sender().Send(t.Context(), 0)
	if c := without.Compare(); c.Degraded != 1 || c.Over != 1 {
		t.Errorf("without the store: %+v", c)
	}
	s := o.Sender()
	for _, n := range []uint32{1, 1, 1, 2, 2, 3, 4, 5, 6} {
		if a := s.Send(t.Context(), n); (a.Outcome == Refused) != (n == 1) {
			t.Errorf("client %d: %+v", n, a)
		}
	}
	c := o.Compare()
	if c.Checks != 9 || c.Admitted != 6 || c.Exact != 7 || c.Over != 2 || c.Lost != 3 {
		t.Fatalf("%+v", c)
	}
}

// The oracle counts from the first request on, unlike the measurement.
func TestOracleCountsTheWarmup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		odd := target(func(_ context.Context, n uint32) Answer {
			if n%2 == 0 {
				return Answer{Outcome: Refused}
			}
			return Answer{}
		})
		o := NewOracle(takes(time.Millisecond), odd, 3)
		r := mustRun(t, Plan{Duration: time.Second, Warmup: time.Second, Rate: 100, Keys: 3}, o)
		c := o.Compare()
		if r.Checks != 100 || c.Checks != 200 || c.Admitted != 200 || c.Exact >= 200 || c.Lost != 0 || c.Over != c.Admitted-c.Exact {
			t.Errorf("%d checks, %+v", r.Checks, c)
		}
		r.Oracle = c
		var text strings.Builder
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"oracle  checks  admitted  exact\n        200     200", "\nover ", "\nlost    0\n"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("no %q in\n%s", want, text.String())
			}
		}
	})
}
