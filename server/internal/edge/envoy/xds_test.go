package envoy_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// listener is a configuration in the form that Envoy Gateway sends for the routes of a listener.
const listener = `
domain: eg/listener-80
descriptors:
  - key: httproute/default/orders/rule/0
    value: httproute/default/orders/rule/0
    descriptors:
      - key: rule-0-match-0
        value: rule-0-match-0
        descriptors:
          - key: rule-0-method
            value: rule-0-method
            descriptors:
              - key: rule-0-path
                value: rule-0-path
                descriptors:
                  - key: masked_remote_address
                    value: 192.168.0.0/16
                    descriptors:
                      - key: remote_address
                        rate_limit: {unit: hour, requests_per_unit: 2}
      - key: rule-1-match-0
        rate_limit: {unit: MONTH, requests_per_unit: 1}
        shadow_mode: true
      - key: rule-2-match--1
        value: rule-2-match--1
        rate_limit: {unit: WEEK, requests_per_unit: 3}
`

// shared is a policy that several listeners share.
const shared = `
domain: default/shared
descriptors:
  - key: default/shared/rule/0
    value: default/shared/rule/0
    descriptors:
      - key: rule-0-match-0
        rate_limit: {unit: YEAR, requests_per_unit: 5}
`

// answered sends a request to a service, and returns the response on one line.
func answered(t *testing.T, s *envoy.Service, domain string, descriptors ...string) string {
	t.Helper()
	got, err := s.ShouldRateLimit(t.Context(), request(domain, descriptors...))
	if err != nil {
		return status.Code(err).String()
	}
	return brief(got)
}

// chain returns the descriptor of a request from an address that matches the first rule of listener.
func chain(address string) string {
	return "httproute/default/orders/rule/0=httproute/default/orders/rule/0 rule-0-match-0=rule-0-match-0 rule-0-method=rule-0-method " +
		"rule-0-path=rule-0-path masked_remote_address=192.168.0.0/16 remote_address=" + address
}

