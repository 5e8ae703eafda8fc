package httplimit

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/weirhq/weir"
)

// Answers says which headers and bodies clients get.
type Answers struct {
	// Dialects of the rate-limit headers. Nil means x-ratelimit and ietf; empty means none.
	Dialects []Dialect
	// Names are headers of one's own, beside the dialects.
	Names HeaderNames
	// Expose lists the headers in Access-Control-Expose-Headers, for scripts of other origins in browsers.
	Expose bool
	// Refusal replaces status and body of refusals by a limit.
	Refusal Template
}

// Dialect is a set of rate-limit headers that clients understand.
type Dialect string

const (
	// XRateLimit is X-RateLimit-Limit, -Remaining and -Reset, the last in Unix seconds.
	XRateLimit Dialect = "x-ratelimit"
	// IETF is RateLimit-Policy and RateLimit, as the IETF draft has them.
	IETF Dialect = "ietf"
	// IETF06 is RateLimit-Limit, -Remaining and -Reset, the last in seconds from now.
	IETF06 Dialect = "ietf-06"
	// GitHub is XRateLimit with -Used and -Resource.
	GitHub Dialect = "github"
	// Tokens is x-ratelimit-limit-tokens, -remaining-tokens and -reset-tokens, the last a duration such as 6m0s, as providers of AI
	// models send them: for each amount that is limited, by its name, and -requests for limits without one.
	Tokens Dialect = "tokens"
)

// HeaderNames are names of one's own; what is "" isn't sent.
type HeaderNames struct {
	Limit, Remaining string
	// Reset is in Unix seconds, ResetAfter in seconds from now.
	Reset, ResetAfter string
}

// Template replaces an answer. Zero fields keep what Weir sends.
type Template struct {
	Status      int
	ContentType string
	// Body is a text/template over [Refused].
	Body string
}

// Answerer writes headers and refusals. Make one with [NewAnswerer].
type Answerer struct {
	opts                  Answers
	x, ietf, ietf06, used bool
	tokens                bool
	own                   []string // the names in opts
	expose                string
	body                  *template.Template
	texts                 texts
}

// NewAnswerer prepares Answers.
func NewAnswerer(opts Answers) (*Answerer, error) {
	a := &Answerer{opts: opts}
	if opts.Dialects == nil {
		a.x, a.ietf = true, true
	}
	for _, d := range opts.Dialects {
		switch d {
		case XRateLimit:
			a.x = true
		case IETF:
			a.ietf = true
		case IETF06:
			a.ietf06 = true
		case GitHub:
			a.x, a.used = true, true
		case Tokens:
			a.tokens = true
		default:
			return nil, fmt.Errorf("headers: must be of x-ratelimit, ietf, ietf-06, github and tokens, got %q", d)
		}
	}
	if a.ietf && a.ietf06 {
		return nil, errors.New("headers: ietf and ietf-06 give RateLimit different meanings: pick one")
	}
	n := &a.opts.Names
	for _, name := range []*string{&n.Limit, &n.Remaining, &n.Reset, &n.ResetAfter} {
		if strings.ContainsFunc(*name, notToken) {
			return nil, fmt.Errorf("headers: names: %q can't be the name of a header", *name)
		}
		*name = http.CanonicalHeaderKey(*name)
		if *name != "" {
			a.own = append(a.own, *name)
		}
	}
	if opts.Expose {
		a.expose = strings.Join(a.headerNames(), ", ")
	}
	if err := a.prepareRefusal(); err != nil {
		return nil, err
	}
	return a, nil
}

