package load

import (
	"context"
	"sync/atomic"
)

// Oracle compares a target with an exact one. It sends each request to both of them at the same time, and counts how many
// each admits for each client. It counts from the first request on, because the limits of both include what was taken
// during the warm-up.
type Oracle struct {
	Target
	exact    Target
	clients  []clientCounts
	degraded atomic.Int64
}

type clientCounts struct{ checks, admitted, exact atomic.Int64 }

// NewOracle makes a target that compares t with an exact target, for the given number of clients.
func NewOracle(t, exact Target, keys int) *Oracle {
	return &Oracle{Target: t, exact: exact, clients: make([]clientCounts, keys)}
}

// Sender returns a sender that sends each request to the exact target and to the one under test, and returns the answer of
// the latter.
func (o *Oracle) Sender() Sender { return &oracleSender{o, o.Target.Sender(), o.exact.Sender()} }

type oracleSender struct {
	*Oracle
	to, exactly Sender
}

func (s *oracleSender) Send(ctx context.Context, n uint32) Answer {
	c := &s.clients[n]
	c.checks.Add(1)
	if s.exactly.Send(ctx, n).Outcome == Allowed {
		c.exact.Add(1)
	}
	a := s.to.Send(ctx, n)
	if a.Outcome == Allowed {
		c.admitted.Add(1)
	}
	if a.Degraded {
		s.degraded.Add(1)
	}
	return a
}

// Comparison says how many requests a target and an exact one admitted, from the first request on.
type Comparison struct {
	Checks   int64 `json:"checks"`
	Admitted int64 `json:"admitted"`
	Exact    int64 `json:"exact"`
	// Over is how many requests the target admitted but the exact one didn't, and Lost how many the exact one admitted but
	// the target didn't. Both are sums over clients, so one client's Over doesn't cancel out another's Lost.
	Over int64 `json:"over"`
	Lost int64 `json:"lost"`
	// Degraded is how many answers were given without the store, which may explain Over and Lost.
	Degraded int64 `json:"degraded"`
}

// Compare returns the comparison. Call it after the run.
func (o *Oracle) Compare() *Comparison {
	out := &Comparison{Degraded: o.degraded.Load()}
	for n := range o.clients {
		c := &o.clients[n]
		admitted, exact := c.admitted.Load(), c.exact.Load()
		out.Checks += c.checks.Load()
		out.Admitted += admitted
		out.Exact += exact
		out.Over += max(0, admitted-exact)
		out.Lost += max(0, exact-admitted)
	}
	return out
}

func (c *Comparison) write(t *table) {
	t.row("")
	t.row("oracle", "checks", "admitted", "exact")
	t.row("", Thousands(c.Checks), Thousands(c.Admitted), Thousands(c.Exact))
	t.part("over", c.Over, c.Exact)
	t.part("lost", c.Lost, c.Exact)
	if c.Degraded > 0 {
		t.part("degraded", c.Degraded, c.Checks)
	}
}
