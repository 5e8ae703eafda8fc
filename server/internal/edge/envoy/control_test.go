package envoy_test

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

const configType = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// control is an xDS server that behaves like the snapshot cache of go-control-plane, which gateways use. It answers a
// request at once if the request's version isn't the newest, and otherwise when there is a newer one.
type control struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	heard   chan *discovery.DiscoveryRequest
	headers chan metadata.MD

	mu      sync.Mutex
	newest  *discovery.DiscoveryResponse // guarded by mu, like the fields below
	changed chan struct{}                // closed when newest changes
	nonce   int
}

func newControl() *control {
	return &control{heard: make(chan *discovery.DiscoveryRequest, 1000), headers: make(chan metadata.MD, 100), changed: make(chan struct{})}
}

// set publishes a newer configuration.
func (c *control) set(version string, resources ...*anypb.Any) {
	c.send(&discovery.DiscoveryResponse{VersionInfo: version, TypeUrl: configType, Resources: resources})
}

func (c *control) send(r *discovery.DiscoveryResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = r
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *control) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	c.headers <- md
	asks := make(chan *discovery.DiscoveryRequest)
	go func() {
		defer close(asks)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case asks <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	var open *discovery.DiscoveryRequest
	for {
		c.mu.Lock()
		newest, changed := c.newest, c.changed
		c.nonce++
		nonce := c.nonce
		c.mu.Unlock()
		if open != nil && newest != nil && open.VersionInfo != newest.VersionInfo {
			open = nil
			out := proto.CloneOf(newest)
			out.Nonce = strconv.Itoa(nonce)
			if err := stream.Send(out); err != nil {
				return err
			}
			continue
		}
		select {
		case r, ok := <-asks:
			if !ok {
				return nil
			}
			c.heard <- r
			open = r
		case <-changed:
		}
	}
}

// next returns the next request of a client.
func (c *control) next(t *testing.T) *discovery.DiscoveryRequest {
	t.Helper()
	select {
	case r := <-c.heard:
		return r
	case <-time.After(30 * time.Second):
		t.Fatal("the client says nothing")
		return nil
	}
}

// listen serves the xDS server at an address until stop is called.
func (c *control) listen(t *testing.T, addr string, options ...grpc.ServerOption) (at string, stop func()) {
	t.Helper()
	return serve(t, c, addr, options...)
}

func serve(t *testing.T, ads discovery.AggregatedDiscoveryServiceServer, addr string, options ...grpc.ServerOption) (at string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(server, ads)
	served := make(chan struct{})
	go func() {
		_ = server.Serve(l)
		close(served)
	}()
	stop = sync.OnceFunc(func() {
		server.Stop()
		<-served
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// follow returns a service that follows an xDS server until the test ends, and checks that no goroutines are left.
func follow(t *testing.T, x envoy.XDS, opts envoy.Options) (*envoy.Service, *envoy.Feed) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	opts.Configured = true
	s := envoy.New(weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{}), opts)
	x.Retry, x.MaxRetry = 10*time.Millisecond, 50*time.Millisecond
	f, err := s.Subscribe(x)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Follow(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, f
}

// until waits for a condition on the source.
func until(t *testing.T, s *envoy.Service, what string, so func(envoy.Source) bool) envoy.Source {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if now := s.Source(); so(now) {
			return now
		} else if time.Now().After(deadline) {
			t.Fatalf("%s: %+v", what, now)
		}
	}
}

// described is a descriptor in the format of envoyproxy/ratelimit's files.
type described struct {
	Key, Value string
	RateLimit  *struct {
		Unit            string
		RequestsPerUnit uint32 `yaml:"requests_per_unit"`
		Unlimited       bool
		Name            string
		Replaces        []struct{ Name string }
	} `yaml:"rate_limit"`
	Descriptors    []described
	ShadowMode     bool `yaml:"shadow_mode"`
	QuotaMode      bool `yaml:"quota_mode"`
	DetailedMetric bool `yaml:"detailed_metric"`
	Metadata       map[string]any
	// Keys that the messages lack.
	ValueToMetric  bool `yaml:"value_to_metric"`
	ShareThreshold bool `yaml:"share_threshold"`
}

// message returns the descriptor as sent by a server whose messages are newer than the module used here.
func (d *described) message(t *testing.T) *conf.RateLimitDescriptor {
	t.Helper()
	out := &conf.RateLimitDescriptor{Key: d.Key, Value: d.Value, ShadowMode: d.ShadowMode, DetailedMetric: d.DetailedMetric}
	if l := d.RateLimit; l != nil {
		unit, known := rls.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(l.Unit)]
		if !known {
			unit = 99
		}
		out.RateLimit = &conf.RateLimitPolicy{Unit: conf.RateLimitUnit(unit), RequestsPerUnit: l.RequestsPerUnit, Unlimited: l.Unlimited, Name: l.Name}
		for _, o := range l.Replaces {
			out.RateLimit.Replaces = append(out.RateLimit.Replaces, &conf.RateLimitReplace{Name: o.Name})
		}
	}
	for i := range d.Descriptors {
		out.Descriptors = append(out.Descriptors, d.Descriptors[i].message(t))
	}
	var newer []byte
	if d.QuotaMode {
		newer = protowire.AppendVarint(protowire.AppendTag(newer, 7, protowire.VarintType), 1)
	}
	if d.Metadata != nil {
		meta, err := structpb.NewStruct(d.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := proto.Marshal(meta)
		if err != nil {
			t.Fatal(err)
		}
		newer = protowire.AppendBytes(protowire.AppendTag(newer, 8, protowire.BytesType), raw)
	}
	out.ProtoReflect().SetUnknown(newer)
	return out
}

// resource returns a configuration as an xDS server sends it, named after its domain.
func resource(t *testing.T, text string) *anypb.Any {
	t.Helper()
	var file struct {
		Domain      string
		Descriptors []described
	}
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	out := &conf.RateLimitConfig{Name: file.Domain, Domain: file.Domain}
	for i := range file.Descriptors {
		out.Descriptors = append(out.Descriptors, file.Descriptors[i].message(t))
	}
	return packed(t, out)
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	out, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
