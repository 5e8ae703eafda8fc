package faults

import (
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The client of a Cluster sleeps for seconds before it closes connections to a server that is gone.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient).redirectOrNew.func1"),
		// And for one before it looks again who owns which slot.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

// One after the other: each counts this process's goroutines. The bounds are for a
// machine that does ten other things; the budget is, too, since what is late by more is degraded.
func TestScenarios(t *testing.T) {
	bounds := Bounds{Slowest: 20 * time.Second, Factor: 4, Serving: 20 * time.Second, Exact: patience, Failover: patience, Lost: patience}
	for _, s := range Scenarios {
		t.Run(s.Name, func(t *testing.T) {
			r, err := Run(t.Context(), s, Config{
				Rate: 200, Workers: 32, Budget: time.Second,
				MaxHold: 2 * time.Second, Settle: 300 * time.Millisecond,
				Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, wrong := range bounds.Judge(r) {
				t.Error(wrong)
			}
			t.Log(r)
		})
	}
}
