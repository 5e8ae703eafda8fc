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
	"github.com/weirhq/weir/counter"
)

// Answers configures the headers and bodies that clients get.
type Answers struct {
	// Dialects lists the sets of rate-limit headers to send. Nil means x-ratelimit and ietf; empty
	// means none.
	Dialects []Dialect
	// Names adds headers with names of your own.
	Names HeaderNames
	// Expose lists the headers in Access-Control-Expose-Headers, so that scripts of other origins
	// can read them.
	Expose bool
	// Refusal replaces the status and body of refusals by a limit.
	Refusal Template
}

// Dialect is a set of rate-limit headers.
type Dialect string

const (
	// XRateLimit is X-RateLimit-Limit, -Remaining and -Reset, with Reset in Unix seconds.
	XRateLimit Dialect = "x-ratelimit"
	// IETF is RateLimit-Policy and RateLimit, as in the current IETF draft.
	IETF Dialect = "ietf"
	// IETF06 is RateLimit-Limit, -Remaining and -Reset, with Reset in seconds from now, as in draft
	// -06.
	IETF06 Dialect = "ietf-06"
	// GitHub is XRateLimit plus X-RateLimit-Used and -Resource.
	GitHub Dialect = "github"
	// Tokens is the dialect of AI providers: x-ratelimit-limit-tokens, -remaining-tokens and
	// -reset-tokens, with reset as a duration such as 6m0s, for each limited amount by its name,
	// and -requests for limits on requests.
	Tokens Dialect = "tokens"
)

// HeaderNames are header names of your own. A header whose name is empty isn't sent.
type HeaderNames struct {
	Limit, Remaining string
	// Reset is sent in Unix seconds, ResetAfter in seconds from now.
	Reset, ResetAfter string
}

// Template replaces parts of a refusal. Zero fields keep what Weir sends.
type Template struct {
	Status      int
	ContentType string
	// Body is a text/template that is executed with a [Refused].
	Body string
}

// Answerer writes rate-limit headers and refusals. Make one with [NewAnswerer].
type Answerer struct {
	opts                  Answers
	x, ietf, ietf06, used bool
	tokens                bool
	own                   []string // the names of opts.Names that are set
	expose                string
	body                  *template.Template
	texts                 texts
}

// NewAnswerer returns an Answerer, or an error if the Answers are invalid.
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

// notToken reports whether a character isn't allowed in header names.
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

// Header names in canonical form, so that they can be set without being canonicalized.
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

// OwnHeaders lists the headers of [Answers.Names] in canonical form. The caller must not change the
// slice.
func (m *Middleware) OwnHeaders() []string { return m.answers.own }

// speaks reports whether SetHeaders has anything to set.
func (a *Answerer) speaks(d *weir.Decision) bool {
	return d.Policy != nil && (a.numbers() || a.expose != "")
}

// numbers reports whether any configured header carries a number.
func (a *Answerer) numbers() bool { return a.x || a.ietf || a.ietf06 || a.tokens || a.own != nil }

// SetHeaders sets the rate-limit headers for a decision that was made at now.
func (a *Answerer) SetHeaders(h http.Header, req *weir.Request, d *weir.Decision, now time.Time) {
	if !a.speaks(d) {
		return
	}
	if a.expose != "" {
		h[hExpose] = append(h[hExpose], a.exposed(d)) // keep what a handler has set
	}
	if a.numbers() {
		a.setNumbers(h, d, now)
	}
}

// setNumbers runs for every request. If no healthy limit has counted the request, the client learns its limit and the latest
// time at which that is full again, with -1 remaining.
func (a *Answerer) setNumbers(h http.Header, d *weir.Decision, now time.Time) {
	var v values
	b := make([]byte, 0, 256) // stays on the stack unless many limits apply
	limit, remaining, reset, counted := d.Policy.Limit.Count, d.Remaining, resetUnix(d, now), !d.Uncounted()
	if !counted {
		remaining = -1
	}
	if a.x {
		b = v.is(b, hLimit, a.texts.of(d.Policy).limit)
		b = v.int(b, hRemaining, remaining)
		b = v.int(b, hReset, reset)
	}
	if a.used && counted {
		b = v.int(b, hUsed, max(0, d.Policy.Limit.Max()-d.Remaining))
		b = v.is(b, hResource, d.Rule)
	}
	if a.ietf && counted {
		b = a.texts.policies(&v, b, d)
		b = v.end(a.texts.appendQuota(b, d), hIETF)
	}
	if a.ietf06 && counted {
		b = v.int(b, h06Limit, limit)
		b = v.int(b, h06Remain, d.Remaining)
		b = v.int(b, h06Reset, seconds(d.ResetAfter))
	}
	if a.own != nil {
		n := &a.opts.Names
		b = v.int(b, n.Limit, limit)
		b = v.int(b, n.Remaining, remaining)
		b = v.int(b, n.Reset, reset)
		b = v.int(b, n.ResetAfter, seconds(d.ResetAfter))
	}
	if d.Degraded {
		b = v.is(b, hDegraded, "degraded")
	}
	v.set(h, b)
	if a.tokens && counted {
		a.texts.setTokens(h, d)
	}
}

// resetUnix returns when the counter is full again, in Unix seconds, rounded up.
func resetUnix(d *weir.Decision, now time.Time) int64 {
	at := now.Add(d.ResetAfter).UnixMicro()
	switch l := &d.Policy.Limit; l.Algorithm {
	case weir.FixedWindow, weir.SlidingCounter:
		// Windows end at multiples of their length on the store's clock. The difference to this
		// clock varies between requests, and without a correction a reset just past the edge would
		// be shown a second later.
		const most = int64(5 * time.Second / time.Microsecond)
		window := l.Window.Microseconds()
		if l.Calendar.Unit != counter.NoUnit {
			window = int64(15 * time.Minute / time.Microsecond) // time zones differ by multiples of 15 minutes
		}
		edge := (at + window/2) / window * window
		if off := at - edge; d.ResetAfter > 0 && max(off, -off) <= min(most, window/4) {
			at = edge
		}
	}
	const second = int64(time.Second / time.Microsecond)
	return (at + second - 1) / second
}

// seconds converts a duration to seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
