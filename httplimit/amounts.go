package httplimit

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir"
)

// Estimate is what a request is likely to take beside its cost: tokens, or money. See [WithEstimate].
type Estimate struct {
	// Amounts are by name. Rules that count an amount which isn't here charge their default.
	Amounts map[string]weir.Amount
	// Assumed: see [weir.Request.Assumed].
	Assumed map[string]weir.Amount
	// Choices: see [weir.Request.Choices].
	Choices int64
	// Model is what prices are found by.
	Model string
	// Reserve is for how long the estimate stands, if nobody calls [Settle]: see [weir.Request.Reserve]. 0 means that it isn't
	// an estimate, but what the request takes.
	Reserve time.Duration
	// Guess: see [weir.Request.Guess].
	Guess bool
}

type estimateKey struct{}

// WithEstimate returns the request with what it is likely to take, for the limiter behind it.
func WithEstimate(r *http.Request, e *Estimate) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), estimateKey{}, e))
}

// fill puts an estimate into the request that is checked.
func (v *Verdict) fill(ctx context.Context) {
	if e, ok := ctx.Value(estimateKey{}).(*Estimate); ok {
		v.Request.Amounts, v.Request.Assumed, v.Request.Choices, v.Request.Reserve, v.Request.Guess, v.attrs.model = e.Amounts, e.Assumed, e.Choices, e.Reserve, e.Guess, e.Model
	}
}

// Reserved reports whether the limiter in front of a handler has reserved an amount for the request, so that [Settle] does
// something.
func Reserved(r *http.Request) bool {
	a, ok := r.Context().Value(answerKey{}).(*answer)
	return ok && a.reserved
}

// Settle says what a request really took of what it had reserved, for the limiter in front of a handler. It counts once the
// handler has returned; the last call counts. A request for which it isn't called keeps what it had reserved. It does nothing
// where nothing was reserved.
func Settle(r *http.Request, amounts map[string]weir.Amount) {
	settle(r, weir.Outcome{Amounts: amounts})
}

// SettleAtLeast is Settle where the amounts are a guess: what is beyond what was reserved is taken, and nothing that was goes back.
func SettleAtLeast(r *http.Request, amounts map[string]weir.Amount) {
	settle(r, weir.Outcome{Amounts: amounts, AtLeast: true})
}

func settle(r *http.Request, o weir.Outcome) {
	if a, ok := r.Context().Value(answerKey{}).(*answer); ok && a.reserved {
		o.Amounts = maps.Clone(o.Amounts)
		a.settled.Store(&o)
	}
}

// counted is what rules count of requests beside their cost.
type counted struct {
	names []string // of amounts
	// where has a rule for each of the places at which amounts are counted, without who is asking, and decides by no counter.
	where *weir.Limiter
}

// newCounted finds out what rules count. It is nil if that is no amount.
func newCounted(rules weir.Rules) *counted {
	c := &counted{}
	var where weir.Rules
	for _, r := range rules.Rules {
		if r.Amount == "" || r.Descriptor != nil {
			continue
		}
		c.names = append(c.names, r.Amount)
		endpoint := r.Match.Endpoint
		if _, path, ok := strings.Cut(endpoint, " "); ok {
			endpoint = strings.TrimSpace(path)
		}
		where.Rules = append(where.Rules, weir.Rule{
			ID: r.ID, Match: weir.Match{Endpoint: endpoint, EndpointRegex: r.Match.EndpointRegex},
			By: []string{}, Limits: []weir.Limit{weir.PerSecond(1)},
		})
	}
	if c.names == nil {
		return nil
	}
	if set, err := weir.Compile(where); err == nil { // as it is, since the rules were compiled
		c.where = weir.NewLimiter(yes{}, set, weir.Options{})
	}
	return c
}

// CountsAmounts reports whether a rule in force may count an amount of a request, by its path: an estimate is of use then. The
// method doesn't matter, see [weir.Request.Reserve].
func (m *Middleware) CountsAmounts(r *http.Request) bool {
	c := m.headers().counted
	if c == nil || c.where == nil {
		return c != nil
	}
	d, _ := c.where.Check(r.Context(), &weir.Request{Path: requestPath(r.URL)})
	return d.Reason == weir.ReasonWithin
}

// Amounts are the names of the amounts that rules in force count.
func (m *Middleware) Amounts() []string {
	if c := m.headers().counted; c != nil {
		return c.names
	}
	return nil
}

// Price returns what amounts cost by the rules in force: see [weir.RuleSet.Price].
func (m *Middleware) Price(asked []string, answered string, of map[string]weir.Amount) (usd weir.Amount, known bool) {
	return m.limiter.Rules().Price(asked, answered, of)
}

// yes is a store without counters.
type yes struct{ weir.Store }

func (yes) Take(_ context.Context, _ []weir.Charge, results []weir.Result) {
	for i := range results {
		results[i] = weir.Result{Allowed: true}
	}
}
