// Package admin implements the API with which operators look at a node and change its rules. It decides who may do
// what, writes new versions of the rules, and warns about changes.
package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/edge/guard"
	"github.com/weirhq/weir/server/internal/observe/tail"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// API serves the admin port of a node.
type API struct {
	Rules   *inforce.Rules
	Limiter *weir.Limiter
	Guard   *guard.Guard
	// Audit logs changes with their authors, and refused requests. It must not block.
	Audit *slog.Logger
	// Self describes this node.
	Self func() rulestore.Node
	// Regions returns the state of the other regions. If the field is nil, there are no other regions.
	Regions func() Regions
	// Regroup moves, drains, forgets or restores a region. If that is impossible, the error is region.ErrRefused.
	Regroup func(context.Context, RegionChange) error
	Store   func() Store
	// Top answers questions about clients, now and over the last hour.
	Top *top.Cluster
	// Cooldowns knows which clients are in a cooldown.
	Cooldowns *cooldown.Guard
	// Slots lists the requests that hold slots of concurrency limits.
	Slots Slots
	// Standing returns this region's part of a counter, or nil if regions don't share the counter. If the field is nil,
	// there are no other regions.
	Standing func(context.Context, *counter.Counter) (*region.Standing, error)
	// Missing returns the name of a limit's home region if that region couldn't be reached, or "" if the own region's
	// store couldn't. If the field is nil, there are no other regions.
	Missing func(*counter.Policy) string
	// Heard returns what this node last read about the other nodes. It doesn't call Redis.
	Heard func() redisstore.Heard
	// Now returns this node's state. It doesn't call other nodes.
	Now func() Now
	// Tail streams decisions, until Ending is closed.
	Tail   *tail.Hub
	Ending <-chan struct{}
	// Metrics answers scrapes.
	Metrics http.Handler
	// Profiles serves profiles of this process. If nil, there are none.
	Profiles http.HandlerFunc

	changes lastChanges
	shown   atomic.Pointer[shownRules]

	// looks, writes and hours are queues for expensive requests: requests that read, requests that change the rules,
	// and questions about the last hour. They are separate, so that reads never delay writes.
	looks, writes, hours *queue
}

// Route is an endpoint of the API.
type Route struct {
	Method, Path string
	Role         guard.Role
	handle       handler
	does         work
}

// handler serves a call. It returns the value to send as JSON. If it has already sent the response, it returns nil.
type handler func(*API, *call) (any, *jsonerror.Error)

// with makes a handler from a function that takes a decoded JSON body of at most most bytes.
func with[T any](most int64, handle func(*API, *call, T) (any, *jsonerror.Error)) handler {
	return needs(func(_ *API, r *call) (T, *jsonerror.Error) { return decode[T](r, most) }, handle)
}

// asks makes a handler from a function that takes a request in the format of /v1/check: see [API.question].
func asks(slot bool, handle func(*API, *call, question) (any, *jsonerror.Error)) handler {
	return needs(func(a *API, r *call) (question, *jsonerror.Error) { return a.question(r, slot) }, handle)
}

// needs makes a handler from a function that takes the result of get. If get returns an error, the handler returns that
// error.
func needs[T any](get func(*API, *call) (T, *jsonerror.Error), handle func(*API, *call, T) (any, *jsonerror.Error)) handler {
	return func(a *API, r *call) (any, *jsonerror.Error) {
		v, f := get(a, r)
		if f != nil {
			return nil, f
		}
		return handle(a, r, v)
	}
}

type work int

const (
	shows   work = iota
	parses       // parses documents, so its calls are queued
	changes      // parses documents, and changes the rules or, with dry_run, shows what would change
	recalls      // reads the last hour, which may take megabytes
)

type call struct {
	*http.Request
	w     http.ResponseWriter
	who   guard.Who
	queue *queue // where expensive calls wait for their turn
}

