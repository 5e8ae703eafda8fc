package checkapi

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
)

// take serves /v1/take.
func (h *handler) take(w http.ResponseWriter, r *http.Request, c *call) error {
	b := &c.body
	if err := c.parse(c.in).document((*takeBody)(b)); err != nil {
		return err
	}
	switch {
	case b.key.to == b.key.from:
		return jsonerror.Bad("key: is missing: it names the counter")
	case b.limit.to == b.limit.from:
		return jsonerror.Bad(`limit: is missing: give a count and a window such as "100/minute"`)
	case b.mode != noMode && b.algorithm != weir.LeakyBucket:
		return jsonerror.Bad(`mode: only "algorithm": "leaky_bucket" has one`)
	case b.mode == queue:
		b.algorithm = weir.LeakyQueue
	}
	text := string(b.texts)
	policy, err := h.policies.get(b.limit.of(text), b.burst, b.algorithm)
	if err != nil {
		return err
	}
	c.req = weir.Request{APIKey: b.key.of(text), KeyVerified: true, Cost: max(b.cost, 1), Peek: b.cost == 0, Receipt: b.receipt}
	now := time.Now()
	c.subject = append(append(c.subject[:0], 0), c.req.APIKey...) // as rules that count by key write it
	d, err := h.limiter.Take(r.Context(), &c.req, []weir.Charge{{Counter: weir.Counter{Policy: policy, Subject: c.subject}, N: c.req.Cost}})
	h.report(r, err)
	h.respond(w, c, &d, now)
	return nil
}

// takeName is the name of every policy of /v1/take. Being the same for all
// numbers, it makes a key keep its counter when they change.
const takeName = "take"

// policies remembers the policies of limits that calls brought, since preparing
// one costs more than deciding by it. It holds at most two generations: a
// caller who brings new numbers each time only makes the old ones be forgotten.
type policies struct {
	mu         sync.Mutex
	young, old map[policyKey]*weir.Policy // guarded by mu
}

type policyKey struct {
	limit     string // as it was written
	burst     int64
	algorithm weir.Algorithm
}

const generation = 1024

func (p *policies) get(limit string, burst int64, algorithm weir.Algorithm) (*weir.Policy, error) {
	key := policyKey{limit, burst, algorithm}
	if found := p.find(key); found != nil {
		return found, nil
	}
	made, err := newPolicy(key)
	if err != nil {
		return nil, err
	}
	key.limit = strings.Clone(limit) // the text around it has a client's key
	p.mu.Lock()
	p.addLocked(key, made)
	p.mu.Unlock()
	return made, nil
}

func (p *policies) find(key policyKey) *weir.Policy {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.young[key]; found != nil {
		return found
	}
	found := p.old[key]
	if found != nil {
		key.limit = strings.Clone(key.limit)
		p.addLocked(key, found)
	}
	return found
}

func (p *policies) addLocked(key policyKey, policy *weir.Policy) {
	if p.young == nil || len(p.young) == generation {
		p.old, p.young = p.young, make(map[policyKey]*weir.Policy)
	}
	p.young[key] = policy
}

// newPolicy prepares a limit, or says what is wrong with it without repeating it.
func newPolicy(key policyKey) (*weir.Policy, error) {
	limit, err := weir.ParseLimit(key.limit)
	if err != nil {
		return nil, jsonerror.Bad(`limit: must be a count and a window such as "100/minute", "5/15m" or "20 per second"`)
	}
	limit.Algorithm, limit.Burst = key.algorithm, key.burst
	p, err := weir.NewPolicy(takeName, limit)
	if err != nil {
		var le *weir.LimitError
		if !errors.As(err, &le) {
			return nil, jsonerror.Bad("limit: %v", err)
		}
		switch le.Field {
		case "window":
			return nil, jsonerror.Bad("limit: the window %s", le.Text)
		case "refill_rate":
			return nil, jsonerror.Bad("limit: %s", le.Text)
		}
		return nil, jsonerror.Bad("%s: %s", le.Field, le.Text)
	}
	p.PerClient = true // the key is the counter's owner
	return p, nil
}
