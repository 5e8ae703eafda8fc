package httplimit

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
)

// Verdict is what is to become of a request. [Middleware.Ask] gives one, for edges that answer in a form of their own.
type Verdict struct {
	// Request is what was checked.
	Request weir.Request
	// Decision is the limiter's, or a refusal without a reason if it wasn't asked.
	Decision weir.Decision
	// At is when it was made: before the check, so that the times of the decision, added to it, are never late. Of a request that
	// waited in a queue, it is when its turn came.
	At time.Time

	attrs  attributes
	lookUp func(string) string // of attrs, bound once
	fate   fate
	fault  string // why the client's identity is ambiguous
	body   *early // what was read of the body in a queue
}

// fate is what happened to a request beside the decision.
type fate uint8

const (
	decided   fate = iota // nothing else
	shed                  // there was no place for it
	ambiguous             // its identity can be read in more than one way
	leftQueue             // its time was over before its turn came
	queueFull             // there was no place for it to wait
)

// verdicts are reused: a limiter may hand the request to an observer, so it can't live on the stack.
var verdicts = sync.Pool{New: func() any {
	v := new(Verdict)
	v.lookUp = v.attrs.lookUp
	return v
}}

// Release ends the use of a verdict. Call it before a handler that may run for hours.
func (v *Verdict) Release() {
	*v = Verdict{lookUp: v.lookUp}
	verdicts.Put(v)
}

// Serve reports whether the request is to be served. Once it is, [weir.Limiter.Finish] is due if the decision is Unfinished.
func (v *Verdict) Serve() bool { return v.fate == decided && v.Decision.Allowed }

// Refused describes the refusal of a request that isn't to be served.
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
	case leftQueue: // as a rule its client has left, and nobody reads it
		return Refused{
			Status: http.StatusServiceUnavailable, Code: jsonerror.QueueTimeout, Rule: d.Rule,
			Message:           "The request ran out of time while it waited for its turn",
			RetryAfterSeconds: max(1, seconds(d.Delay)),
		}
	case queueFull: // its turn is when it should return: those before it are through then
		return Refused{
			Status: http.StatusServiceUnavailable, Code: jsonerror.QueueFull, Rule: queueOf(d),
			Message:           "Too many requests wait for their turn",
			RetryAfterSeconds: RetryAfter(&v.Request, &weir.Decision{RetryAfter: d.Delay, Policy: d.Policy}),
		}
	}
	return Describe(&v.Request, d, v.At)
}

// Ask decides a request, as the middleware does, for an edge that serves and answers by itself: it identifies the client, and
// waits out the delay of a queue for as long as ctx lasts. Fill, if not nil, has the last word on what is checked. Of the
// request its method, URL, host, headers and RemoteAddr are read, and none of them is kept beyond [Verdict.Release].
func (m *Middleware) Ask(ctx context.Context, r *http.Request, fill func(*weir.Request)) *Verdict {
	return m.ask(ctx, nil, r, fill)
}

func (m *Middleware) ask(ctx context.Context, w http.ResponseWriter, r *http.Request, fill func(*weir.Request)) *Verdict {
	v := verdicts.Get().(*Verdict)
	if !m.enter(ctx, v) {
		return v
	}
	if err := m.decide(ctx, r, v, fill); err != nil {
		m.tell(r, err)
	}
	if d := &v.Decision; d.Delay > 0 {
		v.fate = m.wait(ctx, w, r, v)
		if v.fate != decided {
			m.finish(ctx, r, d, weir.Outcome{Abandoned: true}) // its place goes to those behind
		}
		if v.fate == queueFull {
			m.limiter.Tell(ctx, &v.Request, weir.Decision{Reason: weir.ReasonOverloaded, Rule: queueOf(d), RulesVersion: d.RulesVersion, RetryAfter: d.Delay})
		}
		v.At, d.ResetAfter = v.At.Add(d.Delay), max(0, d.ResetAfter-d.Delay) // as seen from after the wait
	}
	return v
}

// enter takes a place among the requests that are decided. If there is none, it sheds the request.
func (m *Middleware) enter(ctx context.Context, v *Verdict) bool {
	if m.gate.Enter(ctx) {
		return true
	}
	m.limiter.Tell(ctx, &m.unread, weir.Decision{Reason: weir.ReasonOverloaded})
	v.fate = shed
	return false
}

// decide checks a request, and gives back its place among those that are decided. One that isn't clear is refused.
func (m *Middleware) decide(ctx context.Context, r *http.Request, v *Verdict, fill func(*weir.Request)) (err error) {
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
		m.limiter.Tell(ctx, req, weir.Decision{Reason: weir.ReasonIdentityRequired, RulesVersion: watched.rules.Version(), RetryAfter: weir.Never})
		return nil
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
	v.At = m.limiter.Now()
	v.Decision, err = m.limiter.Check(ctx, req)
	return err
}

// wait waits for the request's turn, and says what became of it.
func (m *Middleware) wait(ctx context.Context, w http.ResponseWriter, r *http.Request, v *Verdict) fate {
	rule := queueOf(&v.Decision)
	if !m.room.enter(rule) {
		return queueFull
	}
	defer m.room.leave(rule)
	if by, ok := ctx.Deadline(); ok && time.Until(by) <= v.Decision.Delay {
		return leftQueue // its turn comes too late: better told now, and its place is free at once
	}
	v.body = readEarly(w, r, m.room)
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

// Answer sets the rate-limit headers of an answer, and answers a request that isn't to be served.
func (m *Middleware) Answer(w http.ResponseWriter, r *http.Request, v *Verdict) {
	d := &v.Decision
	switch {
	case v.fate == shed:
		refuseOverloaded(w, r)
	case v.fate != decided:
		x := v.Refused()
		m.answers.send(w, r, &x, d)
	case !d.Allowed:
		m.answers.SetHeaders(w.Header(), &v.Request, d, v.At)
		m.answers.Refuse(w, r, &v.Request, d, v.At)
	case m.answers.speaks(d): // else leave the headers alone: net/http copies those of handlers that ask for them
		m.answers.SetHeaders(w.Header(), &v.Request, d, v.At)
	}
}

// Headers are those that a request is identified by, under the rules in force, in canonical form: an edge whose requests have no
// HTTP headers need hand over no others, beside X-Forwarded-For and Host. The slice must not be changed.
func (m *Middleware) Headers() []string { return m.headers().headers.names }
