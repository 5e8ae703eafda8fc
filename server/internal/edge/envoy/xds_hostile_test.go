package envoy_test

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weirhq/weir/server/internal/edge/envoy"
)

type adsStream = discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer

// hostile is an xDS server that handles streams as a test wants.
type hostile struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	stream func(adsStream) error
}

func (h *hostile) StreamAggregatedResources(s adsStream) error { return h.stream(s) }

// many returns a configuration of n descriptors.
func many(t *testing.T, n int) *anypb.Any {
	t.Helper()
	out := &conf.RateLimitConfig{Name: "many", Domain: "many"}
	limit := &conf.RateLimitPolicy{Unit: conf.RateLimitUnit_HOUR, RequestsPerUnit: 5}
	for i := range n {
		out.Descriptors = append(out.Descriptors, &conf.RateLimitDescriptor{Key: "user", Value: fmt.Sprint("user-", i), RateLimit: limit})
	}
	return packed(t, out)
}

// TestXDSHugeConfigurations checks that a large configuration is applied within bounded memory, and that one larger
// than 4 MiB is rejected before it is read, while the last good one stays in force.
func TestXDSHugeConfigurations(t *testing.T) {
	const n = 100_000
	c := newControl()
	c.set("1", many(t, n))
	addr, _ := c.listen(t, "127.0.0.1:0")
	before := heap()
	s, _ := follow(t, envoy.XDS{Server: addr}, envoy.Options{})
	until(t, s, "no configuration", func(now envoy.Source) bool { return now.Limits == n })
	if more := heap() - before; more > 256<<20 {
		t.Errorf("%d descriptors take %d MiB", n, more>>20)
	} else {
		t.Logf("%d descriptors take %d MiB", n, more>>20)
	}
	c.set("2", &anypb.Any{TypeUrl: configType, Value: make([]byte, 5<<20)})
	now := until(t, s, "it isn't rejected", func(now envoy.Source) bool { return now.Rejections > 0 })
	if now.Version != "1" || now.Rejected != "the configuration has more than 4194304 bytes" {
		t.Errorf("%+v", now)
	}
	if got := answered(t, s, "many", "user=user-99999"); got != "OK OK:5/HOUR-4" {
		t.Error(got)
	}
	c.set("3", many(t, 1))
	until(t, s, "it doesn't recover", func(now envoy.Source) bool { return now.Version == "3" && now.Rejected == "" })
}

// TestXDSEndlessUpdates checks that a server that never stops sending is slowed down to one configuration per 100 ms.
func TestXDSEndlessUpdates(t *testing.T) {
	big := many(t, 3000) // about 80 KB
	var sent atomic.Int64
	addr, _ := serve(t, &hostile{stream: func(s adsStream) error {
		for i := 1; ; i++ {
			if err := s.Send(&discovery.DiscoveryResponse{VersionInfo: fmt.Sprint(i), Nonce: "same", TypeUrl: configType, Resources: []*anypb.Any{big}}); err != nil {
				return err
			}
			sent.Store(int64(i))
		}
	}}, "127.0.0.1:0")
	before, began := heap(), time.Now()
	s, _ := follow(t, envoy.XDS{Server: addr}, envoy.Options{})
	applied, n := int64(0), int64(0)
	until(t, s, "few are applied", func(envoy.Source) bool {
		n = sent.Load() // read before Version, so that n isn't too high
		applied, _ = strconv.ParseInt(s.Source().Version, 10, 64)
		return applied >= 5
	})
	if took := time.Since(began); took < time.Duration(applied-1)*100*time.Millisecond {
		t.Errorf("%d were applied in %s", applied, took)
	}
	if n > applied+100 {
		t.Errorf("the server has sent %d configurations: nothing keeps it waiting", n)
	}
	if more := heap() - before; more > 64<<20 {
		t.Errorf("they take %d MiB", more>>20)
	}
	if got := answered(t, s, "many", "user=user-1"); got != "OK OK:5/HOUR-4" {
		t.Error(got)
	}
}

