package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
)

// TestAllThatIsGivenBackComesBack checks that a client that takes its whole limit and gives all of it back, by the status of
// responses or by receipts, can take the whole limit again.
func TestAllThatIsGivenBackComesBack(t *testing.T) {
	const most = 20
	for name, c := range map[string]struct {
		statuses []int
		receipt  bool
		take     bool // the edge makes the charge
		outcome  weir.Outcome
	}{
		"status":  {statuses: []int{401}, outcome: weir.Outcome{Status: 200}},
		"receipt": {receipt: true, outcome: weir.Outcome{Abandoned: true}},
		"take":    {take: true, receipt: true, outcome: weir.Outcome{Abandoned: true}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Store, _ *far) {
				set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{
					ID: "login", Statuses: c.statuses,
					Limits: []counter.Limit{{Count: most, Window: time.Hour}},
				}}})
				if err != nil {
					t.Fatal(err)
				}
				l := weir.NewLimiter(s, set, weir.Options{})
				job, err := counter.NewPolicy("job", counter.PerHour(most))
				if err != nil {
					t.Fatal(err)
				}
				for round := range 3 {
					decisions := make([]weir.Decision, most)
					var all sync.WaitGroup
					for i := range decisions {
						all.Go(func() {
							req := &weir.Request{APIKey: "k", Cost: 1, Receipt: c.receipt}
							if c.take {
								decisions[i], _ = private.Take(l, t.Context(), req, []counter.Charge{{Counter: counter.Counter{Policy: job, Subject: []byte("k")}, N: 1}}, nil)
							} else {
								decisions[i], _ = l.Check(t.Context(), req)
							}
						})
					}
					all.Wait()
					for i := range decisions {
						d := &decisions[i]
						if !d.Allowed {
							t.Fatalf("round %d: refused: %+v", round, *d)
						}
						if err := l.Finish(t.Context(), d, c.outcome); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
		})
	}
}

// TestCloseSaysThatTokensAreLost checks the error of Close if the store didn't take all tokens back.
func TestCloseSaysThatTokensAreLost(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, _ *far) {
		p := perSecond(t, 1000)
		var r [1]counter.Result
		for i := range 1000 {
			s.Take(t.Context(), []counter.Charge{charge(p, fmt.Sprint(i/100), 1)}, r[:])
		}
		if s.Stats().Tokens == 0 {
			t.Fatal("nothing is held")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, though the store took nothing back", err)
		}
	})
}
