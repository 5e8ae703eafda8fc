package envoy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/node/redislimit"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

func compiled(t *testing.T, text string) *weir.RuleSet {
	t.Helper()
	f, err := rulefile.Parse("rules.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f.Set
}

// ruledService returns a service with a configuration, and its limiter, which has no rules yet.
func ruledService(t *testing.T, opts envoy.Options, files ...envoy.File) (*weir.Limiter, *envoy.Service) {
	t.Helper()
	opts.Configured = true
	l := weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{})
	s := envoy.New(l, opts)
	config, _, err := envoy.Parse(files, opts.Modes)
	if err != nil {
		t.Fatal(err)
	}
	s.SetConfig(config)
	return l, s
}

// asked is a table of requests and their expected responses, in order.
type asked []struct {
	after     time.Duration
	ask, want string
}

func (list asked) run(t *testing.T, s *envoy.Service, domain string) {
	t.Helper()
	for i, c := range list {
		time.Sleep(c.after)
		got, err := s.ShouldRateLimit(t.Context(), request(domain, strings.Split(c.ask, ";")...))
		if err != nil {
			t.Fatal(err)
		}
		if brief(got) != c.want {
			t.Errorf("%d: %s: got %s, want %s", i, c.ask, brief(got), c.want)
		}
	}
}

const edge = `
domain: edge
descriptors:
  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 60}}
  - {key: tenant, value: acme, rate_limit: {unit: minute, requests_per_unit: 60, name: acme}}
  - {key: tenant, value: "ab*", rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: closed, rate_limit: {unit: day, requests_per_unit: 0}}
  - key: a
    descriptors: [{key: b, rate_limit: {unit: hour, requests_per_unit: 3}}]
`

// TestRuleForDescriptor checks that rules give descriptors of a configuration other algorithms.
func TestRuleForDescriptor(t *testing.T) {
	const rules = `
rules:
  - {id: bursty, match: {descriptor: [edge, tenant=acme]}, burst: 3}
  - {id: log, match: {descriptor: [edge, "tenant=ab*"]}, algorithm: sliding_window_log}
  - {id: tokens, match: {descriptor: [edge, user]}, past_limit: book}
  - {id: own, match: {descriptor: [edge, closed]}, limit: 2/5m}
  - {id: watched, match: {descriptor: [edge, a, b]}, shadow: true}
`
	synctest.Test(t, func(t *testing.T) {
		l, s := ruledService(t, envoy.Options{}, envoy.File{Name: "edge.yaml", Text: []byte(edge)})
		list := asked{
			{0, "tenant=acme", "OK OK:60/MINUTE-59"},
			{0, "tenant=other", "OK OK:60/MINUTE-59"},
		}
		list.run(t, s, "edge")
		l.SetRules(compiled(t, rules))
		asked{
			{0, "tenant=acme", "OK OK:60/MINUTE-2"}, // a new algorithm starts with a new counter
			{0, "hits=2 tenant=acme", "OK OK:60/MINUTE-0"},
			{0, "tenant=acme", "OVER_LIMIT OVER_LIMIT:60/MINUTE-0"},
			{0, "hits=0 tenant=acme", "OVER_LIMIT OVER_LIMIT:60/MINUTE-0"},
			{time.Second, "tenant=acme", "OK OK:60/MINUTE-0"}, // the refusals took nothing
			{0, "tenant=other", "OK OK:60/MINUTE-58"},         // the other tenants still have a fixed window
			{0, "tenant=abc", "OK OK:2/MINUTE-1"},
			{0, "tenant=abd", "OK OK:2/MINUTE-1"}, // each value has a counter of its own
			{50 * time.Second, "tenant=abc", "OK OK:2/MINUTE-0"},
			{9 * time.Second, "tenant=abc", "OVER_LIMIT OVER_LIMIT:2/MINUTE-0"},
			{time.Second, "tenant=abc", "OK OK:2/MINUTE-0"}, // the first of the two entries has left the log
			{0, "hits=0 user=ann", "OK OK:100/DAY-100"},
			{0, "hits=150 user=ann", "OK OK:100/DAY-0"},
			{0, "hits=0 user=ann", "OVER_LIMIT OVER_LIMIT:100/DAY-0"},
			{0, "hits=60 back user=ann", "OK OK"},
			{0, "hits=0 user=ann", "OK OK:100/DAY-10"},
			{0, "closed=x", "OK OK:2/MINUTE-1"}, // per 5 minutes, which is no unit of the protocol
			{0, "hits=3 a=1 b=2", "OK OK:3/HOUR-0"},
			{0, "a=1 b=2", "OK OK:3/HOUR-0"}, // in shadow mode
			{0, "free=x", "OK OK"},
			{0, "tenant=acme; tenant=acme2; user=bob", "OK OK:60/MINUTE-2 OK:60/MINUTE-59 OK:100/DAY-99"},
		}.run(t, s, "edge")
		got, err := s.ShouldRateLimit(t.Context(), request("edge", "tenant=acme", "closed=x"))
		if err != nil {
			t.Fatal(err)
		}
		if got.Statuses[0].CurrentLimit.Name != "acme" || got.Statuses[1].CurrentLimit.Name != "own" || got.Statuses[1].CurrentLimit.UnitMultiplier.GetValue() != 5 {
			t.Error(got.Statuses) // a limit keeps its name, through which others may replace it
		}
		if got, err = s.ShouldRateLimit(t.Context(), request("edge", "hits=3 tenant=acme")); err != nil {
			t.Fatal(err)
		}
		if h := header(got, "Retry-After"); got.OverallCode != rls.RateLimitResponse_OVER_LIMIT || h != "2" || got.Statuses[0].DurationUntilReset.GetSeconds() != 2 {
			t.Errorf("retry after %q, %v", h, got)
		}
	})
}

