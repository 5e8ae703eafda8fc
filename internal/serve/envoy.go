package serve

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/envoy"
	"github.com/weirhq/weir/internal/guard"
)

// Envoy is how Envoy's rate limit service answers.
type Envoy struct {
	// NoHeaders leaves out the headers that say how a limit of EnvoyConfig stands.
	NoHeaders bool
	// Names are those of the headers; "" means envoyproxy/ratelimit's.
	Names struct{ Limit, Remaining, Reset string }
	// DynamicMetadata adds the request and the limits' metadata to answers.
	DynamicMetadata bool
	// Modes is how the limits of EnvoyConfig are meant.
	Modes envoy.Modes
	// Attributes maps keys of descriptors to what rules call them.
	Attributes map[string]string
}

// validate reports attributes that rules don't know.
func (e *Envoy) validate() error {
	for key, name := range e.Attributes {
		kind, rest, _ := strings.Cut(name, ":")
		if !slices.Contains(envoy.Attributes, name) && (rest == "" || !slices.Contains([]string{"attr", "header", "claim"}, kind)) {
			return fmt.Errorf("envoy.attributes: %s: must be one of %s, attr:NAME, header:NAME or claim:NAME, got %q", key, strings.Join(envoy.Attributes, ", "), name)
		}
	}
	return nil
}

// openEnvoy makes the rate limit service, and reads its configuration if it has one.
func (n *node) openEnvoy(answers *httplimit.Answerer) (err error) {
	c := &n.config
	e := &c.Envoy
	n.envoy = envoy.New(n.limiter, envoy.Options{
		Configured: c.EnvoyConfig != "", Modes: e.Modes, Attributes: e.Attributes, Rules: answers,
		Answers:     envoy.Answers{Headers: !e.NoHeaders, Limit: e.Names.Limit, Remaining: e.Names.Remaining, Reset: e.Names.Reset, DynamicMetadata: e.DynamicMetadata},
		MaxInFlight: c.MaxInFlight, OnError: func(err error) { n.storeFailed(nil, err) }, Logger: n.log,
	})
	if c.EnvoyConfig != "" {
		if n.envoyConfig, err = n.envoy.Open(c.EnvoyConfig); err != nil {
			return fmt.Errorf("--envoy-config: %w", err)
		}
	}
	return nil
}

// grpc is the port of the rate limit service.
func (n *node) grpc(g *guard.Guard) *port {
	n.rls = envoy.NewServer(n.envoy, envoy.ServerOptions{Reflection: n.config.GRPCReflection, Guard: g})
	return &port{name: "grpc", addr: n.config.GRPC, server: n.rls}
}

// serving reports what gRPC health says: as /readyz, but limits of --envoy-config need no rules.
func (n *node) serving() bool {
	return !n.connecting() && (n.envoyConfig != nil || n.rules.Waiting() == "")
}

// addEnvoy adds what envoyproxy/ratelimit serves over HTTP.
func (n *node) addEnvoy(mux *http.ServeMux, g *guard.Guard) {
	mux.HandleFunc("/json", func(w http.ResponseWriter, r *http.Request) {
		if _, refused := g.Admit(r); refused != nil {
			refused.Write(w)
			return
		}
		n.envoy.JSON(w, r)
	})
	mux.HandleFunc("GET /healthcheck", func(w http.ResponseWriter, _ *http.Request) {
		if n.draining.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "OK")
	})
}
