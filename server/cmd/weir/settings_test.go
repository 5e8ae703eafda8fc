package main

import (
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/weirhq/weir/server/internal/serve"
)

// Errors about weir.yaml show its lines, but no token and no password.
func TestMessagesAboutSettingsShowNoSecret(t *testing.T) {
	for _, text := range []string{
		"admin_token: [hunter2\nhttp: x\n",
		"admin_token hunter2\n",
		"admin_token hunter2\nhttp: x\n",
		"admin_token:hunter2\nhttp: x\n",
		"admin_token:\n  - hunter2\n  -\n",
		"admin_token: {a: hunter2}\n",
		"admin_token: \"hunter2\nhttp: x\n",
		"http_token: hunter2: x\n",
		"http_token:\n  hunter2: x\n",
		"http_token: x\nhttp_token: hunter2\n",
		"http: x\n  http_token: hunter2\n",
		"- admin_token: hunter2\n",
		"admin_tokn: hunter2\n",
		"store: redis://:hunter2@h:1\nhttp: [1\n",
		"store: [redis://:hunter2@h, {}]\n",
		"store: redis://:hunter2@h: 1\n",
		"{store: redis://:hunter2@h:1, http: [}\n",
	} {
		_, err := readSettings("weir.yaml", []byte(text), serveCommand().Flags())
		if err == nil {
			t.Errorf("%q is accepted", text)
			continue
		}
		if shown := redact(err.Error()); strings.Contains(shown, "hunter2") || !strings.Contains(shown, "weir.yaml:") {
			t.Errorf("%q: %s", text, shown)
		}
	}
}

// The settings in the docs are valid.
func TestSettingsOfTheDocsAreRead(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\nidentity:")
	block, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/reference/cli.md shows no weir.yaml")
	}
	if _, err := readSettings("docs/reference/cli.md", []byte("identity:"+block), serveCommand().Flags()); err != nil {
		t.Error(err)
	}
	if text, err = os.ReadFile("../../../docs/guides/envoy.md"); err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```yaml\nenvoy:")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if _, err := readSettings("docs/guides/envoy.md", []byte("envoy:"+block), serveCommand().Flags()); err != nil {
			t.Error(err)
		}
	}
	if len(blocks) < 2 {
		t.Errorf("docs/guides/envoy.md shows %d settings", len(blocks))
	}
}

// Valid settings are read correctly: lists, block scalars, aliases, null and empty files.
func TestSettingsAreRead(t *testing.T) {
	flags := serveCommand().Flags()
	s, err := readSettings("weir.yaml", []byte(`# all of it
http: &here 127.0.0.1:1
admin: *here
trusted_proxies: [10.0.0.0/8, 192.0.2.1]
max_in_flight: 12
allow-unsafe-paths: true
identity:
  api_key: {header: X-Key}
  user: {claim: sub}
  jwt: {issuer: me, secret_file: s}
  known_keys: "12"
  trust_unverified: true
headers: {dialects: [], names: {limit: X-Quota, reset: ""}, expose: true}
refusal:
  status: 420
  body: |
    calm
    down
`), flags)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"http": "127.0.0.1:1", "admin": "127.0.0.1:1", "trusted-proxies": "10.0.0.0/8,192.0.2.1", "max-in-flight": "12", "allow-unsafe-paths": "true",
	} {
		if s.flags[name] != want {
			t.Errorf("%s: %q, want %q", name, s.flags[name], want)
		}
	}
	i, h, r := s.Identity, s.Headers, s.Refusal
	if i.APIKey.Header != "X-Key" || i.User.Claim != "sub" || i.JWT.Issuer != "me" || i.JWT.SecretFile != "s" || i.KnownKeysFile != "12" || !i.TrustUnverified ||
		h.Dialects == nil || len(h.Dialects) != 0 || h.Names.Limit != "X-Quota" || !h.Expose || r.Status != 420 || r.Body != "calm\ndown\n" {
		t.Errorf("%+v", s.sections)
	}
	for _, nothing := range []string{"", "# nothing\n", "---\n"} {
		if _, err := readSettings("weir.yaml", []byte(nothing), flags); err != nil {
			t.Errorf("%q: %v", nothing, err)
		}
	}
}

// A mistyped variable is logged, with a hint and without its value. Variables that Kubernetes sets aren't.
func TestUnknownVariablesAreWarnedOf(t *testing.T) {
	var log strings.Builder
	warnOfVariables(slog.New(slog.NewTextHandler(&log, nil)), serveCommand().Flags(), []string{
		"WEIR_DECISON_LOG=hunter2", "WEIR_SOMETHING_ELSE=hunter2", "WEIR_DECISION_LOG=stderr", "WEIR_ADMIN_TOKEN=hunter2", "HOME=/",
		"WEIR_SERVICE_HOST=10.0.0.1", "WEIR_PORT=tcp://10.0.0.1:8080", "WEIR_PORT_8080_TCP_ADDR=10.0.0.1", "WEIR_SERVICE_PORT_HTTP=8080", "WEIR_ADMIN_SERVICE_HOST=10.0.0.1",
	})
	for _, want := range []string{`variable=WEIR_DECISON_LOG hint="did you mean WEIR_DECISION_LOG?"`, `variable=WEIR_SOMETHING_ELSE hint="weir serve --help`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in\n%s", want, log.String())
		}
	}
	if strings.Count(log.String(), "\n") != 2 || strings.Contains(log.String(), "hunter2") {
		t.Error(log.String())
	}
}

// When a node starts, it logs what is switched on, with addresses that can be copied.
func TestTheStartLogsWhatIsOn(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://collector:4317/hunter2")
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc")
	c := serve.Config{DecisionLog: "decisions.log"}
	c.OTLP.Endpoint = "http://127.0.0.1:4318"
	everywhere := &net.TCPAddr{IP: net.IPv6unspecified, Port: 18111}
	l := serve.Listening{HTTP: everywhere, Admin: everywhere}
	var log strings.Builder
	announce(slog.New(slog.NewTextHandler(&log, nil)), &c, l)
	for _, want := range []string{"decision_log=decisions.log", `otlp="metrics to collector:4317 by grpc, traces to 127.0.0.1:4318 by http/protobuf"`, "admin=http://0.0.0.0:18111"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in %s", want, log.String())
		}
	}
	if try := hints("weir", &c, l); !strings.Contains(try, "--admin http://127.0.0.1:18111") || strings.Contains(try, "[::]") || strings.Contains(try, "/json") {
		t.Error(try)
	}
	c.EnvoyConfig = "config"
	if try := hints("weir", &c, l); !strings.Contains(try, `curl -i http://127.0.0.1:18111/json -d '{"domain": `) {
		t.Error(try)
	}
}