// TestDescriptorsBesideOneWithARule checks that descriptors beside one with a rule still get the responses of
// envoyproxy/ratelimit.
func TestDescriptorsBesideOneWithARule(t *testing.T) {
	l, s := ruledService(t, envoy.Options{Answers: envoy.Answers{Headers: true}}, readFiles(t, "testdata/recorded/config/*.yaml")...)
	l.SetRules(compiled(t, "rules:\n  - {id: noted, match: {descriptor: [shop, noted]}, algorithm: token_bucket, burst: 2}\n"))
	text, err := os.ReadFile("testdata/recorded/answers.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	ruled, others := 0, 0
	for scan := bufio.NewScanner(bytes.NewReader(text)); scan.Scan(); {
		var both struct{ Request, Response json.RawMessage }
		if err := json.Unmarshal(scan.Bytes(), &both); err != nil {
			t.Fatal(err)
		}
		req, want := &rls.RateLimitRequest{}, &rls.RateLimitResponse{}
		if err := protojson.Unmarshal(both.Request, req); err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal(both.Response, want); err != nil {
			t.Fatal(err)
		}
		got, err := s.ShouldRateLimit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if req.Domain == "shop" && req.Descriptors[0].Entries[0].Key == "noted" && req.Descriptors[0].Limit == nil {
			ruled++
			if got.Statuses[0].CurrentLimit.GetName() != "noted" || got.Statuses[0].LimitRemaining > 2 {
				t.Fatal(got)
			}
			continue
		}
		others++
		if timeless(t, got); !proto.Equal(got, want) {
			t.Fatalf("%s\ngot  %s\nwant %s", both.Request, protojson.Format(got), protojson.Format(want))
		}
	}
	if ruled < 70 || others < 600 {
		t.Errorf("%d and %d requests", ruled, others)
	}
}

// TestRulesAloneForDescriptors checks that without a configuration, rules with descriptors decide on these, and the
// other rules on everything else.
func TestRulesAloneForDescriptors(t *testing.T) {
	s := byRules(t, `
rules:
  - {id: address, by: [ip], algorithm: fixed_window, limit: 5/day}
  - {id: acme, match: {descriptor: [edge, tenant=acme]}, limit: 1/hour}
  - {id: ab, match: {descriptor: [edge, "tenant=a*b"]}, limit: 2/hour}
  - {id: tenant, match: {descriptor: [edge, tenant]}, limit: 3/hour, past_limit: count}
  - {id: route, match: {descriptor: [edge, tenant, route]}, limit: 4/hour}
  - {id: nothing, match: {descriptor: [edge, other]}}
`, envoy.Options{Logger: slog.New(slog.DiscardHandler)})
	asked{
		{0, "tenant=acme", "OK OK:1/HOUR-0"},
		{0, "tenant=acme", "OVER_LIMIT OVER_LIMIT:1/HOUR-0"},
		{0, "tenant=a-b", "OK OK:2/HOUR-1"},
		{0, "tenant=x", "OK OK:3/HOUR-2"},
		{0, "hits=3 tenant=x", "OVER_LIMIT OVER_LIMIT:3/HOUR-0"},
		{0, "tenant=x", "OVER_LIMIT OVER_LIMIT:3/HOUR-0"}, // the refusal counted
		{0, "tenant=x route=r", "OK OK:4/HOUR-3"},
		{0, "tenant=acme route=r", "OK OK:5/DAY-4"}, // matching doesn't backtrack from acme, so the other rules decide
		{0, "remote_address=203.0.113.7", "OK OK:5/DAY-4"},
		{0, "remote_address=203.0.113.7; tenant=y", "OK OK:5/DAY-3 OK:3/HOUR-2"},
		{0, "remote_address=203.0.113.7; tenant=acme", "OVER_LIMIT OK:5/DAY-3 OVER_LIMIT:1/HOUR-0"},
		{0, "hits=9 remote_address=203.0.113.7; tenant=y", "OVER_LIMIT OVER_LIMIT:5/DAY-0 OK:3/HOUR-2"},
		{0, "remote_address=203.0.113.7; tenant=y", "OK OK:5/DAY-2 OK:3/HOUR-1"}, // the refused request took nothing
	}.run(t, s, "edge")
	asked{{0, "tenant=acme", "OK OK:5/DAY-3"}}.run(t, s, "elsewhere") // another domain without an address, so all share one counter
}

// TestRulesForUnknownDescriptors checks that rules for descriptors that the configuration lacks are logged, without values,
// which may be API keys.
func TestRulesForUnknownDescriptors(t *testing.T) {
	var log bytes.Buffer
	l, s := ruledService(t, envoy.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, envoy.File{Name: "edge.yaml", Text: []byte(edge)})
	l.SetRules(compiled(t, `
rules:
  - {id: gone, match: {descriptor: [edge, tenant=sk_secret]}, burst: 3}
  - {id: inner, match: {descriptor: [edge, a]}, burst: 3}
  - {id: free, match: {descriptor: [edge, free]}, burst: 3}
  - {id: large, match: {descriptor: [edge, user]}, algorithm: leaky_bucket, limit: 1/365d, burst: 9}
`))
	asked{{0, "tenant=acme", "OK OK:60/MINUTE-59"}, {0, "tenant=x", "OK OK:60/MINUTE-59"}}.run(t, s, "edge")
	for _, want := range []string{
		`a rule for a descriptor does nothing: the configuration has no rate_limit for this descriptor: name one as it is written there" rule=gone domain=edge`,
		"rule=inner", "no number to take for it: give the rule a limit\" rule=free",
	} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("%q isn't once in %s", want, &log)
		}
	}
	if strings.Contains(log.String(), "sk_secret") || strings.Contains(log.String(), "rule=large") {
		t.Error(&log)
	}
}

