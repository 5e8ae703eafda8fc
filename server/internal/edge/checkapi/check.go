package checkapi

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
)

func (h *handler) check(header http.Header, r *http.Request, c *workspace) error {
	if err := c.complete(); err != nil {
		return err
	}
	now := private.Now(h.limiter) // the time before the check: times in the response are computed from it, and must not be late
	d, err := h.ask(r, &c.req)
	h.report(r, err)
	h.respond(header, c, &d, now)
	return nil
}

// Text is a field with a text in the body of another endpoint, in addition to the fields of a check.
type Text struct {
	Name  string
	Value *string
}

// DecodeCheck is for other handlers. It reads a body that has the fields of a check, and the fields in more. The error
// is a *[jsonerror.Error].
func DecodeCheck(src []byte, more ...Text) (weir.Request, error) {
	c, fields := new(workspace), slices.Clone(checkFields)
	for _, m := range more {
		fields = append(fields, textField(m.Name, MaxText, func(*body) *string { return m.Value }))
	}
	err := c.document(src, fields)
	if err == nil {
		err = c.complete()
	}
	return c.req, err
}

type item struct {
	req   weir.Request
	fault *jsonerror.Error // why the check can't be decided; nil if it can
	d     weir.Decision
	err   error // error of the store
}

// readItem reads one check of a batch. If the check is JSON but invalid, the error belongs to this check only, and the
// others are still decided.
func (c *workspace) readItem() error {
	if len(c.items) == MaxChecks {
		return jsonerror.Bad("checks: there may be at most %d: send the rest in another call", MaxChecks)
	}
	from, depth := c.json.InputOffset(), c.json.StackDepth()
	c.body, c.first = body{cost: 1}, len(c.attrs)
	err := c.object("check", checkFields, nil)
	if err == nil {
		err = c.complete()
	}
	bad, ok := errors.AsType[*jsonerror.Error](err)
	if err != nil && !ok {
		return err // the body isn't JSON
	}
	for c.json.StackDepth() > depth { // skip the rest of the invalid check
		if _, err := c.json.ReadToken(); err != nil {
			return err
		}
	}
	if text := c.src[from:c.json.InputOffset()]; len(text) > MaxBody && len(strings.TrimLeft(text, ", \t\r\n")) > MaxBody {
		bad = tooLarge(MaxBody)
	}
	if bad != nil {
		c.attrs = c.attrs[:c.first]
	}
	c.items = append(c.items, item{req: c.req, fault: bad})
	return nil
}

func (h *handler) checks(_ http.Header, r *http.Request, c *workspace) error {
	if !c.many {
		return jsonerror.Bad(`checks: is missing: send {"checks": [{"key": …}, …]}`)
	}
	now := private.Now(h.limiter)
	h.each(len(c.items), func(i int) {
		if it := &c.items[i]; it.fault == nil {
			it.d, it.err = h.ask(r, &it.req)
		}
	})
	c.out = append(c.out, `{"results":[`...)
	var first error
	for i := range c.items {
		it := &c.items[i]
		if i > 0 {
			c.out = append(c.out, ',')
		}
		if it.fault != nil {
			c.out = append(it.fault.Append(appendStatus(c.out, it.fault.Status)), '}')
			continue
		}
		refused := httplimit.Refused{Status: http.StatusOK}
		if !it.d.Allowed {
			refused = httplimit.Describe(&it.req, &it.d, time.Time{}) // the response doesn't show a time of day
		}
		c.out = appendDecision(appendStatus(c.out, refused.Status), &it.d, &refused, now)
		if first == nil {
			first = it.err
		}
	}
	h.report(r, first)
	c.out = append(c.out, "]}\n"...)
	return nil
}

func appendStatus(b []byte, status int) []byte {
	return append(appendInt(append(b, `{"status":`...), int64(status)), ',')
}

func (h *handler) take(header http.Header, r *http.Request, c *workspace) error {
	number, err := oneOf("algorithm", c.algorithm, algorithms)
	if err != nil {
		return err
	}
	algorithm := counter.Algorithm(number)
	_, err = oneOf("mode", c.mode, modes)
	switch {
	case err != nil:
		return err
	case c.req.APIKey == "":
		return jsonerror.Bad("key: is missing: it names the counter")
	case c.limit == "":
		return jsonerror.Bad(`limit: is missing: give a count and a window such as "100/minute"`)
	case c.mode != "" && algorithm != counter.LeakyBucket:
		return jsonerror.Bad(`mode: only "algorithm": "leaky_bucket" has one`)
	case c.mode == "queue":
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
	h.respond(header, c, &d, now)
	return nil
}

// algorithms are the names of weir's algorithms, indexed by their numbers.
var algorithms = func() (names []string) {
	for a := counter.TokenBucket; a <= counter.SlidingCounter; a++ {
		names = append(names, a.String())
	}
	return names
}()

var modes = []string{"meter", "queue"}

// oneOf returns the index of written in words. If written is "", it returns 0.
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

// policyKey is a limit as the caller wrote it. It is the key of a cache of policies, because creating a policy costs
// more than a decision.
type policyKey struct {
	limit     string // such as "100/minute"
	burst     int64
	algorithm counter.Algorithm
}

// newPolicy creates a policy, or returns an error that doesn't quote the limit.
func newPolicy(key policyKey) (policyKey, *counter.Policy, error) {
	key.limit = strings.Clone(key.limit) // the limit is part of a body that contains a client's key, so copy it
	limit, err := counter.ParseLimit(key.limit)
	if err != nil {
		return key, nil, jsonerror.Bad(`limit: must be a count and a window such as "100/minute", "5/15m" or "20 per second"`)
	}
	limit.Algorithm, limit.Burst = key.algorithm, key.burst
	// All policies have the same name, so that a key keeps its counter when the limit changes.
	p, err := counter.Define(counter.Definition{Name: "take", Limit: limit, PerClient: true})
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