// TestXDSOfEnvoyGateway checks that a valid configuration is applied as a whole and acknowledged, and that an invalid
// one is rejected with a reason while the last good one stays in force.
func TestXDSOfEnvoyGateway(t *testing.T) {
	c := newControl()
	addr, _ := c.listen(t, "127.0.0.1:0")
	s, _ := follow(t, envoy.XDS{
		Server: addr, Node: "envoy-ratelimit", NodeMetadata: map[string]string{"zone": "a"}, Headers: map[string]string{"Authorization": "Bearer x"},
	}, envoy.Options{})
	first := c.next(t)
	if first.GetNode().GetId() != "envoy-ratelimit" || first.Node.Metadata.AsMap()["zone"] != "a" || first.TypeUrl != configType || first.VersionInfo != "" || first.ResponseNonce != "" || first.ErrorDetail != nil {
		t.Fatal(first)
	}
	if md := <-c.headers; fmt.Sprint(md["authorization"]) != "[Bearer x]" {
		t.Error(md)
	}
	if got := answered(t, s, "eg/listener-80", chain("192.168.1.1")); got != codes.Unavailable.String() {
		t.Errorf("before the first configuration: %s", got)
	}

	c.set("1", resource(t, listener), resource(t, shared))
	if ack := c.next(t); ack.VersionInfo != "1" || ack.ResponseNonce == "" || ack.ErrorDetail != nil {
		t.Fatal(ack)
	}
	route := "httproute/default/orders/rule/0=httproute/default/orders/rule/0 "
	for i, q := range []struct{ domain, ask, want string }{
		{"eg/listener-80", chain("192.168.1.1"), "OK OK:2/HOUR-1"},
		{"eg/listener-80", chain("192.168.1.1"), "OK OK:2/HOUR-0"},
		{"eg/listener-80", chain("192.168.1.1"), "OVER_LIMIT OVER_LIMIT:2/HOUR-0"},
		{"eg/listener-80", chain("192.168.1.2"), "OK OK:2/HOUR-1"},
		{"eg/listener-80", route + "rule-1-match-0=ann", "OK OK:1/MONTH-0"},
		{"eg/listener-80", route + "rule-1-match-0=ann", "OK OK:1/MONTH-0"}, // in shadow mode
		{"eg/listener-80", route + "rule-2-match--1=rule-2-match--1", "OK OK:3/WEEK-2"},
		{"default/shared", "default/shared/rule/0=default/shared/rule/0 rule-0-match-0=x", "OK OK:5/YEAR-4"},
		{"eg/listener-81", chain("192.168.1.1"), "OK OK"},
	} {
		if got := answered(t, s, q.domain, q.ask); got != q.want {
			t.Errorf("%d: %s %s: %s, want %s", i, q.domain, q.ask, got, q.want)
		}
	}
	if now := s.Source(); now.Name != addr || now.Version != "1" || now.Since.IsZero() || now.Domains != 2 || now.Limits != 4 || !now.Connected || now.Rejected != "" {
		t.Errorf("%+v", now)
	}

	c.set("2", resource(t, shared), resource(t, strings.Replace(listener, "unit: WEEK", "unit: fortnight", 1)))
	nack := c.next(t)
	const why = `eg/listener-80: descriptors[0].descriptors[2].rate_limit.unit: must be second, minute, hour, day, week, month or year, got "99"`
	if nack.VersionInfo != "1" || nack.ResponseNonce == "" || nack.ErrorDetail.GetMessage() != why || codes.Code(nack.ErrorDetail.Code) != codes.InvalidArgument {
		t.Fatal(nack)
	}
	if now := s.Source(); now.Version != "1" || now.Rejected != why || now.Rejections == 0 || now.Domains != 2 {
		t.Errorf("%+v", now)
	}
	if got := answered(t, s, "eg/listener-80", chain("192.168.1.1")); got != "OVER_LIMIT OVER_LIMIT:2/HOUR-0" {
		t.Error(got)
	}

	c.set("3", resource(t, shared))
	for ack := c.next(t); ack.VersionInfo != "3"; ack = c.next(t) { // the server may have sent version 2 again
		if ack.ErrorDetail.GetMessage() != why {
			t.Fatal(ack)
		}
	}
	if now := s.Source(); now.Version != "3" || now.Rejected != "" || now.Domains != 1 {
		t.Errorf("%+v", now)
	}
	if got := answered(t, s, "eg/listener-80", chain("192.168.1.1")); got != "OK OK" {
		t.Error("resources that are gone still limit:", got)
	}
	c.set("4")
	if ack := c.next(t); ack.VersionInfo != "4" || ack.ErrorDetail != nil {
		t.Fatal(ack)
	}
	if got := answered(t, s, "default/shared", "default/shared/rule/0=default/shared/rule/0 rule-0-match-0=x"); got != "OK OK" {
		t.Error("an empty configuration limits:", got)
	}
}

// quota is a configuration in the form that Envoy AI Gateway sends for quotas. Its messages are newer than the module
// used here.
const quota = `
domain: ai-gateway-quota
descriptors:
  - key: backend_name
    value: default/openai
    descriptors:
      - key: model_name_override
        value: gpt-4
        descriptors:
          - key: rule-0-x-team|^a.*b$-match-0
            value: rule-0-x-team|^a.*b$-match-0
            quota_mode: true
            metadata: {pool: team, rank: {n: 1}}
            rate_limit: {unit: day, requests_per_unit: 1}
          - key: rule-1-x-user-match-0
            quota_mode: true
            metadata: {pool: user, rank: {n: 2, last: true}}
            rate_limit: {unit: hour, requests_per_unit: 2}
      - key: model_name_override
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 7}
`

// TestXDSOfEnvoyAIGateway checks that quota_mode and metadata work, although the module's messages lack them.
func TestXDSOfEnvoyAIGateway(t *testing.T) {
	c := newControl()
	c.set("1", resource(t, quota))
	addr, _ := c.listen(t, "127.0.0.1:0")
	s, _ := follow(t, envoy.XDS{Server: addr, Node: "envoy-ai-gateway-ratelimit"}, envoy.Options{Answers: envoy.Answers{DynamicMetadata: true}})
	c.next(t)
	if ack := c.next(t); ack.VersionInfo != "1" || ack.ErrorDetail != nil {
		t.Fatal(ack)
	}
	const model = "backend_name=default/openai model_name_override=gpt-4 "
	team, user := model+"rule-0-x-team|^a.*b$-match-0=rule-0-x-team|^a.*b$-match-0", model+"rule-1-x-user-match-0=ann"
	for i, want := range []string{
		"OK OK:1/DAY-0 OK:2/HOUR-1",
		"OK OVER_LIMIT:1/DAY-0 OK:2/HOUR-0", // one quota is spent, but the other isn't
		"OVER_LIMIT OVER_LIMIT:1/DAY-0 OVER_LIMIT:2/HOUR-0",
	} {
		got, err := s.ShouldRateLimit(t.Context(), request("ai-gateway-quota", team, user))
		if err != nil || brief(got) != want {
			t.Errorf("%d: %v %v, want %s", i, brief(got), err, want)
		}
		if meta := fmt.Sprint(got.DynamicMetadata.AsMap()["metadata"]); i == 0 && meta != "map[pool:team rank:map[last:true n:1]]" {
			t.Error(meta)
		}
	}
	if got := answered(t, s, "ai-gateway-quota", "backend_name=default/openai model_name_override=other"); got != "OK OK:7/MINUTE-6" {
		t.Error(got)
	}
}

