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
	if opts.Dialects == nil {
		opts.Dialects = []Dialect{XRateLimit, IETF}
	}
	a := &Answerer{opts: opts}
	var exposed []string
	for _, d := range opts.Dialects {
		names, ok := dialectHeaders[d]
		if !ok {
			return nil, fmt.Errorf("headers: must be of x-ratelimit, ietf, ietf-06, github and tokens, got %q", d)
		}
		for _, name := range names {
			if !slices.Contains(exposed, name) {
				exposed = append(exposed, name)
			}
		}
	}
	has := func(d Dialect) bool { return slices.Contains(opts.Dialects, d) }
	a.used, a.x, a.ietf, a.ietf06, a.tokens = has(GitHub), has(GitHub) || has(XRateLimit), has(IETF), has(IETF06), has(Tokens)
	if a.ietf && a.ietf06 {
		return nil, errors.New("headers: ietf and ietf-06 give RateLimit different meanings: pick one")
	}
	n := &a.opts.Names
	for _, name := range []*string{&n.Limit, &n.Remaining, &n.Reset, &n.ResetAfter} {
		notToken := func(r rune) bool { return notAlphanumeric(r) && !strings.ContainsRune("!#$%&'*+-.^_`|~", r) }
		if strings.ContainsFunc(*name, notToken) {
			return nil, fmt.Errorf("headers: names: %q can't be the name of a header", *name)
		}
		if *name = http.CanonicalHeaderKey(*name); *name == "" {
			continue
		}
		a.own = append(a.own, *name)
		same := func(other string) bool { return strings.EqualFold(*name, other) }
		if !slices.ContainsFunc(exposed, same) {
			exposed = append(exposed, *name)
		}
	}
	if opts.Expose {
		a.expose = strings.Join(append(exposed, "Retry-After", "X-RateLimit-Rule", "X-RateLimit-Policy"), ", ")
	}
	if err := a.prepareRefusal(); err != nil {
		return nil, err
	}
	return a, nil
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

// dialectHeaders has the headers of each dialect, except those that depend on the names of amounts.
var dialectHeaders = map[Dialect][]string{
	XRateLimit: {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"},
	GitHub:     {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Used", "X-RateLimit-Resource"},
	IETF:       {"RateLimit-Policy", "RateLimit"},
	IETF06:     {"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"},
	Tokens:     nil,
}

// OwnHeaders lists the headers of [Answers.Names] in canonical form. The caller must not change the
// slice.
func (m *Middleware) OwnHeaders() []string { return m.answers.own }

// SetHeaders sets the rate-limit headers for a decision that was made at now.
func (a *Answerer) SetHeaders(h http.Header, req *weir.Request, d *weir.Decision, now time.Time) {
	if d.Policy == nil {
		return
	}
	if a.expose != "" {
		h["Access-Control-Expose-Headers"] = append(h["Access-Control-Expose-Headers"], a.exposed(d)) // keep what a handler has set
	}
	if len(a.opts.Dialects) == 0 && a.own == nil {
		return
	}
	// If no healthy limit has counted the request, the client learns its limit and the latest time at which that is full again, with
	// -1 remaining.
	f := fields{h, make([]string, 0, 8)}
	limit, remaining, reset, counted := a.texts.of(d.Policy).limit, d.Remaining, resetUnix(d, now), !d.Uncounted()
	if !counted {
		remaining = -1
	}
	if a.x {
		f.set("X-Ratelimit-Limit", limit)
		f.setInt("X-Ratelimit-Remaining", remaining)
		f.setInt("X-Ratelimit-Reset", reset)
	}
	if a.used && counted {
		f.setInt("X-Ratelimit-Used", max(0, d.Policy.Limit.Max()-d.Remaining))
		f.set("X-Ratelimit-Resource", d.Rule)
	}
	if a.ietf && counted {
		f.set("Ratelimit-Policy", a.texts.policies(d))
		f.set("Ratelimit", a.texts.quota(d))
	}
	if a.ietf06 && counted {
		f.set("Ratelimit-Limit", limit)
		f.setInt("Ratelimit-Remaining", d.Remaining)
		f.setInt("Ratelimit-Reset", seconds(d.ResetAfter))
	}
	n := &a.opts.Names
	f.set(n.Limit, limit)
	f.setInt(n.Remaining, remaining)
	f.setInt(n.Reset, reset)
	f.setInt(n.ResetAfter, seconds(d.ResetAfter))
	if d.Degraded {
		f.set("X-Ratelimit-Policy", "degraded")
	}
	if a.tokens && counted {
		a.texts.setTokens(&f, d)
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
