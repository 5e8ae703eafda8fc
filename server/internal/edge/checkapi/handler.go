// Package checkapi serves decisions over HTTP with JSON, for gateways and services that aren't written
// in Go or don't want the limiter in their process:
//
//	POST /v1/check    decides one request by the rules
//	POST /v1/checks   decides up to 1,000 requests in one call
//	POST /v1/take     decides by a limit in the call itself, without rules
//	POST /v1/settle   replaces the amounts that a check reserved with those that its request used, once
//	POST /v1/release  releases the slots that a check took
//	POST /v1/renew    renews these slots for a request that is still in flight
//	POST /v1/refund   gives back what a check or a take has charged, once
//
// Everything that the caller says about a request counts as verified. So bind the port to an address that only your own
// services can reach, or require a token. The package expects that callers misbehave: it bounds the size of bodies, and
// rejects anything ambiguous, such as an unknown or repeated field, or bytes that aren't UTF-8, which could make two keys
// share a counter. If the status of a response is a 4xx other than 429 and 403, nothing was charged. No response repeats
// the value of a field, because that may be a key. Set ReadTimeout in the [net/http.Server], to protect it from slow
// clients.
package checkapi

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/inflight"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/server/internal/edge"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

// Options are the options of the check API. The zero value is useful.
type Options struct {
	// Parallel decides the checks of a batch concurrently, in any order, so that their calls to a remote store are sent
	// together. Leave it off with an in-process store.
	Parallel bool
	// Guard decides which callers are admitted. If nil, everybody who can reach the port is admitted, except web pages
	// of other sites.
	Guard *guard.Guard
	// MaxInFlight bounds how many requests are decided at once. Other requests wait for up to a second, and then get
	// status 503. The bound doesn't include the time of receiving a body or sending a response. Zero means no bound.
	MaxInFlight int
	// OnError, if not nil, is called once for each request for which the store couldn't be reached.
	OnError func(*http.Request, error)
	// OnNoAddress, if not nil, is called for every check that has no address. Rules that count by IP treat all these
	// checks as one client.
	OnNoAddress func()
}

type handler struct {
	limiter  *weir.Limiter
	answers  *httplimit.Answerer
	opts     Options
	gate     *inflight.Gate
	policies edge.Cache[policyKey, *counter.Policy]
}

var _ http.Handler = (*handler)(nil)

// New returns a handler for the paths of the check API. The Answerer writes the rate-limit headers. If it is nil, the
// defaults apply.
func New(l *weir.Limiter, a *httplimit.Answerer, opts Options) http.Handler {
	if opts.Guard == nil {
		opts.Guard = guard.New(guard.Options{AnyName: true})
	}
	return &handler{limiter: l, answers: edge.DefaultAnswerer(a), opts: opts, gate: inflight.New(opts.MaxInFlight)}
}

// workspace holds the buffers that serve one request. It is reused for other requests.
type workspace struct {
	src  string // the body
	rest bytes.Buffer
	json jsontext.Decoder // decodes rest
	body
	attrs    attributes // the attributes of all checks so far
	first    int        // index in attrs of the first attribute of the current check
	items    []item     // the checks of /v1/checks
	receipts []string   // the receipts of /v1/renew
	in       bytes.Buffer
	limited  io.LimitedReader  // limits the size of the body
	out      []byte            // the response
	reply    int               // status of the response
	scratch  []byte            // for the subject of the counter in /v1/take, or the text that a check's id is hashed with
	charge   [1]counter.Charge // the charge of /v1/take
}

var workspaces = sync.Pool{New: func() any { return new(workspace) }}

var jsonType, noStore = []string{"application/json"}, []string{"no-store"}

// endpoint serves one path.
type endpoint struct {
	most   int // maximum number of bytes of a body
	fields []field
	// serve handles a request whose body is decoded. It sets headers and c.out.
	serve func(h *handler, header http.Header, r *http.Request, c *workspace) error
}

var endpoints = map[string]endpoint{
	"/v1/check":   {MaxBody, checkFields, (*handler).check},
	"/v1/checks":  {MaxBatchBody, batchFields, (*handler).checks},
	"/v1/take":    {MaxBody, takeFields, (*handler).take},
	"/v1/refund":  {MaxBody, receiptFields, (*handler).refund},
	"/v1/settle":  {MaxBody, settleFields, (*handler).settle},
	"/v1/release": {MaxBody, receiptFields, (*handler).release},
	"/v1/renew":   {MaxBatchBody, renewFields, (*handler).renew},
}

// Paths are the paths of the check API.
var Paths = slices.Sorted(maps.Keys(endpoints))

// NothingHere is the error message for any other path.
const NothingHere = "there is nothing here: POST to /v1/check, /v1/checks, /v1/take, /v1/settle, /v1/release, /v1/renew or /v1/refund"

// InFlight returns how many requests are being decided.
func (h *handler) InFlight() int { return h.gate.In() }

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e, there := endpoints[r.URL.Path]
	if !there {
		jsonerror.New(http.StatusNotFound, jsonerror.NotFound, NothingHere).Write(w)
		return
	}
	if _, refused := h.opts.Guard.Admit(r); refused != nil {
		refused.Write(w)
		return
	}
	c := workspaces.Get().(*workspace)
	err := c.receive(r, e.most)
	if err == nil {
		err = h.decide(w.Header(), r, c, e)
	}
	if err == nil {
		send(w, c.reply, c.out)
	}
	c.release()
	if err != nil {
		fault, ok := errors.AsType[*jsonerror.Error](err)
		if !ok {
			fault = unavailable // other errors are internal errors of the store, which clients mustn't see
		}
		fault.Write(w)
	}
}

// unread is the request that observers see if a request is shed before its body is decoded.
var unread = weir.Request{Edge: edgeName}