// TestRecordedAnswersOverXDS checks that limits from an xDS server behave like those from files. One recording is left
// out, because the messages lack share_threshold.
func TestRecordedAnswersOverXDS(t *testing.T) {
	for _, r := range recordings {
		if r.file == "answers-newer-keys.jsonl" {
			continue
		}
		t.Run(r.file, func(t *testing.T) {
			c := newControl()
			var list []*anypb.Any
			for _, f := range readFiles(t, "testdata/recorded/config/*.yaml") {
				list = append(list, resource(t, string(f.Text)))
			}
			c.set("1", list...)
			addr, _ := c.listen(t, "127.0.0.1:0")
			s, _ := follow(t, envoy.XDS{Server: addr}, envoy.Options{Answers: envoy.Answers{Headers: true, DynamicMetadata: r.metadata}})
			c.next(t)
			if ack := c.next(t); ack.ErrorDetail != nil {
				t.Fatal(ack)
			}
			replay(t, r.file, r.requests, patient(s.ShouldRateLimit))
		})
	}
}

// TestXDSReconnects checks that the last good configuration stays while the server is away. A restarted server may
// count versions from the start, so another configuration under the same version is applied, too.
func TestXDSReconnects(t *testing.T) {
	c := newControl()
	c.set("1", resource(t, shared))
	addr, stop := c.listen(t, loopback.Host()+":0")
	s, f := follow(t, envoy.XDS{Server: addr}, envoy.Options{})
	until(t, s, "no configuration", func(now envoy.Source) bool { return now.Version == "1" })
	const user = "default/shared/rule/0=default/shared/rule/0 rule-0-match-0=x"
	if got := answered(t, s, "default/shared", user); got != "OK OK:5/YEAR-4" {
		t.Error(got)
	}
	stop()
	until(t, s, "the server isn't missed", func(now envoy.Source) bool { return !now.Connected && strings.Contains(now.Lost, "refused") })
	if got := answered(t, s, "default/shared", user); got != "OK OK:5/YEAR-3" {
		t.Error("without the server:", got)
	}
	other := newControl()
	other.set("1", resource(t, strings.Replace(shared, "unit: 5", "unit: 6", 1)))
	_, stop = other.listen(t, addr)
	f.Look()
	until(t, s, "the configuration isn't the new one", func(now envoy.Source) bool {
		return now.Connected && answered(t, s, "default/shared", "hits=0 "+user) == "OK OK:6/YEAR-4"
	})
	stop()
	until(t, s, "the server isn't missed", func(now envoy.Source) bool { return !now.Connected })
	if got := answered(t, s, "default/shared", "hits=0 "+user); got != "OK OK:6/YEAR-4" {
		t.Error("without the server:", got)
	}
}

