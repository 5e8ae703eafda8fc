package main

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
	lenient := bounds{slowest: 20 * time.Second, factor: 4, serving: 20 * time.Second, exact: patience, failover: patience, lost: patience}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			r, err := runScenario(t.Context(), s, config{
				rate: 200, workers: 32, budget: time.Second,
				maxHold: 2 * time.Second, settle: 300 * time.Millisecond,
				log: slog.New(slog.NewTextHandler(t.Output(), nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, wrong := range lenient.judge(r) {
				t.Error(wrong)
			}
			t.Log(r)
		})
	}
}