// notToken tells characters that a header's name can't have.
func notToken(r rune) bool {
	return notAlphanumeric(r) && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

func (a *Answerer) prepareRefusal() error {
	r := &a.opts.Refusal
	if r.Status != 0 && (r.Status < 400 || r.Status > 599) {
		return fmt.Errorf("refusal: status: must be from 400 to 599, got %d", r.Status)
	}
	if r.ContentType != "" {
		if _, _, err := mime.ParseMediaType(r.ContentType); err != nil {
			return fmt.Errorf("refusal: content_type: must be a media type such as text/plain, got %q", r.ContentType)
		}
	}
	if r.Body == "" {
		return nil
	}
	t, err := template.New("refusal").Option("missingkey=error").Parse(r.Body)
	if err == nil {
		err = t.Execute(&bytes.Buffer{}, &Refused{})
	}
	if err != nil {
		return fmt.Errorf("refusal: body: %w: write a text/template over Code, Message, Rule, Limit, Amount, WindowSeconds, RetryAfterSeconds, RetryIsAGuess, ResetAt and Status", err)
	}
	a.body = t
	return nil
}

// Canonical names, for setting headers without asking for them.
const (
	hLimit     = "X-Ratelimit-Limit"
	hRemaining = "X-Ratelimit-Remaining"
	hReset     = "X-Ratelimit-Reset"
	hUsed      = "X-Ratelimit-Used"
	hResource  = "X-Ratelimit-Resource"
	hRule      = "X-Ratelimit-Rule"
	hDegraded  = "X-Ratelimit-Policy"
	hPolicy    = "Ratelimit-Policy"
	hIETF      = "Ratelimit"
	h06Limit   = "Ratelimit-Limit"
	h06Remain  = "Ratelimit-Remaining"
	h06Reset   = "Ratelimit-Reset"
	hExpose    = "Access-Control-Expose-Headers"
)

func (a *Answerer) headerNames() []string {
	var names []string
	if a.x {
		names = append(names, "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
	}
	if a.used {
		names = append(names, "X-RateLimit-Used", "X-RateLimit-Resource")
	}
	if a.ietf {
		names = append(names, "RateLimit-Policy", "RateLimit")
	}
	if a.ietf06 {
		names = append(names, "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
	}
	for _, n := range []string{a.opts.Names.Limit, a.opts.Names.Remaining, a.opts.Names.Reset, a.opts.Names.ResetAfter} {
		taken := func(other string) bool { return strings.EqualFold(n, other) }
		if n != "" && !slices.ContainsFunc(names, taken) {
			names = append(names, n)
		}
	}
	return append(names, "Retry-After", "X-RateLimit-Rule", "X-RateLimit-Policy")
}

// OwnHeaders lists the headers of [Answers.Names], in canonical form. The slice must not be changed.
func (m *Middleware) OwnHeaders() []string { return m.answers.own }

// speaks reports whether SetHeaders has anything to set.
func (a *Answerer) speaks(d *weir.Decision) bool {
	return d.Policy != nil && (a.numbers() || a.expose != "")
}

// numbers reports whether any header shows a number.
func (a *Answerer) numbers() bool { return a.x || a.ietf || a.ietf06 || a.tokens || a.own != nil }

// SetHeaders sets the rate-limit headers of a decision that was made at now.
func (a *Answerer) SetHeaders(h http.Header, req *weir.Request, d *weir.Decision, now time.Time) {
	if !a.speaks(d) {
		return
	}
	if a.expose != "" {
		h[hExpose] = append(h[hExpose], a.exposed(d)) // a handler may have some of its own
	}
	switch {
	case !a.numbers():
	case d.Uncounted():
		a.setDegraded(h, d, now)
	default:
		a.setNumbers(h, d, now)
	}
}

// setDegraded tells the client its limit and the latest time at which it is full again. X-RateLimit-Policy marks both as not
// read from the counter, and -1 says that nobody knows what remains.
func (a *Answerer) setDegraded(h http.Header, d *weir.Decision, now time.Time) {
	var v values
	b := make([]byte, 0, 128)
	limit, reset := d.Policy.Limit.Count, resetUnix(d, now)
	if a.x {
		b = v.int(b, hLimit, limit)
		b = v.int(b, hRemaining, -1)
		b = v.int(b, hReset, reset)
	}
	if a.own != nil {
		n := &a.opts.Names
		b = v.int(b, n.Limit, limit)
		b = v.int(b, n.Remaining, -1)
		b = v.int(b, n.Reset, reset)
		b = v.int(b, n.ResetAfter, seconds(d.ResetAfter))
	}
	b = v.is(b, hDegraded, "degraded")
	v.set(h, b)
}

// setNumbers is on the way of every request.
func (a *Answerer) setNumbers(h http.Header, d *weir.Decision, now time.Time) {
	var v values
	b := make([]byte, 0, 256) // on the stack, unless many limits apply
	limit, reset := d.Policy.Limit.Count, resetUnix(d, now)
	if a.x {
		b = v.is(b, hLimit, a.texts.of(d.Policy).limit)
		b = v.int(b, hRemaining, d.Remaining)
		b = v.int(b, hReset, reset)
	}
	if a.used {
		b = v.int(b, hUsed, max(0, d.Policy.Limit.Max()-d.Remaining))
		b = v.is(b, hResource, d.Rule)
	}
	if a.ietf {
		b = a.texts.policies(&v, b, d)
		b = v.end(a.texts.appendQuota(b, d), hIETF)
	}
	if a.ietf06 {
		b = v.int(b, h06Limit, limit)
		b = v.int(b, h06Remain, d.Remaining)
		b = v.int(b, h06Reset, seconds(d.ResetAfter))
	}
	if a.own != nil {
		n := &a.opts.Names
		b = v.int(b, n.Limit, limit)
		b = v.int(b, n.Remaining, d.Remaining)
		b = v.int(b, n.Reset, reset)
		b = v.int(b, n.ResetAfter, seconds(d.ResetAfter))
	}
	if d.Degraded {
		b = v.is(b, hDegraded, "degraded")
	}
	v.set(h, b)
	if a.tokens {
		a.texts.setTokens(h, d)
	}
}

// resetUnix is when the counter is full again, in Unix seconds, rounded up.
func resetUnix(d *weir.Decision, now time.Time) int64 {
	at := now.Add(d.ResetAfter).UnixMicro()
	switch l := &d.Policy.Limit; l.Algorithm {
	case weir.FixedWindow, weir.SlidingCounter:
		// Windows end at multiples of their length on the store's clock. Ours is a
		// little off, by more at one request than at the next, and a hair past
		// the edge would be shown as a second later.
		const most = int64(5 * time.Second / time.Microsecond)
		window := l.Window.Microseconds()
		if l.Calendar.Unit != weir.NoUnit {
			window = int64(15 * time.Minute / time.Microsecond) // where days begin in any zone
		}
		edge := (at + window/2) / window * window
		if off := at - edge; d.ResetAfter > 0 && max(off, -off) <= min(most, window/4) {
			at = edge
		}
	}
	const second = int64(time.Second / time.Microsecond)
	return (at + second - 1) / second
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
