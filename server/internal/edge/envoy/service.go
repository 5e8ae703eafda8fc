package envoy

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/inflight"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/edge"
)

const edgeName = "envoy" // for metrics and logs

// Limits on a request. Clients choose the values, so they may have any length. If the service failed to read a request,
// Envoy would let that request pass.
const (
	MaxMessage     = 256 << 10 // bytes: Envoy lets clients send 60 KiB of headers
	MaxDescriptors = 64
	MaxEntries     = 32   // entries of a descriptor
	MaxText        = 4096 // bytes of a domain or a key
)

// Options are the options of a Service. The zero value is useful.
type Options struct {
	// Configured means that configurations decide requests, and not the limiter's rules. Until there is a
	// configuration, requests get UNAVAILABLE.
	Configured bool
	Modes      Modes   // apply to all limits of a configuration
	Answers    Answers // what responses contain in addition to the decision
	// Rules writes headers and refusals for decisions by rules. If nil, the defaults apply.
	Rules *httplimit.Answerer
	// Attributes maps descriptor keys to the names that rules use: api_key, user, org, tier, ip,
	// method, path, attr:NAME, header:NAME or claim:NAME. It overrides the default meanings.
	Attributes map[string]string
	// MaxInFlight bounds how many requests are decided at once. Other requests wait as long as their deadline allows.
	// Zero means no bound.
	MaxInFlight int
	// OnError, if not nil, is called when the store couldn't be reached.
	OnError func(error)
	// Logger logs changes of the configuration. The default is slog.Default.
	Logger *slog.Logger
}

// Service is Envoy's rate limit service. Create one with [New]. It is safe for concurrent use.
type Service struct {
	rls.UnimplementedRateLimitServiceServer
	limiter   *weir.Limiter
	opts      Options
	gate      *inflight.Gate
	config    atomic.Pointer[Config] // nil if there is none
	sourceMu  sync.Mutex
	source    Source                       // guarded by sourceMu
	linked    atomic.Pointer[link]         // combines the configuration with the rules; nil before the first request
	linking   sync.Mutex                   // held while a link is made
	overrides edge.Cache[override, *limit] // limits that requests carry; cached, because creating a limit costs more than a decision
}

var _ rls.RateLimitServiceServer = (*Service)(nil)

// New creates a service that decides by a limiter.
func New(l *weir.Limiter, opts Options) *Service {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	opts.Rules = edge.DefaultAnswerer(opts.Rules)
	a := &opts.Answers
	a.Limit, a.Reset = cmp.Or(a.Limit, "RateLimit-Limit"), cmp.Or(a.Reset, "RateLimit-Reset")
	a.Remaining = cmp.Or(a.Remaining, "RateLimit-Remaining")
	return &Service{limiter: l, opts: opts, gate: inflight.New(opts.MaxInFlight)}
}

// SetConfig puts a configuration in force for new requests.
func (s *Service) SetConfig(c *Config) {
	s.config.Store(c)
	s.linking.Lock()
	defer s.linking.Unlock()
	s.makeLinkLocked()
}

// InFlight returns how many requests are being decided.
func (s *Service) InFlight() int { return s.gate.In() }

// overloaded is the error of requests that are shed. What Envoy does then depends on its setting failure_mode_deny.
var overloaded = status.Error(codes.Unavailable, edge.Overloaded)

// unconfigured is the error of requests while there is no configuration. envoyproxy/ratelimit returns the same code.
var unconfigured = status.Error(codes.Unavailable, "this node has no configuration yet: /readyz says why")

var undecided = weir.Request{Edge: edgeName}

// ShouldRateLimit decides a request.
func (s *Service) ShouldRateLimit(ctx context.Context, req *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	if err := check(req); err != nil {
		return nil, err
	}
	budget, end := withBudget(ctx)
	defer end()
	if !s.gate.Enter(budget) {
		private.Tell(s.limiter, ctx, &undecided, weir.Decision{Reason: weir.ReasonOverloaded})
		return nil, overloaded
	}
	defer s.gate.Leave()
	c := &evaluation{opts: &s.opts, in: req, out: &rls.RateLimitResponse{}, binding: -1}
	for range req.Descriptors {
		c.out.Statuses = append(c.out.Statuses, &rls.RateLimitResponse_DescriptorStatus{})
	}
	k := s.link()
	if s.opts.Configured && k.from == nil {
		private.Tell(s.limiter, ctx, &undecided, weir.Decision{Reason: weir.ReasonUnavailable})
		return nil, unconfigured
	}
	if err := s.match(c, k.config, req); err != nil {
		return nil, err
	}
	k.replace(c.hits)
	together := c.replace(s.opts.Modes) > 1 && s.opts.Configured
	s.charge(c, req, together)
	if s.opts.Configured {
		return s.byConfig(budget, c, together), nil
	}
	return s.byRules(budget, c), nil
}

