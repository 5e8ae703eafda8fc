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
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/inflight"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/guard"
	"github.com/weirhq/weir/server/internal/edge/recent"
)

// Options of the check API. The zero value is useful.
type Options struct {
	// Parallel has the checks of a batch decided at the same time, in any order, so that those of a
	// store that is a round trip away travel together. A store in this process is better off without.
	Parallel bool
	// Guard decides which callers may ask. Nil means all that reach the port, except for web pages
	// of other sites.
	Guard *guard.Guard
	// MaxInFlight is how many requests are decided at a time. Others wait for up to a second, and then get
	// 503. One whose body hasn't arrived, or whose answer isn't taken, doesn't count. 0 means no bound.
	MaxInFlight int
	// OnError is told when the store couldn't be reached, once for a request, however many
	// checks that has. The answer follows the rules all the same. Nil means that nobody is told.
	OnError func(*http.Request, error)
	// OnNoAddress is told of every check without an address: rules that count by it take all of those for
	// one client. Nil means that nobody is told.
	OnNoAddress func()
}

// handler serves the check API.
type handler struct {
	limiter  *weir.Limiter
	answers  *httplimit.Answerer
	opts     Options
	gate     *inflight.Gate
	policies recent.Cache[policyKey, *counter.Policy]
	singles  sync.Pool // of *call, for bodies up to MaxBody
	batches  sync.Pool // of *call, for bodies up to MaxBatchBody
}

var _ http.Handler = (*handler)(nil)

// New returns a handler for the paths of the check API. The answerer decides
// which rate-limit headers answers carry; nil means those that are sent by default.
func New(l *weir.Limiter, a *httplimit.Answerer, opts Options) http.Handler {
	if a == nil {
		var err error
		if a, err = httplimit.NewAnswerer(httplimit.Answers{}); err != nil {
			panic(err) // the defaults are good
		}
	}
	if opts.Guard == nil {
		opts.Guard = guard.New(guard.Options{AnyName: true})
	}
	h := &handler{limiter: l, answers: a, opts: opts, gate: inflight.New(opts.MaxInFlight)}
	h.singles.New = newCall
	h.batches.New = newCall
	return h
}

// call is what serving one request needs, reused from request to request.
type call struct {
	src  string // the body that is being read
	rest bytes.Buffer
	json jsontext.Decoder // of rest
	body
	attrs   []attribute // of all checks that were read
	first   int         // in attrs: of the check that is being read
	shown   []attribute // of the check that is being decided
	attr    func(string) string
	items   []item // of /v1/checks
	in      bytes.Buffer
	limited io.LimitedReader // of the request's body
	out     []byte
	scratch []byte // of /v1/take the counter's subject, of an id what it stands for
	inside  bool   // it has a place among those that are decided

	receipts []string // of /v1/renew
}

func newCall() any {
	c := new(call)
	c.attr = func(name string) string {
		for i := range c.shown {
			if sameAttribute(c.shown[i].name, name) {
				return c.shown[i].value
			}
		}
		return ""
	}
	return c
}

// show lets rules look at attributes beyond the fields of a request. The call can show those of one request at a time.
func (c *call) show(req *weir.Request, attrs []attribute) {
	if len(attrs) > 0 {
		c.shown, req.Attr = attrs, c.attr
	}
}

var jsonType = []string{"application/json"}

// endpoint answers requests, and says how long their bodies may be.
type endpoint struct {
	serve func(*handler, http.ResponseWriter, *http.Request, *call) error
	most  int
}

var endpoints = map[string]endpoint{
	"/v1/check":   {(*handler).check, MaxBody},
	"/v1/checks":  {(*handler).checks, MaxBatchBody},
	"/v1/take":    {(*handler).take, MaxBody},
	"/v1/refund":  {(*handler).refund, MaxBody},
	"/v1/settle":  {(*handler).settle, MaxBody},
	"/v1/release": {(*handler).release, MaxBody},
	"/v1/renew":   {(*handler).renew, MaxBatchBody},
}

// Paths are those that the check API answers at.
var Paths = slices.Sorted(maps.Keys(endpoints))

// NothingHere is what other paths are told. No other port says it.
const NothingHere = "there is nothing here: POST to /v1/check, /v1/checks, /v1/take, /v1/settle, /v1/release, /v1/renew or /v1/refund"

// InFlight is how many requests are being decided.
func (h *handler) InFlight() int { return h.gate.In() }

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e, there := endpoints[r.URL.Path]
	if !there {
		jsonerror.New(http.StatusNotFound, jsonerror.NotFound, NothingHere).Write(w)
		return
	}
	pool := &h.singles
	if e.most > MaxBody {
		pool = &h.batches
	}
	if _, refused := h.opts.Guard.Admit(r); refused != nil {
		refused.Write(w)
		return
	}
	c := pool.Get().(*call)
	err := c.receive(r, e.most)
	if err == nil {
		err = h.decide(w, r, c, e)
	}
	release(pool, c)
	if err != nil {
		fault, ok := errors.AsType[*jsonerror.Error](err)
		if !ok {
			fault = unavailable // what isn't a fault came from the store, and its words are not for clients
		}
		fault.Write(w)
	}
}