// TestResourceErrors checks the errors about invalid resources, with their positions.
func TestResourceErrors(t *testing.T) {
	deep := "domain: a\ndescriptors:\n"
	for i := range 33 {
		indent := strings.Repeat("    ", i)
		deep += indent + "  - key: k\n" + indent + "    descriptors:\n"
	}
	for _, c := range []struct{ text, want string }{
		{"descriptors: [{key: k}]", "resources[0]: domain: is missing"},
		{"domain: a\ndescriptors: [{value: x}]", "a: descriptors[0].key: is missing"},
		{"domain: a\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 1}}]", `a: descriptors[0].rate_limit.unit: must be second, minute, hour, day, week, month or year, got "99"`},
		{"domain: a\ndescriptors: [{key: k, rate_limit: {unit: unknown}}]", `a: descriptors[0].rate_limit.unit: must be second, minute, hour, day, week, month or year, got "UNKNOWN"`},
		{"domain: a\ndescriptors: [{key: k, rate_limit: {unlimited: true, unit: day}}]", "a: descriptors[0].rate_limit.unit: an unlimited rate_limit has no unit; leave it out"},
		{"domain: a\ndescriptors: [{key: k, descriptors: [{key: l}, {key: l}]}]", `a: descriptors[0].descriptors[1]: the descriptor "a.k.l" appears twice; keep one of them`},
		{"domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, name: n, replaces: [{name: m}, {name: n}]}}]", "a: descriptors[0].rate_limit.replaces[1].name: a limit can't replace itself"},
		{"domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, replaces: [{}]}}]", "a: descriptors[0].rate_limit.replaces[0].name: is missing"},
		{"domain: a\ndescriptors: [{key: k*}]", "a: descriptors[0].key: wildcards are for values, not for keys"},
		{deep, "descriptors[0].descr…: descriptors are nested more than 32 deep"},
	} {
		_, _, err := envoy.ParseResources([]*anypb.Any{resource(t, c.text)}, envoy.Modes{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", c.text, err, c.want)
		}
	}
	twice := []*anypb.Any{resource(t, "domain: a\ndescriptors: [{key: k}]"), resource(t, "domain: a\ndescriptors: [{key: l}]")}
	if _, _, err := envoy.ParseResources(twice, envoy.Modes{}); err == nil || err.Error() != `a: domain: "a" is in another resource already; put both into one resource` {
		t.Error(err)
	}
	if c, _, err := envoy.ParseResources(twice, envoy.Modes{MergeDomains: true}); err != nil || c.Domains() != 1 {
		t.Error(err)
	}
}

// TestXDSSettings checks the errors about invalid settings.
func TestXDSSettings(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := envoy.New(nil, envoy.Options{Configured: true})
	for want, x := range map[string]envoy.XDS{
		"server: is missing": {},
		`server: must be a host and a port, such as envoy-gateway:18001, got "http://eg:1"`: {Server: "http://eg:1"},
		`server: must be a host and a port, such as envoy-gateway:18001, got "eg"`:          {Server: "eg"},
		`server: must be a host and a port, such as envoy-gateway:18001, got ":1"`:          {Server: ":1"},
		"tls: cert and key go together":                                                     {Server: "eg:1", TLS: &envoy.TLSFiles{Cert: "c"}},
		"tls: ca: open " + dir + "/no":                                                      {Server: "eg:1", TLS: &envoy.TLSFiles{CA: dir + "/no"}},
		"tls: ca: " + empty + " holds no certificate in PEM":                                {Server: "eg:1", TLS: &envoy.TLSFiles{CA: empty}},
		"tls: key: open " + dir + "/no":                                                     {Server: "eg:1", TLS: &envoy.TLSFiles{Cert: empty, Key: dir + "/no"}},
		"tls: cert: " + empty + ": tls:":                                                    {Server: "dns:///eg:1", TLS: &envoy.TLSFiles{Cert: empty, Key: empty}},
	} {
		if _, err := s.Subscribe(x); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// lines collects log lines.
type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, string(p))
	return len(p), nil
}

// TestXDSReasonIsLoggedOnce checks that a repeated connection error is logged once, although its text has a different
// local port each time.
func TestXDSReasonIsLoggedOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.ReadFull(c, make([]byte, 24)) // all that a client sends before the server does
			c.(*net.TCPConn).SetLinger(0)    // send a reset, whose error contains both ports
			c.Close()
		}
	}()
	var log lines
	handler := slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	s, _ := follow(t, envoy.XDS{Server: l.Addr().String()}, envoy.Options{Logger: slog.New(handler)})
	reasons := map[string]bool{}
	until(t, s, "there aren't ten tries", func(now envoy.Source) bool {
		if strings.Contains(now.Lost, "->") {
			reasons[now.Lost] = true
		}
		return len(reasons) == 10
	})
	log.mu.Lock()
	defer log.mu.Unlock()
	told := map[string]bool{}
	for _, line := range log.list {
		line = regexp.MustCompile(`:\d+->`).ReplaceAllString(line, "->")
		if told[line] {
			t.Errorf("logged again: %s", line)
		}
		told[line] = true
	}
	if len(told) == 0 {
		t.Error("nothing is logged")
	}
}
