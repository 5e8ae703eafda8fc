package load

import (
	"context"
	"math/rand/v2"

	"github.com/weirhq/weir"
)

// InProcessSample is a good [Plan.Sample] for [InProcess], where reading the clock costs as much as a check.
const InProcessSample = 16

// Check describes the requests that a limiter decides.
type Check struct {
	// KeyPrefix is the beginning of each key. The client's number follows.
	KeyPrefix string
	// Method and Path are the method and the path of the request. In the path, {n} is replaced by the client's number.
	Method, Path string
	// Cost is how many tokens each request takes. With 0, requests only peek.
	Cost int64
}

// InProcess is a target that consists of limiters in this process.
type InProcess struct {
	limiters []*weir.Limiter
	name     string
	keys     int
	check    Check
}

var _ Target = (*InProcess)(nil)

// NewInProcess makes a target from limiters, for the given number of clients. Each request goes to a random limiter, as
// if a load balancer were in front. The name is used in reports.
func NewInProcess(l []*weir.Limiter, name string, keys int, c Check) *InProcess {
	return &InProcess{limiters: l, name: name, keys: keys, check: c}
}

func (t *InProcess) String() string { return t.name }

// Sender returns a sender that uses one request for all its checks. Keys count as verified, as in the check API.
func (t *InProcess) Sender() Sender {
	request := weir.Request{KeyVerified: true, Method: t.check.Method, Cost: t.check.Cost, Peek: t.check.Cost == 0}
	return &checker{t, request, newName(t.check.KeyPrefix+"{n}", t.keys), newName(t.check.Path, t.keys)}
}

type checker struct {
	*InProcess
	request   weir.Request
	key, path *name
}

// Send checks a request. It makes no allocations.
func (c *checker) Send(ctx context.Context, n uint32) Answer {
	c.request.APIKey = c.key.of(n)
	c.request.Path = c.path.of(n)
	c.request.IP = clientAddr(n)
	limiter := c.limiters[0]
	if len(c.limiters) > 1 {
		limiter = c.limiters[rand.IntN(len(c.limiters))]
	}
	d, err := limiter.Check(ctx, &c.request)
	a := Answer{Degraded: d.Degraded, Err: err}
	if !d.Allowed {
		a.Outcome = Refused
	}
	return a
}

// GenerousRules returns rules that refuse no client that sends less than a billion requests per second. They are for
// measuring what checks cost.
func GenerousRules() (*weir.RuleSet, error) {
	return weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "bench", Limits: []weir.Limit{weir.PerSecond(1_000_000_000)}}}})
}