// unread stands for requests that are shed.
var unread = weir.Request{Edge: edge}

// decide serves a request whose body has arrived, when it is its turn.
func (h *handler) decide(w http.ResponseWriter, r *http.Request, c *call, e endpoint) error {
	if c.inside = h.gate.Enter(r.Context()); !c.inside {
		h.limiter.Tell(r.Context(), &unread, weir.Decision{Reason: weir.ReasonOverloaded})
		return overloaded
	}
	defer h.leave(c)
	return e.serve(h, w, r, c)
}

// leave gives up the place among those that are decided, if it hasn't been yet.
func (h *handler) leave(c *call) {
	if c.inside {
		c.inside = false
		h.gate.Leave()
	}
}

// release puts a call back, unless it has grown to what is seldom needed. The client's values would live as long as the pool.
func release(pool *sync.Pool, c *call) {
	if cap(c.out) <= MaxBatchBody {
		c.src, c.body, c.shown, c.limited.R = "", body{}, nil, nil
		clear(c.attrs)
		clear(c.items)
		clear(c.receipts)
		pool.Put(c)
	}
}

var (
	inASecond   = http.Header{"Retry-After": {"1"}}
	lastAnswer  = http.Header{"Connection": {"close"}} // the rest of a body may still be under way
	overloaded  = &jsonerror.Error{Status: http.StatusServiceUnavailable, Code: jsonerror.Overloaded, Message: "this node is overloaded: try again shortly, or ask another", Header: inASecond}
	unavailable = &jsonerror.Error{Status: http.StatusServiceUnavailable, Code: jsonerror.LimiterUnavailable, Message: "the limiter can't reach its store: try again shortly", Header: inASecond}
	wrongMethod = &jsonerror.Error{Status: http.StatusMethodNotAllowed, Code: jsonerror.MethodNotAllowed, Message: "use POST, with a JSON object as the body", Header: http.Header{"Allow": {http.MethodPost}}}
	tooLate     = &jsonerror.Error{Status: http.StatusRequestTimeout, Code: jsonerror.RequestTimeout, Message: "the body did not arrive in time", Header: lastAnswer}
)

// receive reads the body of a request into c.in.
func (c *call) receive(r *http.Request, most int) error {
	if r.Method != http.MethodPost {
		return wrongMethod
	}
	if err := checkMedia(r.Header); err != nil {
		return err
	}
	if r.ContentLength > int64(most) {
		return tooLarge(most)
	}
	c.in.Reset() // it grows with what really arrives: a length that is only announced costs nothing
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

// checkMedia refuses what says that it isn't JSON. What says nothing is taken for JSON.
func checkMedia(h http.Header) error {
	if v := h["Content-Encoding"]; len(v) > 0 && !strings.EqualFold(v[0], "identity") {
		return jsonerror.New(http.StatusUnsupportedMediaType, jsonerror.UnsupportedMediaType, "send the body as it is, without Content-Encoding")
	}
	v := h["Content-Type"]
	// curl -d says that whatever it sends is a form. Forms of other sites' pages say so, too: the guard has refused those.
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

// ask has a check decided by the rules. Whoever has got a slot gets a receipt for it.
func (h *handler) ask(r *http.Request, req *weir.Request) (weir.Decision, error) {
	if h.opts.OnNoAddress != nil && !req.IP.IsValid() {
		h.opts.OnNoAddress()
	}
	d, err := h.limiter.Check(r.Context(), req)
	if d.Slots() > 0 {
		h.limiter.Seal(&d)
	}
	return d, err
}

// report tells of a store that couldn't be reached.
func (h *handler) report(r *http.Request, err error) {
	if err != nil && h.opts.OnError != nil {
		h.opts.OnError(r, err)
	}
}

// respond sends a decision that was made at now.
func (h *handler) respond(w http.ResponseWriter, c *call, d *weir.Decision, now time.Time) {
	header := w.Header()
	h.answers.SetHeaders(header, &c.req, d, now)
	header["Content-Type"] = jsonType
	x := httplimit.Refused{Status: http.StatusOK}
	if !d.Allowed {
		x = httplimit.Describe(&c.req, d, now)
		setRefusal(header, &x)
	}
	c.out = append(c.out[:0], '{')
	c.out = appendDecision(c.out, d, &x, now)
	c.out = append(c.out, '\n')
	send(w, x.Status, c.out)
}
