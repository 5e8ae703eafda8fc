package checkapi

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
)

func (h *handler) take(w http.ResponseWriter, r *http.Request, c *workspace) error {
	number, err := oneOf("algorithm", c.algorithm, algorithms)
	if err != nil {
		return err
	}
	algorithm := counter.Algorithm(number)
	mode, err := oneOf("mode", c.mode, modes)
	switch {
	case err != nil:
		return err
	case c.req.APIKey == "":
		return jsonerror.Bad("key: is missing: it names the counter")
	case c.limit == "":
		return jsonerror.Bad(`limit: is missing: give a count and a window such as "100/minute"`)
	case c.mode != "" && algorithm != counter.LeakyBucket:
		return jsonerror.Bad(`mode: only "algorithm": "leaky_bucket" has one`)
	case mode == queue:
		algorithm = counter.LeakyQueue
	}
	policy, err := h.policies.Get(policyKey{c.limit, c.burst, algorithm}, newPolicy)
	if err != nil {
		return err
	}
	if err := c.complete(); err != nil {
		return err
	}
	now := private.Now(h.limiter)
	c.scratch = append(append(c.scratch[:0], 0), c.req.APIKey...) // the same subject as in rules that count by key
	c.charge[0] = counter.Charge{Counter: counter.Counter{Policy: policy, Subject: c.scratch}, N: c.req.Cost}
	d, err := private.Take(h.limiter, r.Context(), &c.req, c.charge[:], nil)
	h.report(r, err)
	h.respond(w, c, &d, now)
	return nil
}

// algorithms are the names of weir's algorithms, by number.
var algorithms = func() (names []string) {
	for a := counter.TokenBucket; a <= counter.SlidingCounter; a++ {
		names = append(names, a.String())
	}
	return names
}()

var modes = []string{"meter", "queue"}

const queue = 1 // index in modes

// oneOf returns the index of a word in words. For "", it returns 0.
func oneOf(field, written string, words []string) (int, error) {
	if written == "" {
		return 0, nil
	}
	if i := slices.Index(words, written); i >= 0 {
		return i, nil
	}
	if meant := guess.Closest(written, words); meant != "" {
		return 0, jsonerror.Bad("%s: unknown value: did you mean %q?", field, meant)
	}
	return 0, jsonerror.Bad("%s: must be one of %s", field, strings.Join(words, ", "))
}

// takeName is the name of all policies of /v1/take. It doesn't include the limit, so that a key
// keeps its counter when the limit changes.
const takeName = "take"

// policyKey is a limit as the caller wrote it. Recent policies are cached by it, because creating a
// policy costs more than a decision.
type policyKey struct {
	limit     string // for example "100/minute"
	burst     int64
	algorithm counter.Algorithm
}

// newPolicy creates a policy, or returns an error that doesn't quote the limit.
func newPolicy(key policyKey) (policyKey, *counter.Policy, error) {
	key.limit = strings.Clone(key.limit) // a copy, because the limit is part of a body with a client's key
	limit, err := counter.ParseLimit(key.limit)
	if err != nil {
		return key, nil, jsonerror.Bad(`limit: must be a count and a window such as "100/minute", "5/15m" or "20 per second"`)
	}
	limit.Algorithm, limit.Burst = key.algorithm, key.burst
	p, err := counter.Define(counter.Definition{Name: takeName, Limit: limit, PerClient: true}) // one counter per key
	if wrong, ok := errors.AsType[counter.Problem](err); ok {
		switch wrong.Path {
		case "window":
			return key, nil, jsonerror.Bad("limit: the window %s", wrong.Text)
		case "refill_rate":
			return key, nil, jsonerror.Bad("limit: %s", wrong.Text)
		}
		return key, nil, jsonerror.Bad("%s: %s", wrong.Path, wrong.Text)
	}
	return key, p, nil
}
