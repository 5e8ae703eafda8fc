// Package admin is the API with which operators look at a node and change its rules: who may do what, the
// versions that changes make, and what they are warned of before.
package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
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

// API is a node's admin port.
type API struct {
	Rules   *inforce.Rules
	Limiter *weir.Limiter
	Guard   *guard.Guard
	// Audit is told who changed what, and who was refused. It must not wait.
	Audit *slog.Logger
	// Self tells about this node, and Store how its store of counters is.
	Self func() rulestore.Node
	// Regions is how the other regions are. Nil means that there are none.
	Regions func() Regions
	// Regroup has a region moved, drained, forgotten or restored. It fails with region.ErrRefused where that can't be.
	Regroup func(context.Context, RegionChange) error
	Store   func() any
	// Top tells which clients are hot.
	Top func(context.Context, top.Query) top.Answer
	// Hour tells what happened in the last hour.
	Hour *top.Hour
	// Cooldowns are clients that are kept out.
	Cooldowns *cooldown.Guard
	// Slots tells who holds which slots.
	Slots Slots
	// Standing tells what this region has of a counter, or nil if regions don't share it. Nil means that there are no others.
	Standing func(context.Context, *counter.Counter) (*region.Standing, error)
	// Missing tells which home couldn't be asked, of a limit that wasn't decided; "" if it was the region's own store. Nil means that
	// there are no other regions.
	Missing func(*counter.Policy) string
	// Heard tells what this node last heard of the others, without asking anybody.
	Heard func() redisstore.Heard
	// Now tells how this node is, without asking anybody.
	Now func() Now
	// Tail shows decisions as they are made, until Ending is closed.
	Tail   *tail.Hub
	Ending <-chan struct{}
	// Metrics answers scrapes.
	Metrics http.Handler
	// Profiles answers with the profile that a path names, or fails before it has begun to. Nil means that there are none.
	Profiles func(http.ResponseWriter, *http.Request) *jsonerror.Error

	changes lastChanges
	shown   atomic.Pointer[shownRules]

	// Readers wait for each other, and writers do: no reader holds up a write.
	looks, writes *lane
	hours         *lane // of answers about the last hour
}

// Route is one thing that the API does.
type Route struct {
	Method, Path string
	Role         guard.Role
	handle       func(*API, http.ResponseWriter, *http.Request) *jsonerror.Error
	rules        bool // it changes the rules, or with dry_run shows what it would change
	costly       bool // it has documents looked at: it waits for its turn
}