// Routes lists all endpoints. Those under /v1/rules also exist without /v1.
var Routes = []Route{
	{"GET", "/v1/rules", guard.Read, needs((*API).inForce, (*API).rules), shows},
	{"PUT", "/v1/rules", guard.Operate, needs(document, (*API).putRules), changes},
	{"POST", "/v1/rules/validate", guard.Read, needs(document, (*API).validate), parses},
	{"GET", "/v1/rules/id/{id}", guard.Read, needs((*API).inForce, (*API).rule), parses},
	{"PUT", "/v1/rules/id/{id}", guard.Operate, needs(document, (*API).putRule), changes},
	{"DELETE", "/v1/rules/id/{id}", guard.Operate, (*API).deleteRule, changes},
	{"PUT", "/v1/rules/tier/{tier}", guard.Operate, with(rulefile.MaxSize, (*API).putTier), changes},
	{"PUT", "/v1/rules/key", guard.Operate, with(rulefile.MaxSize, (*API).putKey), changes},
	{"DELETE", "/v1/rules/key", guard.Operate, with(rulefile.MaxSize, (*API).deleteKey), changes},
	{"GET", "/v1/rules/versions", guard.Read, needs((*API).history, (*API).versions), shows},
	{"GET", "/v1/rules/versions/{version}", guard.Read, needs((*API).history, (*API).version), shows},
	{"GET", "/v1/rules/diff", guard.Read, needs((*API).history, (*API).diff), parses},
	{"POST", "/v1/rules/rollback", guard.Operate, needs((*API).history, (*API).rollback), changes},
	{"GET", "/v1/rules/usage", guard.Read, needs((*API).inForce, (*API).usage), recalls},
	{"GET", "/v1/rules/usage/{id}", guard.Read, needs((*API).inForce, (*API).usageOf), recalls},
	{"POST", "/v1/rules/whatif", guard.Read, needs((*API).inForce, (*API).whatIf), parses},
	{"POST", "/v1/clients", guard.Read, needs((*API).inForce, (*API).client), recalls},
	{"GET", "/v1/allowlist", guard.Read, needs((*API).inForce, allowlist.show), shows},
	{"PUT", "/v1/allowlist", guard.Operate, with(rulefile.MaxSize, allowlist.put), changes},
	{"POST", "/v1/allowlist/entries", guard.Operate, with(rulefile.MaxSize, allowlist.edit), changes},
	{"GET", "/v1/denylist", guard.Read, needs((*API).inForce, denylist.show), shows},
	{"PUT", "/v1/denylist", guard.Operate, with(rulefile.MaxSize, denylist.put), changes},
	{"POST", "/v1/denylist/entries", guard.Operate, with(rulefile.MaxSize, denylist.edit), changes},
	{"GET", "/v1/cooldowns", guard.Read, (*API).cooldowns, shows},
	{"DELETE", "/v1/cooldowns/{id}", guard.Operate, (*API).liftCooldown, shows},
	{"GET", "/v1/now", guard.Read, (*API).now, shows},
	{"GET", "/v1/events", guard.Read, (*API).events, shows},
	{"GET", "/v1/nodes", guard.Read, (*API).nodes, shows},
	{"GET", "/v1/regions", guard.Read, (*API).regions, shows},
	{"POST", "/v1/regions", guard.Operate, with(rulefile.MaxSize, (*API).regroup), shows},
	{"GET", "/v1/top", guard.Read, (*API).top, shows},
	{"GET", "/v1/session", guard.Read, (*API).session, shows},
	{"POST", "/v1/session", guard.Anybody, with(maxLogin, (*API).login), shows},
	{"DELETE", "/v1/session", guard.Anybody, (*API).logout, shows},
	{"GET", "/v1/version", guard.Read, (*API).about, shows},
	{"POST", "/v1/explain", guard.Read, asks(false, (*API).explain), shows},
	{"POST", "/v1/counters", guard.Read, asks(false, (*API).counters), shows},
	{"POST", "/v1/counters/reset", guard.Operate, asks(false, (*API).resetCounters), shows},
	{"POST", "/v1/counters/release", guard.Operate, asks(true, (*API).releaseSlot), shows},
	{"GET", "/metrics", guard.Read, (*API).metrics, shows},
	{"GET", "/debug/pprof/{profile}", guard.Operate, (*API).profile, shows},
}

// Register adds the API to a mux.
func (a *API) Register(mux *http.ServeMux) {
	a.looks, a.writes, a.hours = newQueue(lookSeats), newQueue(writeSeats), newQueue(hourSeats)
	if a.Regions == nil {
		a.Regions = func() Regions { return Regions{Peers: []region.Status{}} }
	}
	for _, r := range Routes {
		h := func(w http.ResponseWriter, req *http.Request) { a.answer(&r, &call{Request: req, w: w}) }
		mux.HandleFunc(r.Method+" "+r.Path, h)
		if strings.HasPrefix(r.Path, "/v1/rules") {
			mux.HandleFunc(r.Method+" "+strings.TrimPrefix(r.Path, "/v1"), h)
		}
	}
}

func (a *API) answer(route *Route, r *call) {
	leave, f := a.admit(route, r)
	if f != nil {
		f.Write(r.w)
		return
	}
	defer leave()
	switch out, f := route.handle(a, r); {
	case f != nil:
		f.Write(r.w)
	case out != nil:
		r.writeJSON(out)
	}
}

// body reads a call's body, of at most most bytes.
func (r *call) body(most int64) ([]byte, *jsonerror.Error) {
	text, err := io.ReadAll(http.MaxBytesReader(r.w, r.Body, most))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, jsonerror.New(http.StatusRequestEntityTooLarge, jsonerror.BodyTooLarge, "the body is larger than %d bytes", most)
	case err != nil:
		return nil, jsonerror.New(http.StatusRequestTimeout, jsonerror.RequestTimeout, "the body did not arrive")
	}
	return text, nil
}

// document reads a rule document. It reads up to one byte more than allowed, so that the parser rejects documents that
// are too large.
func document(_ *API, r *call) ([]byte, *jsonerror.Error) { return r.body(rulefile.MaxSize + 1) }

// decode reads a JSON body of at most most bytes. It rejects unknown fields.
func decode[T any](r *call, most int64) (in T, f *jsonerror.Error) {
	text, f := r.body(most)
	if f != nil {
		return in, f
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return in, jsonerror.Bad("the body must be JSON as the documentation has it: %s", shown.Hide(strings.TrimPrefix(err.Error(), "json: ")))
	}
	if _, err := dec.Token(); err != io.EOF {
		return in, jsonerror.Bad("the body must be one JSON object, and something follows it")
	}
	return in, nil
}

func (r *call) setETag(version int64) {
	r.w.Header().Set("ETag", `"`+strconv.FormatInt(version, 10)+`"`)
}

func (r *call) writeJSON(v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // encode everything before sending anything: a response mustn't end in the middle
		jsonerror.New(http.StatusInternalServerError, jsonerror.Internal, "the answer can't be written as JSON: %v", err).Write(r.w)
		return
	}
	r.write("application/json", b.Bytes())
}

func (r *call) write(contentType string, body []byte) {
	r.w.Header().Set("Content-Type", contentType)
	_, _ = r.w.Write(body) // the client may have disconnected
}
