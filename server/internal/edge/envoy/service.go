package envoy

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/inflight"
)

// edge is this package's name for observers.
const edge = "envoy"

// Bounds of a request. Envoy's own requests are far below them. Only values are its clients': one of any length must be
// decided, since Envoy lets a request pass that its service doesn't read.
const (
	MaxMessage     = 256 << 10 // bytes: Envoy lets its clients send 60 KiB of headers
	MaxDescriptors = 64
	MaxEntries     = 32   // of a descriptor
	MaxText        = 4096 // bytes of a domain or a key
)

// Options of a Service. The zero value is useful.
type Options struct {
	// Configured has requests decided by configurations, those of a [Folder], a [Feed] or [Service.SetConfig], not by the
	// limiter's rules. Until there is one, requests get UNAVAILABLE.
	Configured bool
	// Modes is how the limits of a configuration are meant.
	Modes Modes
	// Answers is what answers carry beside the decision.
	Answers Answers
	// Rules writes the headers and refusals of what the rules decide. Nil means those that are sent by default.
	Rules *httplimit.Answerer
	// Attributes maps keys of descriptors to what rules call them: api_key, user, org, tier, ip, method, path,
	// attr:NAME, header:NAME or claim:NAME. It goes before what keys stand for by themselves.
	Attributes map[string]string
	// MaxInFlight is how many requests are decided at a time; others wait as long as their time allows.
	// 0 means no bound.
	MaxInFlight int
	// OnError is told when the store couldn't be reached. The answer follows the failure modes all the same.
	OnError func(error)
	// Logger is told of configurations. Nil means slog.Default.
	Logger *slog.Logger
}

// Service is Envoy's rate limit service. Make one with [New]. It is safe for concurrent use.
type Service struct {
	rls.UnimplementedRateLimitServiceServer
	limiter   *weir.Limiter
	opts      Options
	gate      *inflight.Gate
	config    atomic.Pointer[Config] // nil without one
	source    source
	linked    atomic.Pointer[link] // of the configuration and the rules; nil before the first request
	linking   sync.Mutex           // held while another link is made
	overrides overrides
	calls     sync.Pool // of *call
}

var _ rls.RateLimitServiceServer = (*Service)(nil)

// New makes a service over a limiter.
func New(l *weir.Limiter, opts Options) *Service {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Rules == nil {
		var err error
		if opts.Rules, err = httplimit.NewAnswerer(httplimit.Answers{}); err != nil {
			panic(err) // the defaults are good
		}
	}
	s := &Service{limiter: l, opts: opts, gate: inflight.New(opts.MaxInFlight)}
	s.calls.New = func() any {
		c := new(call)
		c.judge = c.together
		return c
	}
	s.overrides.likeTheirs, s.overrides.modes = opts.Configured, opts.Modes
	return s
}

// SetConfig puts another configuration in force. Requests under way finish with the one that they began with.
func (s *Service) SetConfig(c *Config) {
	s.config.Store(c)
	s.relink()
}

// InFlight is how many requests are being decided.
func (s *Service) InFlight() int { return s.gate.In() }

// overloaded is what a request is told that finds no place. Envoy then does what its failure_mode_deny says, and
// counts an error, not a refusal: nobody has decided that the client sent too much.
var overloaded = status.Error(codes.Unavailable, "this node is overloaded: try again shortly, or ask another")

// unconfigured is what requests are told before the first configuration: nobody knows what it would have limited.
// envoyproxy/ratelimit answers with an error, too.
var unconfigured = status.Error(codes.Unavailable, "this node has no configuration yet: /readyz says why")

// undecided stands for requests that nothing has decided.
var undecided = weir.Request{Edge: edge}

// ShouldRateLimit decides a request.
func (s *Service) ShouldRateLimit(ctx context.Context, req *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	if err := check(req); err != nil {
		return nil, err
	}
	budget := withBudget(ctx)
	defer budget.end()
	if !s.gate.Enter(budget) {
		s.limiter.Tell(ctx, &undecided, weir.Decision{Reason: weir.ReasonOverloaded})
		return nil, overloaded
	}
	defer s.gate.Leave()
	c := s.calls.Get().(*call)
	defer s.release(c)
	if !s.opts.Configured {
		return s.byRules(budget, c, req)
	}
	k := s.link()
	if k.from == nil {
		s.limiter.Tell(ctx, &undecided, weir.Decision{Reason: weir.ReasonUnavailable})
		return nil, unconfigured
	}
	return s.byConfig(budget, c, k, req)
}

// release puts a call back without the client's values.
func (s *Service) release(c *call) {
	c.forget()
	s.calls.Put(c)
}

func (s *Service) failed(err error) {
	if err != nil && s.opts.OnError != nil {
		s.opts.OnError(err)
	}
}

// check refuses what can't be a request of Envoy's, and what is too large to be looked at.
func check(req *rls.RateLimitRequest) error {
	switch {
	case req.GetDomain() == "":
		return bad("domain: must not be empty")
	case len(req.GetDomain()) > MaxText:
		return bad("domain: has %d bytes: at most %d are read", len(req.GetDomain()), MaxText)
	case len(req.GetDescriptors()) == 0:
		return bad("descriptors: must not be empty")
	case len(req.GetDescriptors()) > MaxDescriptors:
		return bad("descriptors: there are %d: a request has at most %d", len(req.GetDescriptors()), MaxDescriptors)
	}
	for i, d := range req.GetDescriptors() {
		if n := len(d.GetEntries()); n > MaxEntries {
			return bad("descriptors[%d].entries: there are %d: a descriptor has at most %d", i, n, MaxEntries)
		}
		for j, e := range d.GetEntries() {
			switch {
			case e.GetKey() == "":
				return bad("descriptors[%d].entries[%d].key: must not be empty", i, j)
			case len(e.GetKey()) > MaxText:
				return bad("descriptors[%d].entries[%d].key: has %d bytes: at most %d are read", i, j, len(e.GetKey()), MaxText)
			}
		}
		if l := d.GetLimit(); l != nil {
			if _, ok := units[rls.RateLimitResponse_RateLimit_Unit(l.GetUnit())]; !ok {
				return bad("descriptors[%d].limit.unit: must be one of SECOND, MINUTE, HOUR, DAY, WEEK, MONTH and YEAR", i)
			}
		}
	}
	return nil
}

func bad(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// hits is how many hits a descriptor stands for; 0 is a peek.
func hits(req *rls.RateLimitRequest, d *ratelimit.RateLimitDescriptor) int64 {
	if h := d.GetHitsAddend(); h != nil {
		return int64(min(h.GetValue(), 2*weir.MaxTokens)) // more than any limit has
	}
	return int64(max(req.GetHitsAddend(), 1))
}
