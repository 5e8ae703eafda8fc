package load

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The store's figures count from the start of the measured time.
func TestStoreUseIsThatOfTheMeasuredTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		to := target(func(context.Context, uint32) Answer { sent.Add(1); return Answer{} })
		p := Plan{
			Duration: time.Second, Warmup: 9 * time.Second, Rate: 100,
			StoreCPU: func(context.Context) (time.Duration, error) {
				return time.Duration(sent.Load()) * time.Millisecond, nil
			},
			StoreCalls: func() uint64 { return uint64(sent.Load() / 2) },
			Leases:     func() (local, asked uint64) { return uint64(3 * sent.Load()), uint64(sent.Load()) },
		}
		r := mustRun(t, p, to)
		if r.StoreCPU.PerMillion < 900 || r.StoreCPU.PerMillion > 1100 {
			t.Errorf("%+v", r.StoreCPU)
		}
		if c := r.StoreCalls; c.PerCheck < 0.45 || c.PerCheck > 0.55 {
			t.Errorf("%+v", c)
		}
		if l := r.Leases; l.AskedPerCheck < 0.9 || l.AskedPerCheck > 1.1 || l.Local != 3*l.Asked || l.LocalShare < 0.74 || l.LocalShare > 0.76 {
			t.Errorf("%+v", l)
		}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("leases       %.2f%% of charges decided without the store; ", 100*r.Leases.LocalShare); !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	})
}

// A busy server answers INFO late. Requests sent while weir bench waits for that answer aren't counted, since they would raise
// the rate.
func TestStoreUseThatIsReportedLate(t *testing.T) {
	for _, warmup := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			cpu := func(ctx context.Context) (time.Duration, error) {
				select {
				case <-ctx.Done():
					return 0, ctx.Err()
				case <-time.After(3 * time.Second):
					return 5, nil
				}
			}
			r := mustRun(t, Plan{Duration: 2 * time.Second, Warmup: warmup, Workers: 1, StoreCPU: cpu}, takes(time.Millisecond))
			if r.StoreCPU.Unknown != "" || r.Checks < 1990 || r.Checks > 2010 || r.Seconds != 2 {
				t.Errorf("%d checks in %v s, %+v", r.Checks, r.Seconds, r.StoreCPU)
			}
		})
	}
}

// If the server's CPU time can't be read before or after the measurement, the report says why.
func TestStoreUseThatIsUnknown(t *testing.T) {
	for _, failing := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			cpu := func(context.Context) (time.Duration, error) {
				if asked++; asked == failing {
					return 0, errors.New("not told")
				}
				return 5, nil
			}
			r := mustRun(t, Plan{Duration: time.Second, Rate: 10, StoreCPU: cpu}, takes(time.Millisecond))
			if c := r.StoreCPU; c.Unknown != "not told" || c.Seconds != 0 || asked != 2 {
				t.Errorf("%+v, asked %d times", c, asked)
			}
			var text strings.Builder
			if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "store CPU  not told\n") {
				t.Errorf("%v, got\n%s", err, text.String())
			}
			if r.StoreCalls != nil || r.Leases != nil {
				t.Errorf("%+v %+v", r.StoreCalls, r.Leases)
			}
		})
	}
}