// TestXDSHostileAnswers checks that invalid configurations are rejected, each with a reason, and that the last good one
// stays in force.
func TestXDSHostileAnswers(t *testing.T) {
	good := resource(t, shared)
	answer := func(version string, list ...*anypb.Any) *discovery.DiscoveryResponse {
		return &discovery.DiscoveryResponse{VersionInfo: version, Nonce: "same", TypeUrl: configType, Resources: list}
	}
	foreign := answer("2", good)
	foreign.TypeUrl = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	steps := []struct {
		send *discovery.DiscoveryResponse
		want string // the start of the error
	}{
		{answer("1", good), ""},
		{answer("2", &anypb.Any{TypeUrl: "type.googleapis.com/google.protobuf.Empty"}), `resources[0]: is a "type.googleapis.com/google.protobuf.Empty": it must be a ` + configType},
		{answer("2", good, &anypb.Any{TypeUrl: configType, Value: []byte{0xff, 0xff}}), "resources[1]: can't be read: "},
		{answer("2", make([]*anypb.Any, 10_001)...), "there are 10001 resources: a configuration has at most 10000"},
		{foreign, `the answer is of the type "type.googleapis.com/envoy.config.cluster.v3.Cluster": ` + configType + " was asked for"},
		{answer("7", good), ""},
	}
	said := make(chan *discovery.DiscoveryRequest, 100)
	addr, _ := serve(t, &hostile{stream: func(s adsStream) error {
		for _, step := range steps {
			r, err := s.Recv()
			if err != nil {
				return err
			}
			said <- r
			if err := s.Send(step.send); err != nil {
				return err
			}
		}
		for {
			r, err := s.Recv()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			said <- r
		}
	}}, "127.0.0.1:0")
	began, version := time.Now(), ""
	s, _ := follow(t, envoy.XDS{Server: addr}, envoy.Options{})
	<-said
	for _, step := range steps {
		r := <-said
		if step.want == "" {
			version = step.send.VersionInfo
		}
		if r.ResponseNonce != "same" || r.VersionInfo != version || r.TypeUrl != configType || !strings.HasPrefix(r.GetErrorDetail().GetMessage(), step.want) || (r.ErrorDetail == nil) != (step.want == "") {
			t.Errorf("%v, want version %s and %q", r, version, step.want)
		}
	}
	if now := s.Source(); now.Version != "7" || now.Rejections != 4 {
		t.Errorf("%+v", now)
	}
	if took := time.Since(began); took < 1400*time.Millisecond { // 0.2, 0.4 and 0.8 s
		t.Errorf("a server that sends a rejected version again and again is listened to without a pause: %s", took)
	}
}

// TestHostileResources checks that hostile resources take little memory and get short errors.
func TestHostileResources(t *testing.T) {
	nested := &conf.RateLimitDescriptor{Key: "k"}
	for range 5000 {
		nested = &conf.RateLimitDescriptor{Key: "k", Descriptors: []*conf.RateLimitDescriptor{nested}}
	}
	within := func(d *conf.RateLimitDescriptor) *anypb.Any {
		return packed(t, &conf.RateLimitConfig{Domain: "d", Name: strings.Repeat("n", 1<<20), Descriptors: []*conf.RateLimitDescriptor{d}})
	}
	meta := []byte{}
	for range 2000 { // a map in a map in a map
		value := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), meta)
		entry := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte("k"))
		entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), value)
		meta = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry)
	}
	dark := &conf.RateLimitDescriptor{Key: "k", RateLimit: &conf.RateLimitPolicy{Unit: conf.RateLimitUnit_DAY}}
	dark.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 8, protowire.BytesType), meta))
	wild := &conf.RateLimitConfig{Domain: "d"}
	for i := range 20_000 {
		wild.Descriptors = append(wild.Descriptors, &conf.RateLimitDescriptor{Key: "k", Value: fmt.Sprintf("%d*", i)})
	}
	wild.Descriptors = append(wild.Descriptors, wild.Descriptors[0])
	for name, c := range map[string]struct {
		list []*anypb.Any
		want string
	}{
		"deep":               {[]*anypb.Any{within(nested)}, "descriptors are nested more than 32 deep"},
		"deep metadata":      {[]*anypb.Any{within(dark)}, "descriptors[0].metadata: can't be read: "},
		"nothing, often":     {make([]*anypb.Any, 10_000), `resources[19]: is a "": it must be a ` + configType + "\nand 80 more"},
		"empty, often":       {[]*anypb.Any{{TypeUrl: configType, Value: []byte("\x12\x01d" + strings.Repeat("\x1a\x00", 1<<17))}}, "resources[0]: descriptors[0].key: is missing"},
		"wildcards, a twin":  {[]*anypb.Any{packed(t, wild)}, `the descriptor "d.k_0*" appears twice`},
		"text of no meaning": {[]*anypb.Any{{TypeUrl: configType, Value: []byte("\x12\x02\xff\xfe")}}, "invalid UTF-8"},
	} {
		_, _, err := envoy.ParseResources(c.list, envoy.Modes{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.500v, want %s", name, err, c.want)
		} else if len(err.Error()) > 32<<10 {
			t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
		}
	}
}

// TestXDSNewerFields checks that a newer server's unknown fields cause a warning, and that its limits still apply.
func TestXDSNewerFields(t *testing.T) {
	d := &conf.RateLimitDescriptor{Key: "k", RateLimit: &conf.RateLimitPolicy{Unit: conf.RateLimitUnit_DAY, RequestsPerUnit: 1}}
	d.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 1))
	_, warnings, err := envoy.ParseResources([]*anypb.Any{packed(t, &conf.RateLimitConfig{Name: "n", Domain: "d", Descriptors: []*conf.RateLimitDescriptor{d}})}, envoy.Modes{})
	if err != nil || len(warnings) != 1 || warnings[0].String() != "n: descriptors[0]: this release doesn't know field 9, and ignores it" {
		t.Error(err, warnings)
	}
}

// FuzzResources checks that no resource crashes the parser.
func FuzzResources(f *testing.F) {
	f.Add([]byte("\x0a\x01n\x12\x01d\x1a\x08\x0a\x01k\x38\x01\x42\x01\x0a"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, _, err := envoy.ParseResources([]*anypb.Any{{TypeUrl: configType, Value: raw}}, envoy.Modes{})
		if (c == nil) != (err != nil) {
			t.Error(c, err)
		}
	})
}
