package httplimit

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
)

// Verdict says what to do with a request. Edges with an answer format of their own get one from
// [Middleware.Ask].
type Verdict struct {
	// Request is the request that was checked.
	Request weir.Request
	// Decision is the limiter's decision, or a refusal without a reason if the limiter wasn't
	// asked.
	Decision weir.Decision
	// At is just before the check, so that At plus the decision's durations is never late. If the
	// request waited in a queue, it is when its turn came.
	At time.Time

	attrs  attributes
	lookUp func(string) string // attrs.lookUp, bound once
	fate   fate
	fault  string // why the client's identity is ambiguous
	body   *early // the body, if it was read ahead in a queue
}

// fate is what happened to a request besides the decision.
type fate uint8

const (
	decided   fate = iota // nothing
	shed                  // MaxInFlight was reached
	ambiguous             // its identity is ambiguous
	leftQueue             // its context ended before its turn
	queueFull             // MaxWaiting was reached
)

// verdicts is a pool. Observers may get the request, so otherwise each Verdict would be allocated
// on the heap.
var verdicts = sync.Pool{New: func() any {
	v := new(Verdict)
	v.lookUp = v.attrs.lookUp
	return v
}}

// Release returns a verdict to the pool. Call it before a handler that may run for long.
func (v *Verdict) Release() {
	*v = Verdict{lookUp: v.lookUp}
	verdicts.Put(v)
}

// Serve reports whether to serve the request. If so, and the decision is Unfinished, call
// [weir.Limiter.Finish] afterwards.
func (v *Verdict) Serve() bool { return v.fate == decided && v.Decision.Allowed }

// Refused describes the refusal of a request that must not be served.
func (v *Verdict) Refused() Refused {
	d := &v.Decision
	switch v.fate {
	case shed:
		return overloaded
	case ambiguous:
		return Refused{
			Status: http.StatusBadRequest, Code: jsonerror.AmbiguousIdentity,
			Message: v.fault + "; servers read that in different ways, so that it is not clear who is asking",
		}
	case leftQueue: // usually the client has left, and nobody reads this
		return Refused{
			Status: http.StatusServiceUnavailable, Code: jsonerror.QueueTimeout, Rule: d.Rule,
			Message:           "The request ran out of time while it waited for its turn",
			RetryAfterSeconds: max(1, seconds(d.Delay)),
		}
	case queueFull: // return when its turn would have come: the queue has emptied by then
		return Refused{
			Status: http.StatusServiceUnavailable, Code: jsonerror.QueueFull, Rule: queueOf(d),
			Message:           "Too many requests wait for their turn",
			RetryAfterSeconds: RetryAfter(&v.Request, &weir.Decision{RetryAfter: d.Delay, Policy: d.Policy}),
		}
	}
	return Describe(&v.Request, d, v.At)
}

// Ask decides a request like the middleware does, for an edge that serves and answers by itself: it
// identifies the client, and waits while a queue delays the request, until ctx ends. fill, if not
// nil, may change the request to check last. Ask keeps nothing of r after [Verdict.Release].
func (m *Middleware) Ask(ctx context.Context, r *http.Request, fill func(*weir.Request)) *Verdict {
	return m.ask(ctx, nil, r, fill)
}

func (m *Middleware) ask(ctx context.Context, w http.ResponseWriter, r *http.Request, fill func(*weir.Request)) *Verdict {
	v := m.check(ctx, r, fill)
	if d := &v.Decision; d.Delay > 0 {
		v.fate = m.wait(ctx, w, r, v)
		if v.fate != decided {
			m.finish(ctx, r, d, weir.Outcome{Abandoned: true}) // the next request in the queue gets its place
		}
		if v.fate == queueFull {
			private.Tell(m.limiter, ctx, &v.Request, weir.Decision{Reason: weir.ReasonOverloaded, Rule: queueOf(d), RulesVersion: d.RulesVersion, RetryAfter: d.Delay})
		}
		v.At, d.ResetAfter = v.At.Add(d.Delay), max(0, d.ResetAfter-d.Delay) // from the end of the wait
	}
	return v
}

// check decides a request without waiting in a queue. It refuses a request
// whose identity is ambiguous.
func (m *Middleware) check(ctx context.Context, r *http.Request, fill func(*weir.Request)) *Verdict {
	v := verdicts.Get().(*Verdict)
	if !m.gate.Enter(ctx) {
		private.Tell(m.limiter, ctx, &m.unread, weir.Decision{Reason: weir.ReasonOverloaded})
		v.fate = shed
		return v
	}
	defer m.gate.Leave()
	req, watched := &v.Request, m.headers()
	if v.fault = watched.headers.fault(r); v.fault == "" {
		v.fault = m.identity.identify(r, req, &v.attrs, watched.bearer)
	}
	req.Edge = m.opts.Edge
	if v.fault != "" {
		v.fate = ambiguous
		m.identity.locate(r, req)
		req.Rejected = v.fault
		private.Tell(m.limiter, ctx, req, weir.Decision{Reason: weir.ReasonIdentityRequired, RulesVersion: watched.rules.Version(), RetryAfter: weir.Never})
		return v
	}
	req.Attr = v.lookUp
	if watched.counted != nil {
		v.fill(r.Context())
	}
	if m.opts.Identify != nil {
		m.opts.Identify(r, req)
	}
	if fill != nil {
		fill(req)
	}
	v.At = private.Now(m.limiter)
	var err error
	if v.Decision, err = m.limiter.Check(ctx, req); err != nil {
		m.tell(r, err)
	}
	return v
}

// wait waits for the request's turn.
func (m *Middleware) wait(ctx context.Context, w http.ResponseWriter, r *http.Request, v *Verdict) fate {
	rule := queueOf(&v.Decision)
	if !m.enterQueue(rule) {
		return queueFull
	}
	defer m.waiting.Leave(rule)
	if by, ok := ctx.Deadline(); ok && time.Until(by) <= v.Decision.Delay {
		return leftQueue // its turn comes too late: say so now, and free the place
	}
	v.body = readEarly(w, r, &m.ahead)
	t := time.NewTimer(v.Decision.Delay)
	defer t.Stop()
	select {
	case <-t.C:
		v.body.hand()
		return decided
	case <-ctx.Done():
		v.body.abandon()
		return leftQueue
	}
}

// enterQueue takes a place among the waiting requests if one is free. A rule may have half of them.
func (m *Middleware) enterQueue(rule string) bool {
	places := int64(m.opts.MaxWaiting)
	return m.waiting.Enter(rule, places, (places+1)/2)
}

// queueOf returns the rule in whose queue a request waits.
func queueOf(d *weir.Decision) string {
	for _, l := range d.Limits() {
		if l.Policy.Limit.Algorithm == weir.LeakyQueue && !l.Policy.Shadow {
			return l.Policy.Rule
		}
	}
	return d.Rule
}

// Answer sets the rate-limit headers, and answers the request if it must not be served.
func (m *Middleware) Answer(w http.ResponseWriter, r *http.Request, v *Verdict) {
	if v.fate == decided {
		m.answers.SetHeaders(w.Header(), &v.Request, &v.Decision, v.At)
	}
	if !v.Serve() {
		x := v.Refused()
		m.answers.send(w, r, &x, &v.Decision)
	}
}

// Headers lists the headers that identify clients under the rules in force, in canonical form. An
// edge without HTTP headers has to pass on only these, X-Forwarded-For and Host. Don't change them.
func (m *Middleware) Headers() []string { return m.headers().headers }