// decide serves a request after its body has arrived, when fewer than MaxInFlight requests are being decided.
func (h *handler) decide(header http.Header, r *http.Request, c *workspace, e endpoint) error {
	if !h.gate.Enter(r.Context()) {
		private.Tell(h.limiter, r.Context(), &unread, weir.Decision{Reason: weir.ReasonOverloaded})
		return overloaded
	}
	defer h.gate.Leave() // before the response is sent, so that a client that reads slowly doesn't delay others
	c.out, c.reply = c.out[:0], http.StatusOK
	if err := c.document(c.in.Bytes(), e.fields); err != nil {
		return err
	}
	if e.fields[0].name == receipt.name && c.receipt == "" && !c.many {
		return jsonerror.Bad(`receipt: is missing: ask for one with "receipt": true in a check`)
	}
	return e.serve(h, header, r, c)
}

// release returns a workspace to the pool. It clears the client's values. A workspace that has grown too large isn't
// returned.
func (c *workspace) release() {
	if c.in.Cap()+cap(c.out) <= 4*MaxBody {
		c.src, c.body, c.limited.R = "", body{}, nil
		clear(c.attrs)
		clear(c.items)
		clear(c.receipts)
		workspaces.Put(c)
	}
}

var (
	inASecond   = http.Header{"Retry-After": {"1"}}
	lastAnswer  = http.Header{"Connection": {"close"}} // closes the connection, because the rest of the body may still arrive
	overloaded  = &jsonerror.Error{Status: http.StatusServiceUnavailable, Code: jsonerror.Overloaded, Message: edge.Overloaded, Header: inASecond}
	unavailable = &jsonerror.Error{Status: http.StatusServiceUnavailable, Code: jsonerror.LimiterUnavailable, Message: "the limiter can't reach its store: try again shortly", Header: inASecond}
	wrongMethod = &jsonerror.Error{Status: http.StatusMethodNotAllowed, Code: jsonerror.MethodNotAllowed, Message: "use POST, with a JSON object as the body", Header: http.Header{"Allow": {http.MethodPost}}}
	tooLate     = &jsonerror.Error{Status: http.StatusRequestTimeout, Code: jsonerror.RequestTimeout, Message: "the body did not arrive in time", Header: lastAnswer}
)

func (c *workspace) receive(r *http.Request, most int) error {
	if r.Method != http.MethodPost {
		return wrongMethod
	}
	if err := checkMedia(r.Header); err != nil {
		return err
	}
	if r.ContentLength > int64(most) {
		return tooLarge(most)
	}
	c.in.Reset() // the buffer grows with the bytes that arrive, so a large Content-Length alone doesn't cost memory
	c.limited = io.LimitedReader{R: r.Body, N: int64(most) + 1}
	n, err := c.in.ReadFrom(&c.limited)
	switch {
	case n > int64(most):
		return tooLarge(most)
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return tooLate
	}
	return jsonerror.Bad("the body ended before its announced length")
}

func tooLarge(most int) *jsonerror.Error {
	e := jsonerror.New(http.StatusRequestEntityTooLarge, jsonerror.BodyTooLarge, "too large: at most %d KiB are read", most>>10)
	e.Header = lastAnswer
	return e
}

// checkMedia rejects a body whose headers say that it isn't JSON. A body without a Content-Type is treated as JSON.
func checkMedia(h http.Header) error {
	if v := h["Content-Encoding"]; len(v) > 0 && !strings.EqualFold(v[0], "identity") {
		return jsonerror.New(http.StatusUnsupportedMediaType, jsonerror.UnsupportedMediaType, "send the body as it is, without Content-Encoding")
	}
	v := h["Content-Type"]
	// curl -d says that every body is a form. Forms on web pages of other sites say so, too, but the guard has already
	// refused them.
	if len(v) == 0 || v[0] == "application/json" || v[0] == "application/x-www-form-urlencoded" {
		return nil
	}
	media, params, err := mime.ParseMediaType(v[0])
	isJSON := media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
	if charset, ok := params["charset"]; err != nil || !isJSON || ok && !strings.EqualFold(charset, "utf-8") {
		return jsonerror.New(http.StatusUnsupportedMediaType, jsonerror.UnsupportedMediaType, "send JSON in UTF-8, with Content-Type: application/json")
	}
	return nil
}

// ask decides a check by the rules. If the request got a slot, the decision has a receipt for the slot.
func (h *handler) ask(r *http.Request, req *weir.Request) (weir.Decision, error) {
	if h.opts.OnNoAddress != nil && !req.IP.IsValid() {
		h.opts.OnNoAddress()
	}
	d, err := h.limiter.Check(r.Context(), req)
	if d.Slots() > 0 {
		d.Receipt = private.Seal(h.limiter, d)
	}
	return d, err
}

func (h *handler) report(r *http.Request, err error) {
	if err != nil && h.opts.OnError != nil {
		h.opts.OnError(r, err)
	}
}

// respond sends a decision. now is the time of the decision.
func (h *handler) respond(header http.Header, c *workspace, d *weir.Decision, now time.Time) {
	h.answers.SetHeaders(header, &c.req, d, now)
	x := httplimit.Refused{Status: http.StatusOK}
	if !d.Allowed {
		x = httplimit.Describe(&c.req, d, now)
		header["Cache-Control"] = noStore
		if x.RetryAfterSeconds > 0 {
			header["Retry-After"] = []string{strconv.FormatInt(x.RetryAfterSeconds, 10)}
		}
		if x.Rule != "" {
			header["X-Ratelimit-Rule"] = []string{x.Rule}
		}
	}
	c.out = append(appendDecision(append(c.out, '{'), d, &x, now), '\n')
	c.reply = x.Status
}
