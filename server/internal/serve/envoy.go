package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/edge/forwardauth"
	"github.com/weirhq/weir/server/internal/edge/guard"
	"github.com/weirhq/weir/tracing"
)

// EnvoyHeaders has names for response headers. "" means the same name as in envoyproxy/ratelimit.
type EnvoyHeaders struct{ Limit, Remaining, Reset string }

// Envoy has the settings of Envoy's rate limit service. The fields have the same names in weir.yaml.
type Envoy struct {
	Headers                                 *bool             // responses have headers that describe a limit of EnvoyConfig; nil means true
	HeaderNames                             EnvoyHeaders      // the names of these headers
	DynamicMetadata                         bool              // add the request, and the metadata of limits, to responses
	ShadowMode, QuotaMode, MergeDomains     bool              // the fields of [envoy.Modes]
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration     // apply to gRPC connections: see [envoy.ServerOptions]
	Attributes                              map[string]string // maps keys of descriptors to attributes of rules
	XDS                                     *envoy.XDS        // an xDS server that sends the limits, in place of EnvoyConfig; nil means none

	// StartWithoutConfig lets a node start although EnvoyConfig can't be used. It also makes /healthcheck return 200
	// before the first configuration. Until there is a configuration, requests get UNAVAILABLE.
	StartWithoutConfig bool
}

func (e *Envoy) validate() error {
	if e.MaxConnectionAge < 0 || e.MaxConnectionAgeGrace < 0 {
		return errors.New("envoy: max_connection_age and max_connection_age_grace: must be at least 0s, such as 24h")
	}
	for key, name := range e.Attributes {
		kind, rest, _ := strings.Cut(name, ":")
		if !slices.Contains(envoy.Attributes, name) && (rest == "" || !slices.Contains([]string{"attr", "header", "claim"}, kind)) {
			return fmt.Errorf("envoy.attributes: %s: must be one of %s, attr:NAME, header:NAME or claim:NAME, got %q", key, strings.Join(envoy.Attributes, ", "), name)
		}
	}
	if e.XDS != nil {
		return in("envoy.xds", e.XDS.Validate())
	}
	return nil
}

// envoyConfig is a source of limits in envoyproxy/ratelimit's format: a folder or an xDS server.
type envoyConfig interface {
	// Follow puts new configurations in force until ctx is done.
	Follow(ctx context.Context) error
	// Look checks now whether there is a new configuration.
	Look()
}

// openEnvoy makes the rate limit service. If the service has a configuration, openEnvoy reads it.
func (n *node) openEnvoy(answers *httplimit.Answerer) (err error) {
	c, e := &n.config, &n.config.Envoy
	n.envoy = envoy.New(n.limiter, envoy.Options{
		Configured: c.EnvoyConfig != "" || e.XDS != nil, Modes: envoy.Modes{Shadow: e.ShadowMode, Quota: e.QuotaMode, MergeDomains: e.MergeDomains}, Attributes: e.Attributes, Rules: answers,
		Answers: envoy.Answers{
			Headers: e.Headers == nil || *e.Headers, Limit: e.HeaderNames.Limit, Remaining: e.HeaderNames.Remaining, Reset: e.HeaderNames.Reset, DynamicMetadata: e.DynamicMetadata,
		},
		MaxInFlight: c.MaxInFlight, OnError: func(err error) { n.storeFailed(nil, err) }, Logger: n.log,
	})
	switch {
	case c.EnvoyConfig != "":
		n.envoyConfig, err = n.envoy.Open(c.EnvoyConfig, e.StartWithoutConfig)
		return in("--envoy-config", err)
	case e.XDS != nil:
		n.envoyConfig, err = n.envoy.Subscribe(*e.XDS)
		return in("envoy.xds", err)
	}
	return nil
}

// grpc returns the port that serves the rate limit service and ext_authz.
func (n *node) grpc(g *guard.Guard, gateways *forwardauth.Handler) *port {
	o := envoy.ServerOptions{
		Reflection: n.config.GRPCReflection, Guard: g, Gateways: gateways, GatewaysReady: n.ruled,
		MaxConnectionAge: n.config.Envoy.MaxConnectionAge, MaxConnectionAgeGrace: n.config.Envoy.MaxConnectionAgeGrace,
	}
	if n.config.OnlyEnvoy {
		o.Gateways = nil // ext_authz decides by rules, but this node has none
	}
	if n.tracer != nil {
		o.Trace = tracing.Continue
	}
	n.rls = envoy.NewServer(n.envoy, o)
	return &port{name: "grpc", addr: n.config.GRPC, server: n.rls}
}

// serving reports whether the node is healthy, for gRPC's health service. The answer is the same as that of /readyz,
// except that a node with an Envoy configuration needs no rules.
func (n *node) serving() bool {
	if n.envoyConfig != nil {
		return !n.connecting() && n.unconfigured() == ""
	}
	return n.ruled()
}

func (n *node) ruled() bool { return !n.connecting() && n.rules.Waiting() == "" }

// envoyRejected returns a text that says why the newest configuration was rejected. If the newest is in force, it
// returns "".
func (n *node) envoyRejected() string {
	if n.envoyConfig == nil {
		return ""
	}
	return n.envoy.Source().Rejected
}

// unconfigured returns a text that says why Envoy's rate limit service has no configuration yet. If it has one, it
// returns "".
func (n *node) unconfigured() string {
	if n.envoyConfig == nil {
		return ""
	}
	s := n.envoy.Source()
	switch {
	case !s.Since.IsZero():
		return ""
	case s.Rejected != "":
		return "the first configuration was rejected: " + s.Rejected
	case !s.Connected:
		return "the xDS server hasn't sent a configuration: " + s.Lost
	}
	return "the xDS server hasn't sent a configuration: it may know none for the node " + cmp.Or(n.config.Envoy.XDS.Node, envoy.DefaultNode)
}

func (n *node) envoyStatus(full bool) map[string]any {
	s := n.envoy.Source()
	out := map[string]any{"domains": s.Domains, "limits": s.Limits}
	if !s.Since.IsZero() {
		out["since"] = admin.Moment(s.Since)
	}
	if full {
		out["source"] = s.Name
	}
	if n.config.Envoy.XDS != nil {
		out["version"], out["connected"] = s.Version, s.Connected
		if full && !s.Connected {
			out["error"] = s.Lost
		}
	}
	return out
}

func (n *node) addEnvoy(mux *http.ServeMux, g *guard.Guard) {
	mux.HandleFunc("/json", func(w http.ResponseWriter, r *http.Request) {
		if _, refused := g.Admit(r); refused != nil {
			refused.Write(w)
			return
		}
		n.envoy.JSON(w, r)
	})
	mux.HandleFunc("GET /healthcheck", func(w http.ResponseWriter, _ *http.Request) {
		if n.draining.Load() || !n.config.Envoy.StartWithoutConfig && n.unconfigured() != "" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "OK")
	})
}