// TestRulesComeAndGo adds and removes a rule during requests: each request sees the rule or doesn't. A fixed window of
// the same length keeps its counter.
func TestRulesComeAndGo(t *testing.T) {
	config := envoy.File{Name: "c.yaml", Text: []byte("domain: edge\ndescriptors:\n  - {key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}\n")}
	l, s := ruledService(t, envoy.Options{}, config)
	parsed, _, err := envoy.Parse([]envoy.File{config}, envoy.Modes{})
	if err != nil {
		t.Fatal(err)
	}
	with := compiled(t, "rules:\n  - {id: ruled, match: {descriptor: [edge, k]}, on_store_failure: refuse, limit: 2000000/365d}\n")
	without := compiled(t, "rules:\n  - {id: other, limit: 1/minute}\n")
	var wg sync.WaitGroup
	const askers, each = 4, 500
	for range askers {
		wg.Go(func() {
			for range each {
				got, err := s.ShouldRateLimit(t.Context(), request("edge", "k=v"))
				if err != nil || got.OverallCode != rls.RateLimitResponse_OK {
					t.Error(got, err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 200 {
			l.SetRules([]*weir.RuleSet{with, without}[i%2])
			if i%10 == 0 {
				s.SetConfig(parsed)
			}
		}
	})
	wg.Wait()
	for _, c := range []struct {
		rules *weir.RuleSet
		want  string
	}{{with, "OK OK:2000000/YEAR-1997999"}, {without, "OK OK:1000000/YEAR-997998"}} {
		l.SetRules(c.rules)
		got, err := s.ShouldRateLimit(t.Context(), request("edge", "k=v"))
		if err != nil || brief(got) != c.want {
			t.Errorf("got %s, want %s, %v", brief(got), c.want, err)
		}
	}
}

// TestFailureModeOfADescriptor checks that a descriptor's rule decides what happens if Redis doesn't answer.
// Descriptors without a rule allow requests, like limits of the configuration.
func TestFailureModeOfADescriptor(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	shared, err := redislimit.New(redisstore.Options{URL: "redis://" + server.Addr, Timeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)},
		memstore.New(memstore.Options{}), weir.Options{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close(time.Second)
	shared.Await(10 * time.Second)
	shared.Limiter.SetRules(compiled(t, `
rules:
  - {id: login, match: {descriptor: [edge, tenant=acme]}, on_store_failure: refuse, strict: true}
  - {id: near, match: {descriptor: [edge, a, b]}, on_store_failure: local}
`))
	s := envoy.New(shared.Limiter, envoy.Options{Configured: true})
	config, _, err := envoy.Parse([]envoy.File{{Name: "edge.yaml", Text: []byte(edge)}}, envoy.Modes{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetConfig(config)
	a := patient(func(ctx context.Context, req *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		return s.ShouldRateLimit(ctx, req)
	})
	if got, err := a(t.Context(), request("edge", "tenant=acme", "tenant=x")); err != nil || brief(got) != "OK OK:60/MINUTE-59 OK:60/MINUTE-59" {
		t.Fatal(brief(got), err)
	}
	server.Kill()
	for ask, want := range map[string]string{"tenant=acme": "OVER_LIMIT OVER_LIMIT", "user=new": "OK OK"} {
		got, err := s.ShouldRateLimit(t.Context(), request("edge", ask))
		if err != nil || brief(got) != want {
			t.Errorf("%s: got %s, want %s, %v", ask, brief(got), want, err)
		}
		if refused := want != "OK OK"; refused != (header(got, "Retry-After") == "1") {
			t.Errorf("%s: %v", ask, got.ResponseHeadersToAdd)
		}
	}
	admitted := 0
	for range 10 {
		got, err := s.ShouldRateLimit(t.Context(), request("edge", "a=1 b=2"))
		if err != nil {
			t.Fatal(err)
		}
		if got.OverallCode == rls.RateLimitResponse_OK {
			admitted++
		}
	}
	if admitted != 3 {
		t.Errorf("%d were admitted, want the limit of this node", admitted)
	}
}
