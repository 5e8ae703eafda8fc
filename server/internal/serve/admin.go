package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/guard"
	"github.com/weirhq/weir/server/ui"
)

// admin returns the handler of the admin port. When ctx is done, the handler ends streams and unfinished profiles.
func (n *node) admin(ctx context.Context, g *guard.Guard) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", n.healthz)
	mux.HandleFunc("GET /readyz", n.readyz(func(r *http.Request) bool {
		_, refused := g.Admit(r)
		return refused == nil
	}))
	api := &admin.API{
		Rules: n.rules, Limiter: n.limiter, Guard: g, Audit: cmp.Or(n.config.Audit, n.log),
		Self: n.about, Store: func() admin.Store { return n.storeStatus().Store }, Heard: n.heard, Metrics: n.scrape(), Now: n.now, Tail: &n.tail, Ending: ctx.Done(),
		Top: n.cluster, Cooldowns: n.guard, Slots: n.counting(), Regions: n.regions, Regroup: n.regroup,
	}
	if n.link != nil {
		api.Standing, api.Missing = n.link.Standing, n.link.Missing
	}
	if n.config.Pprof {
		api.Profiles = profiles(ctx)
	}
	api.Register(mux)
	console := ui.New()
	console.Register(mux)
	mux.HandleFunc("GET /{$}", index(console.Built()))
	mux.HandleFunc("/", nothing(AdminPort+": try GET "+given(n.config.Pprof, "/debug/pprof/ and profile, heap, allocs, goroutine, threadcreate or trace, ")+
		"/console/, /v1/now, /v1/rules, /v1/rules/versions, /v1/nodes, /v1/top, /v1/version, /metrics, /healthz or /readyz"))
	return ownPagesOnly(mux)
}

// ownPagesOnly tells browsers not to cache responses, and not to let other sites frame or embed them.
func ownPagesOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "X-Content-Type-Options": "nosniff",
		} {
			w.Header().Set(name, value)
		}
		h.ServeHTTP(w, r)
	})
}

// AdminPort begins the admin port's response for unknown paths, so that callers recognize the port.
const AdminPort = "this is the admin port"

// index handles requests for the root of the port. If there is a console, it redirects browsers to it.
func index(console bool) http.HandlerFunc {
	where := cmp.Or(given(console, "the console, in a browser; /play is the playground"), "this binary was built without the console: make ui build")
	return func(w http.ResponseWriter, r *http.Request) {
		if console && strings.Contains(r.Header.Get("Accept"), "text/html") {
			http.Redirect(w, r, "/console/", http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, `This is the admin port of a Weir node.

/console/    %s
/v1/now      this node, live: decisions, refusals, latency, store, trouble
/v1/top      who is hot, and who is refused: weir top
/v1/nodes    the nodes, their rules and stores: weir nodes
/v1/rules    the rules in force: weir rules show
/readyz      this node's store and rules
/metrics     for Prometheus

Where the port has tokens, all but /readyz and /play ask for one. The rest is in docs/reference/admin-api.md.
`, where)
	}
}

// about describes this node to the other nodes.
func (n *node) about() rulestore.Node {
	out := n.self
	doc := n.rules.InForce()
	out.RulesVersion, out.RulesHash, out.InFile, out.Seen = doc.Version, doc.Hash, n.rules.File() != "", time.Now()
	out.RulesText = given(!doc.Since.IsZero(), rulestore.TextHash(doc.Text))
	out.Warning = n.rules.Warning()
	n.tellStore(&out)
	return out
}

// heard returns what this node last read about the other nodes. Without Redis, there are no other nodes.
func (n *node) heard() redisstore.Heard {
	if n.redis == nil {
		return redisstore.Heard{At: time.Now()}
	}
	return n.redis.Heard()
}

// nothing handles unknown paths. Its message says which paths exist.
func nothing(message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "%s", message).Write(w)
	}
}

func (n *node) healthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"status": "ok"})
}

// readyz says whether a load balancer should send requests to this node. A node without its store is ready, since every
// rule says what happens then. If all nodes lose the store at once, a load balancer that removed them would cause an
// outage. But a node isn't ready if it has just started and may still reach its store, or if it has no rules, so that
// it refuses everything.
//
// Load balancers ask without a token. Only callers with a token learn where the store and the rules are.
func (n *node) readyz(mayKnow func(*http.Request) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		full := mayKnow(r)
		store := n.storeStatus().Store
		if !full {
			store = admin.Store{Status: store.Status, Since: store.Since}
		}
		doc := n.rules.InForce()
		body := map[string]any{"status": "ready", "store": store, "rules_version": doc.Version}
		if doc.Hash != "" {
			body["rules_hash"] = rulestore.Short(doc.Hash)
		}
		if !doc.Since.IsZero() {
			body["rules_since"] = admin.Moment(doc.Since)
		}
		set := func(name, text, toStrangers string) {
			if text != "" && !full {
				text = toStrangers
			}
			if text != "" {
				body[name] = text
			}
		}
		const elsewhere = " rejected: /readyz on the admin port says where they are wrong"
		stale := n.rules.Stale()
		set("rules_stale", stale, stale)
		set("rules_rejected", n.rules.Rejected(), "newer rules were"+elsewhere)
		set("rules_warning", n.rules.Warning(), "")
		if n.envoyConfig != nil {
			body["envoy_config"] = n.envoyStatus(full)
			newer := cmp.Or(given(n.config.Envoy.XDS != nil, "newer limits of the xDS server were"), "newer files were")
			set("envoy_config_rejected", n.envoyRejected(), newer+elsewhere)
		}
		status := http.StatusOK
		unready := func(what string) { body["status"], status = what, http.StatusServiceUnavailable }
		if why := n.unconfigured(); why != "" {
			unready("no configuration")
			set("reason", why, "there is no configuration that can be used: the log says why, and /readyz on the admin port")
		}
		if n.connecting() {
			unready("connecting")
			body["reason"] = "the store hasn't been reached since this node started"
		}
		if waiting := n.rules.Waiting(); waiting != "" {
			unready("no rules")
			body["reason"] = waiting
		}
		if n.draining.Load() {
			unready("draining")
		}
		writeJSON(w, status, body)
	}
}

func writeJSON(w http.ResponseWriter, status int, body map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body) // the client may have disconnected
}