// Routes are all of them. Those under /v1/rules are there without /v1 as well.
var Routes = []Route{
	{"GET", "/v1/rules", guard.Read, (*API).rules, false, false},
	{"PUT", "/v1/rules", guard.Operate, (*API).putRules, true, true},
	{"POST", "/v1/rules/validate", guard.Read, (*API).validate, false, true},
	{"GET", "/v1/rules/id/{id}", guard.Read, (*API).rule, false, true},
	{"PUT", "/v1/rules/id/{id}", guard.Operate, (*API).putRule, true, true},
	{"DELETE", "/v1/rules/id/{id}", guard.Operate, (*API).deleteRule, true, true},
	{"PUT", "/v1/rules/tier/{tier}", guard.Operate, (*API).putTier, true, true},
	{"PUT", "/v1/rules/key", guard.Operate, (*API).putKey, true, true},
	{"DELETE", "/v1/rules/key", guard.Operate, (*API).deleteKey, true, true},
	{"GET", "/v1/rules/versions", guard.Read, (*API).versions, false, false},
	{"GET", "/v1/rules/versions/{version}", guard.Read, (*API).version, false, false},
	{"GET", "/v1/rules/diff", guard.Read, (*API).diff, false, true},
	{"POST", "/v1/rules/rollback", guard.Operate, (*API).rollback, true, true},
	{"GET", "/v1/rules/usage", guard.Read, (*API).usage, false, false},
	{"GET", "/v1/rules/usage/{id}", guard.Read, (*API).usageOf, false, false},
	{"POST", "/v1/rules/whatif", guard.Read, (*API).whatIf, false, true},
	{"POST", "/v1/clients", guard.Read, (*API).client, false, false},
	{"GET", "/v1/allowlist", guard.Read, (*API).allowlist, false, false},
	{"PUT", "/v1/allowlist", guard.Operate, (*API).putAllowlist, true, true},
	{"POST", "/v1/allowlist/entries", guard.Operate, (*API).editAllowlist, true, true},
	{"GET", "/v1/denylist", guard.Read, (*API).denylist, false, false},
	{"PUT", "/v1/denylist", guard.Operate, (*API).putDenylist, true, true},
	{"POST", "/v1/denylist/entries", guard.Operate, (*API).editDenylist, true, true},
	{"GET", "/v1/cooldowns", guard.Read, (*API).cooldowns, false, false},
	{"DELETE", "/v1/cooldowns/{id}", guard.Operate, (*API).liftCooldown, false, false},
	{"GET", "/v1/now", guard.Read, (*API).now, false, false},
	{"GET", "/v1/events", guard.Read, (*API).events, false, false},
	{"GET", "/v1/nodes", guard.Read, (*API).nodes, false, false},
	{"GET", "/v1/regions", guard.Read, (*API).regions, false, false},
	{"POST", "/v1/regions", guard.Operate, (*API).regroup, false, false},
	{"GET", "/v1/top", guard.Read, (*API).top, false, false},
	{"GET", "/v1/session", guard.Read, (*API).session, false, false},
	{"POST", "/v1/session", guard.Anybody, (*API).login, false, false},
	{"DELETE", "/v1/session", guard.Anybody, (*API).logout, false, false},
	{"GET", "/v1/version", guard.Read, (*API).about, false, false},
	{"POST", "/v1/explain", guard.Read, (*API).explain, false, false},
	{"POST", "/v1/counters", guard.Read, (*API).counters, false, false},
	{"POST", "/v1/counters/reset", guard.Operate, (*API).resetCounters, false, false},
	{"POST", "/v1/counters/release", guard.Operate, (*API).releaseSlot, false, false},
	{"GET", "/metrics", guard.Read, (*API).metrics, false, false},
	{"GET", "/debug/pprof/{profile}", guard.Operate, (*API).profile, false, false},
}

// Register adds the API to a mux.
func (a *API) Register(mux *http.ServeMux) {
	a.looks, a.writes, a.hours = newLane(lookSeats), newLane(writeSeats), newLane(hourSeats)
	for _, r := range Routes {
		h := a.admitted(r, func(w http.ResponseWriter, req *http.Request) {
			if takesGzip(req) {
				w = packs{w}
			}
			if f := r.handle(a, w, req); f != nil {
				f.Write(w)
			}
		})
		mux.HandleFunc(r.Method+" "+r.Path, h)
		if strings.HasPrefix(r.Path, "/v1/rules") {
			mux.HandleFunc(r.Method+" "+strings.TrimPrefix(r.Path, "/v1"), h)
		}
	}
}

// body reads a request's body, of at most that many bytes.
func body(w http.ResponseWriter, r *http.Request, most int64) ([]byte, *jsonerror.Error) {
	if p, ok := w.(packs); ok {
		w = p.ResponseWriter // whose connection ends if the body is too large
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, jsonerror.New(http.StatusRequestEntityTooLarge, jsonerror.BodyTooLarge, "the body is larger than %d bytes", most)
	case err != nil:
		return nil, jsonerror.New(http.StatusRequestTimeout, jsonerror.RequestTimeout, "the body did not arrive")
	}
	return text, nil
}

// decode reads a JSON body. Unknown fields are an error.
func decode(w http.ResponseWriter, r *http.Request, into any) *jsonerror.Error {
	return decodeWithin(w, r, rulefile.MaxSize, into)
}

// decodeWithin is decode of at most that many bytes.
func decodeWithin(w http.ResponseWriter, r *http.Request, most int64, into any) *jsonerror.Error {
	text, f := body(w, r, most)
	if f != nil {
		return f
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return jsonerror.Bad("the body must be JSON as the documentation has it: %s", shown.Hide(strings.TrimPrefix(err.Error(), "json: ")))
	}
	if _, err := dec.Token(); err != io.EOF {
		return jsonerror.Bad("the body must be one JSON object, and something follows it")
	}
	return nil
}

// document reads a rule document.
func document(w http.ResponseWriter, r *http.Request) ([]byte, *jsonerror.Error) {
	return body(w, r, rulefile.MaxSize+1) // the parser says what is too large, too
}
