package envoy

import (
	"fmt"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
)

// large returns a configuration with n descriptors in one domain.
func large(tb testing.TB, n int) *Config {
	tb.Helper()
	text := []byte("domain: d\ndescriptors:\n  - key: tenant\n    descriptors:\n")
	for i := range n {
		text = fmt.Appendf(text, "      - {key: route, value: r%d, rate_limit: {unit: hour, requests_per_unit: 10}}\n", i)
	}
	c, _, err := Parse([]File{{Name: "large.yaml", Text: text}}, Modes{})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func routed(n int) *rls.RateLimitRequest {
	return &rls.RateLimitRequest{Domain: "d", Descriptors: []*ratelimit.RateLimitDescriptor{{Entries: []*ratelimit.RateLimitDescriptor_Entry{
		{Key: "tenant", Value: "t"}, {Key: "route", Value: fmt.Sprint("r", n)},
	}}}}
}

// TestAllocsOfMatching checks that turning a request's descriptors into charges takes at most 5 allocations: among them
// the two lists and the subject.
func TestAllocsOfMatching(t *testing.T) {
	config, req := large(t, 1000), routed(777)
	var c evaluation
	s := &Service{}
	found := testing.AllocsPerRun(100, func() {
		c = evaluation{}
		if err := s.match(&c, config, req); err != nil {
			t.Fatal(err)
		}
		s.charge(&c, req, c.replace(Modes{}) > 1)
	})
	if found > 5 || len(c.charges) != 1 || c.charges[0].Policy.Rule != "d.tenant.route" {
		t.Errorf("%v allocations, charges %v", found, c.charges)
	}
}

// BenchmarkMatch shows that the time doesn't depend on the number of descriptors.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			config, req := large(b, n), routed(n-1)
			var c evaluation
			s := &Service{}
			for b.Loop() {
				c = evaluation{}
				if err := s.match(&c, config, req); err != nil {
					b.Fatal(err)
				}
				s.charge(&c, req, c.replace(Modes{}) > 1)
			}
		})
	}
}

// BenchmarkShouldRateLimit measures a request without gRPC, and the encoding of its response.
func BenchmarkShouldRateLimit(b *testing.B) {
	s := New(weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{}), Options{Configured: true, MaxInFlight: 100})
	config, _, err := Parse([]File{{Name: "a.yaml", Text: []byte("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: hour, requests_per_unit: 4000000000}\n")}}, Modes{})
	if err != nil {
		b.Fatal(err)
	}
	s.SetConfig(config)
	req := &rls.RateLimitRequest{Domain: "d", Descriptors: []*ratelimit.RateLimitDescriptor{{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}}}}
	b.ReportAllocs()
	for b.Loop() {
		got, err := s.ShouldRateLimit(b.Context(), req)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := proto.Marshal(got); err != nil {
			b.Fatal(err)
		}
	}
}

// TestAllocsOfLinkedRules checks that finding the rule for a descriptor takes no more allocations.
func TestAllocsOfLinkedRules(t *testing.T) {
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "ruled", Descriptor: []string{"d", "tenant", "route=r777"}}}})
	if err != nil {
		t.Fatal(err)
	}
	s := New(weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{}), Options{Configured: true})
	s.SetConfig(large(t, 1000))
	req := routed(777)
	var c evaluation
	found := testing.AllocsPerRun(100, func() {
		c = evaluation{}
		k := s.link()
		if err := s.match(&c, k.config, req); err != nil {
			t.Fatal(err)
		}
		k.replace(c.hits)
		s.charge(&c, req, c.replace(Modes{}) > 1)
	})
	if found > 5 || len(c.charges) != 1 || c.charges[0].Policy.Rule != "ruled" {
		t.Errorf("%v allocations, charges %v", found, c.charges)
	}
}

// BenchmarkRelink measures how long the first request waits after many rules have changed.
func BenchmarkRelink(b *testing.B) {
	var doc weir.Rules
	for i := range 10_000 {
		doc.Rules = append(doc.Rules, weir.Rule{ID: fmt.Sprint("r", i), Descriptor: []string{"d", "tenant", fmt.Sprint("route=r", i)}, Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: int64(i%50 + 1), Window: time.Second}}})
	}
	rules, err := weir.Compile(doc)
	if err != nil {
		b.Fatal(err)
	}
	s := New(weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{}), Options{})
	for b.Loop() {
		s.linked.Store(nil)
		s.link()
	}
}
