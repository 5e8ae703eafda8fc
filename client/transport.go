package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Transport is an http.RoundTripper that keeps to the limits of the services that it calls. The zero value is useful. It must
// not be copied. If a host counts requests under different keys, each key needs a Transport of its own; they may share a Base.
type Transport struct {
	// Base sends requests. Nil means http.DefaultTransport.
	Base http.RoundTripper
	// MaxInFlight is how many requests a host gets at a time, until their bodies are read or closed. 0 means 256.
	MaxInFlight int
	// MaxWait is how long a request may wait before it is sent. A request that would wait longer fails at once with a
	// [PausedError], or returns its refusal if it had one. 0 means a minute.
	MaxWait time.Duration
	// RetryBudget is how many repeats there may be per request, on average. 0 means 0.1; below 0, nothing is repeated.
	RetryBudget float64

	mu    sync.Mutex
	hosts map[string]*host
}

var _ http.RoundTripper = (*Transport)(nil)

// PausedError means that a request wasn't sent, since it would have waited beyond its deadline or [Transport.MaxWait]. It wraps
// context.DeadlineExceeded.
type PausedError struct {
	Host string
	// Policy is the policy that requests wait for, or "" if the host has named none.
	Policy string
	// Until is when a request may be sent at the earliest, as far as is known.
	Until time.Time
}

func (e *PausedError) Error() string {
	policy := ""
	if e.Policy != "" {
		policy = fmt.Sprintf(" (policy %q)", e.Policy)
	}
	return fmt.Sprintf("client: %s is at its rate limit%s: the next request can go at %s, which is too late for this one",
		e.Host, policy, e.Until.UTC().Format(time.RFC3339))
}

// Timeout returns true, so that net/http and others treat the error as a timeout.
func (e *PausedError) Timeout() bool { return true }

func (e *PausedError) Unwrap() error { return context.DeadlineExceeded }

// RoundTrip sends a request when its host's limits allow it, and repeats it after a refusal if that is safe.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil {
		return t.base().RoundTrip(req) // it returns the right error
	}
	h := t.host(req)
	r := h.routeOf(req)
	last := time.Now().Add(cmp.Or(max(0, t.MaxWait), time.Minute)) // the latest time to send it
	if d, ok := req.Context().Deadline(); ok && d.Before(last) {
		last = d
	}
	for try := 1; ; try++ {
		c, err := t.wait(req.Context(), h, r, last, try > 1)
		if err != nil {
			if req.Body != nil {
				_ = req.Body.Close()
			}
			return nil, err
		}
		res, wait, refused, err := t.send(h, c, req)
		if err != nil || !refused {
			return res, err
		}
		again := (*http.Request)(nil)
		if try < maxTries && !time.Now().Add(wait).After(last) {
			again = t.again(h, req, res)
		}
		if again == nil {
			return res, nil
		}
		_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be used again
		_ = res.Body.Close()
		req = again
	}
}

// CloseIdleConnections closes the idle connections of Base.
func (t *Transport) CloseIdleConnections() {
	(&http.Client{Transport: t.base()}).CloseIdleConnections()
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

// host returns what is known about a request's host, and adds the request's share to its budget of repeats.
func (t *Transport) host(req *http.Request) *host {
	name := strings.ToLower(req.URL.Scheme + "://" + req.URL.Host)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hosts == nil {
		t.hosts = map[string]*host{}
	}
	h := get(t.hosts, name, maxHosts, func() *host { return newHost(name) })
	h.mu.Lock()
	defer h.mu.Unlock()
	h.budget = min(h.budget+max(0, cmp.Or(t.RetryBudget, 0.1)), budgetReserve)
	return h
}

// wait returns once a request may go, and counts it. Repeats don't queue a second time.
func (t *Transport) wait(ctx context.Context, h *host, r *route, last time.Time, repeat bool) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	first, waited := repeat, false // first: the request is the one of its route that may go next
	if !repeat {
		select {
		case r.turn <- struct{}{}:
			first = true
		default:
			waited = true
		}
		defer func() {
			if first {
				<-r.turn
			}
		}()
	}
	for {
		now := time.Now()
		h.mu.Lock()
		at, by := h.ready(r, now)
		due := !at.After(now)
		switch {
		case at.After(last), waited && !now.Before(last):
			h.mu.Unlock()
			return nil, &PausedError{Host: h.name, Policy: by, Until: later(at, now)}
		case first && due && h.inFlight < cmp.Or(max(0, t.MaxInFlight), 256):
			c := h.send(r, now)
			h.mu.Unlock()
			return c, nil
		}
		turn, paused, changed, until := r.turn, h.paused, (chan struct{})(nil), last
		if first {
			if h.changed == nil {
				h.changed = make(chan struct{})
			}
			turn, paused, changed = nil, nil, h.changed
			if !due {
				until = at
			}
		}
		h.mu.Unlock()
		waited = true
		timer := time.NewTimer(time.Until(until))
		select {
		case turn <- struct{}{}:
			first = true
		case <-paused: // it may no longer be able to go in time
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			if err := ctx.Err(); err != context.DeadlineExceeded {
				timer.Stop()
				return nil, err
			}
		}
		timer.Stop()
	}
}

// send sends a request that was counted. For a refusal, wait is how long requests pause.
func (t *Transport) send(h *host, c *call, req *http.Request) (res *http.Response, wait time.Duration, refused bool, err error) {
	answered := false
	defer func() {
		if !answered { // there was an error, or Base has panicked
			h.answer(c, nil, time.Now())
			h.release()
		}
	}()
	if res, err = t.base().RoundTrip(req); err != nil {
		return res, 0, false, err
	}
	answered = true
	wait, refused = h.answer(c, res, time.Now())
	if res.Body == nil || res.Body == http.NoBody || res.StatusCode == http.StatusSwitchingProtocols {
		h.release() // after the switch, it is no longer a request
	} else {
		res.Body = &body{ReadCloser: res.Body, done: sync.OnceFunc(h.release)}
	}
	return res, wait, refused, nil
}

// body reports when the body of an answer was read.
type body struct {
	io.ReadCloser
	done func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.done()
	}
	return n, err
}

func (b *body) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

// asksToWait reports whether an answer asks to come back later: 429, and 503 or (GitHub) 403 with Retry-After.
func asksToWait(res *http.Response) bool {
	switch res.StatusCode {
	case http.StatusTooManyRequests:
		return true
	case http.StatusServiceUnavailable, http.StatusForbidden:
		return res.Header.Get("Retry-After") != ""
	}
	return false
}

// again returns the request to send instead of one that was refused, or nil if it must not be repeated.
func (t *Transport) again(h *host, req *http.Request, res *http.Response) *http.Request {
	switch {
	case t.RetryBudget < 0:
		return nil
	case res.StatusCode == http.StatusServiceUnavailable && !idempotent(req):
		return nil // the service may have begun to process it
	case req.Body != nil && req.Body != http.NoBody && req.GetBody == nil:
		return nil
	case !h.mayRepeat():
		return nil
	}
	again := req.WithContext(req.Context())
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil
		}
		again.Body = body
	}
	return again
}

// idempotent reports whether a request may be carried out twice.
func idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	_, key := req.Header["Idempotency-Key"]
	_, x := req.Header["X-Idempotency-Key"]
	return key || x
}