func (s *Service) failed(err error) {
	if err != nil && s.opts.OnError != nil {
		s.opts.OnError(err)
	}
}

// check rejects requests that are too large, or that Envoy can't have sent.
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

func hits(req *rls.RateLimitRequest, d *ratelimit.RateLimitDescriptor) int64 {
	if h := d.GetHitsAddend(); h != nil {
		return int64(min(h.GetValue(), 2*counter.MaxTokens)) // clamped, but still more than any limit allows
	}
	return int64(max(req.GetHitsAddend(), 1))
}

// JSON serves POST /json, with requests and responses in protobuf's JSON. Its status is 200 for OK and 429 for
// OVER_LIMIT.
func (s *Service) JSON(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		jsonerror.New(http.StatusMethodNotAllowed, jsonerror.MethodNotAllowed, "use POST, with a RateLimitRequest in JSON as the body").Write(w)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxMessage))
	if err != nil {
		jsonerror.New(http.StatusRequestEntityTooLarge, jsonerror.BodyTooLarge, "too large, or broken off: at most %d KiB are read", MaxMessage>>10).Write(w)
		return
	}
	req := &rls.RateLimitRequest{}
	if err := protojson.Unmarshal(body, req); err != nil {
		jsonerror.Bad("must be a RateLimitRequest in JSON, such as {\"domain\": \"envoy\", \"descriptors\": [{\"entries\": [{\"key\": \"api_key\", \"value\": \"a\"}]}]}").Write(w)
		return
	}
	answer, err := s.ShouldRateLimit(r.Context(), req)
	if err != nil {
		e := jsonerror.Bad("%s", status.Convert(err).Message())
		if status.Code(err) != codes.InvalidArgument {
			e.Status, e.Code, e.Header = http.StatusServiceUnavailable, jsonerror.Overloaded, http.Header{"Retry-After": {"1"}}
		}
		if err == unconfigured {
			e.Code = jsonerror.LimiterUnavailable
		}
		e.Write(w)
		return
	}
	out, err := protojson.Marshal(answer)
	if err != nil { // metadata from an xDS server may contain an infinite number
		jsonerror.New(http.StatusInternalServerError, jsonerror.Internal, "JSON can't carry the limit's metadata: ask over gRPC").Write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if answer.GetOverallCode() == rls.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(out) // the client may have disconnected
}

// Source describes where a service gets its configuration, and the state of that configuration.
type Source struct {
	// Name is the path of the folder, or the address of the xDS server.
	Name string
	// Version is the version of the configuration in force, as the xDS server calls it.
	Version string
	// Since is when the configuration was put in force, or zero if there is none yet.
	Since time.Time
	// Domains and Limits are the numbers of domains and limits in the configuration.
	Domains, Limits int
	// Rejected says why the newest configuration isn't in force. It is "" if that configuration is in force.
	Rejected string
	// Rejections counts newer configurations that were invalid.
	Rejections uint64
	// Connected reports whether there is a stream from the xDS server. If there is none, Lost says why.
	Connected bool
	Lost      string
}

// Source returns the source and the state of the configuration.
func (s *Service) Source() Source {
	s.sourceMu.Lock()
	defer s.sourceMu.Unlock()
	return s.source
}

func (s *Service) note(change func(*Source)) {
	s.sourceMu.Lock()
	defer s.sourceMu.Unlock()
	change(&s.source)
}

// accept puts a configuration in force, and logs that with the attributes in more.
func (s *Service) accept(c *Config, from, version string, more ...any) {
	s.SetConfig(c)
	s.note(func(n *Source) {
		n.Name, n.Version, n.Since, n.Rejected = from, version, time.Now(), ""
		n.Domains, n.Limits = c.Domains(), c.limits
	})
	s.opts.Logger.Info("envoy configuration applied", append(more, "domains", c.Domains(), "limits", c.limits)...)
}

// reject records that a configuration is invalid. It logs the same reason only once in a row.
func (s *Service) reject(err error) {
	again := false
	s.note(func(n *Source) {
		again = n.Rejected == err.Error()
		n.Rejected = err.Error()
		n.Rejections++
	})
	if !again {
		s.opts.Logger.Error("envoy configuration rejected: the one in force stays", "error", err)
	}
}

const maxWarnings = 20

func (s *Service) warn(list rulefile.Problems) {
	for i, w := range list {
		if i == maxWarnings {
			s.opts.Logger.Warn("envoy configuration: there are more warnings", "more", len(list)-i)
			return
		}
		s.opts.Logger.Warn("envoy configuration", "warning", w.String())
	}
}
