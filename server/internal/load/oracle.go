package load

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync/atomic"
)

// Oracle compares a target with an exact one. It sends each request to both at the same moment, and counts what they admit
// for each client. It counts from the first request on, since both remember what was taken during the warm-up.
type Oracle struct {
	Target
	exact    Target
	clients  []clientCounts
	degraded atomic.Int64
}

type clientCounts struct{ checks, admitted, exact atomic.Int64 }

// NewOracle puts an exact target beside another, for that many clients.
func NewOracle(t, exact Target, keys int) *Oracle {
	return &Oracle{Target: t, exact: exact, clients: make([]clientCounts, keys)}
}

// Sender returns a sender to both. What it answers is the target's answer.
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

// Comparison is what a target admitted beside an exact one, from the first request on.
type Comparison struct {
	Checks   int64 `json:"checks"`
	Admitted int64 `json:"admitted"`
	Exact    int64 `json:"exact"`
	// Over is how many requests the target admitted beyond the exact one, and Lost how many it admitted fewer. Both are
	// sums over clients, so one client's Over doesn't make up for another's Lost.
	Over int64 `json:"over"`
	Lost int64 `json:"lost"`
	// Degraded answers were given without the store. They may explain Over and Lost.
	Degraded int64 `json:"degraded"`
	// Top are the clients with the most requests.
	Top []ClientComparison `json:"top"`
}

// ClientComparison is the same for one client.
type ClientComparison struct {
	Client   int   `json:"client"`
	Checks   int64 `json:"checks"`
	Admitted int64 `json:"admitted"`
	Exact    int64 `json:"exact"`
}

// topClients is how many clients are compared one by one.
const topClients = 5

// Compare returns what both admitted. Call it after the run.
func (o *Oracle) Compare() *Comparison {
	out := &Comparison{Degraded: o.degraded.Load()}
	for n := range o.clients {
		c := &o.clients[n]
		one := ClientComparison{n, c.checks.Load(), c.admitted.Load(), c.exact.Load()}
		if one.Checks == 0 {
			continue
		}
		out.Checks += one.Checks
		out.Admitted += one.Admitted
		out.Exact += one.Exact
		out.Over += max(0, one.Admitted-one.Exact)
		out.Lost += max(0, one.Exact-one.Admitted)
		out.add(one)
	}
	return out
}

// add keeps a client if it is among those with the most requests.
func (c *Comparison) add(one ClientComparison) {
	at, _ := slices.BinarySearchFunc(c.Top, one, func(a, b ClientComparison) int { return cmp.Compare(b.Checks, a.Checks) })
	if at < topClients {
		c.Top = slices.Insert(c.Top, at, one)[:min(len(c.Top)+1, topClients)]
	}
}

func (c *Comparison) write(t *table) {
	t.row("")
	t.row("oracle", "checks", "admitted", "exact")
	t.row("all", Thousands(c.Checks), Thousands(c.Admitted), Thousands(c.Exact))
	for _, one := range c.Top {
		t.row("client "+strconv.Itoa(one.Client), Thousands(one.Checks), Thousands(one.Admitted), Thousands(one.Exact))
	}
	t.part("over", c.Over, c.Exact)
	t.part("lost", c.Lost, c.Exact)
	if c.Degraded > 0 {
		t.part("degraded", c.Degraded, c.Checks)
	}
}
