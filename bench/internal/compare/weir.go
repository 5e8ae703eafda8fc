package compare

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/server/bench/internal/command"
)

// maxCharges is the maximum number of limits that [Charge] accepts.
const maxCharges = 10

// padding keeps the data of different goroutines on different cache lines.
type padding [128]byte

// Charge returns checks by a store without rules. Each check charges one counter for each limit.
func Charge(s counter.Store, limits ...Limit) (worker func() Check) {
	policies := make([]*counter.Policy, len(limits))
	for i, l := range limits {
		policies[i] = command.Must(counter.NewPolicy(fmt.Sprintf("bench-%d", i), l.weir()))
	}
	return func() Check {
		// w holds the data that one goroutine writes in every check.
		w := &struct {
			_       padding
			charges [maxCharges]counter.Charge
			results [maxCharges]counter.Result
			subject [keyLength]byte
			_       padding
		}{}
		ctx := context.Background()
		charges, results := w.charges[:len(policies)], w.results[:len(policies)]
		for i, p := range policies {
			charges[i] = counter.Charge{Counter: counter.Counter{Policy: p}, N: 1}
		}
		return func(key string) error {
			subject := append(w.subject[:0], key...) // a copy, like the one that the limiter makes
			for i := range charges {
				charges[i].Subject = subject
			}
			s.Take(ctx, charges, results)
			for i := range results {
				if r := &results[i]; r.Err != nil {
					return r.Err
				} else if !r.Allowed {
					return ErrRefused
				}
			}
			return nil
		}
	}
}

// Allow returns a check by the key alone, as in a program without rules.
func Allow(s counter.Store, l Limit) Check {
	limit := weir.New(l.weir(), weir.WithStore(s, "bench"))
	return func(key string) error {
		if !limit.Allow(key) {
			return ErrRefused
		}
		return nil
	}
}

// rulesPath is a path that matches exactly one of [HundredRules] with the method GET.
const rulesPath = "/v1/resource12/8431"

// OneRule returns a limit by API key for all requests.
func OneRule(l Limit) []weir.Rule {
	return []weir.Rule{{ID: "rule", Limits: []weir.Limit{l.weir()}}}
}

// HundredRules returns limits by API key for four endpoints of each of 25 resources. They count requests or, if amount isn't "",
// that amount.
func HundredRules(l Limit, amount string) []weir.Rule {
	var rules []weir.Rule
	for i := range 25 {
		for _, pattern := range []string{"GET /v1/resource%d", "POST /v1/resource%d", "GET /v1/resource%d/{id}", "DELETE /v1/resource%d/{id}"} {
			rules = append(rules, weir.Rule{
				ID:     fmt.Sprintf("rule-%d", len(rules)),
				Match:  weir.Match{Endpoint: fmt.Sprintf(pattern, i)},
				By:     []string{"api_key"},
				Amount: amount,
				Limits: []weir.Limit{l.weir()},
			})
		}
	}
	return rules
}

// WholeCheck returns checks by rules, of which one applies.
func WholeCheck(s counter.Store, rules []weir.Rule) (worker func() Check) {
	limiter := weir.NewLimiter(s, command.Must(weir.Compile(weir.Rules{Version: 1, Rules: rules})), weir.Options{})
	return func() Check {
		// w holds the data that one goroutine writes in every check.
		w := &struct {
			_   padding
			req weir.Request
			_   padding
		}{req: weir.Request{Method: "GET", Path: rulesPath}}
		ctx := context.Background()
		if amount := rules[0].Amount; amount != "" {
			w.req.Amounts = map[string]counter.Amount{amount: counter.Whole(1)}
		}
		return func(key string) error {
			w.req.APIKey = key
			d, err := limiter.Check(ctx, &w.req)
			switch {
			case err != nil:
				return err
			case d.Policy == nil: // without a limit, the check would be cheaper than a real one
				return errors.New("no rule applies")
			case !d.Allowed:
				return ErrRefused
			}
			return nil
		}
	}
}
