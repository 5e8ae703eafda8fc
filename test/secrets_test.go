package test

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/test/oteltest"
)

// leaks collects the output of a node and of commands, and looks for secrets in it. Output that a node sends anywhere
// else should be added here, too.
type leaks struct {
	t       *testing.T
	secrets map[string]string // by description
	out     map[string]string // by source
}

func (l *leaks) gather(where, text string) { l.out[where] += text + "\n" }

// call sends a request and collects the response. It isn't for responses with rules that an operator may see.
func (l *leaks) call(method, url, body string, headers ...string) {
	l.t.Helper()
	res, text := call(l.t, method, url, body, headers...)
	where := method + " " + strings.Join(strings.SplitN(url, "/", 4)[3:], "")
	l.gather(where, fmt.Sprint(res.Status, " ", res.Header, "\n", text))
}

// watch collects a stream's output until the stream ends.
func (l *leaks) watch(url string, header string) (ended chan string) {
	l.t.Helper()
	name, value, _ := strings.Cut(header, ": ")
	req, err := http.NewRequestWithContext(l.t.Context(), "GET", url, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set(name, value)
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != 200 {
		l.t.Fatal(res, err)
	}
	ended = make(chan string, 1)
	go func() {
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		ended <- string(text)
	}()
	return ended
}

// raw sends raw bytes to a port and collects the response.
func (l *leaks) raw(base, request string) {
	l.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(request)); err != nil {
		l.t.Fatal(err)
	}
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
		defer res.Body.Close()
		var b strings.Builder
		_ = res.Write(&b)
		l.gather("raw", b.String())
	}
}

// command runs weir and collects its output, whatever its exit code.
func (l *leaks) command(args ...string) {
	l.t.Helper()
	cmd := exec.CommandContext(l.t.Context(), binary, args...)
	cmd.Dir = l.t.TempDir()
	text, _ := cmd.CombinedOutput()
	if len(text) == 0 {
		l.t.Errorf("weir %s printed nothing", args[0])
	}
	l.gather("weir "+args[0], string(text))
}

// forms returns the encodings in which a secret could appear.
func forms(secret string) []string {
	quoted, _ := json.Marshal(secret)
	all := []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret), strings.Trim(string(quoted), `"`), strings.Trim(fmt.Sprintf("%q", secret), `"`),
		fmt.Sprintf("%x", secret),
	}
	for _, text := range []string{secret, ":" + secret, "default:" + secret, "weir:" + secret} {
		all = append(all, base64.RawStdEncoding.EncodeToString([]byte(text)), base64.RawURLEncoding.EncodeToString([]byte(text)))
	}
	return all
}

func (l *leaks) check() {
	l.t.Helper()
	for where, text := range l.out {
		for name, secret := range l.secrets {
			for _, form := range forms(secret) {
				if at := strings.Index(text, form); at >= 0 {
					l.t.Errorf("%s shows the %s: …%s…", where, name, text[max(0, at-120):min(len(text), at+len(form)+20)])
					break
				}
			}
		}
		if strings.ContainsAny(text, "\x1b\a\x00") {
			l.t.Errorf("%s has a control character: %q", where, text)
		}
	}
}

const forged = "\n{\"time\":\"2026-01-01T00:00:00Z\",\"level\":\"ERROR\",\"msg\":\"forged\",\"outcome\":\"forged\"}\r\n\x1b[2J"

// No key, token or password appears in a node's logs, metrics or errors, however it was sent. Clients can't inject
// lines into logs either.
func TestNoSecretComesOut(t *testing.T) {
	dir := t.TempDir()
	signing := "the-jwt-signing-secret-9d1f/+&%41?x"
	sign := func(key string, claims jwt.MapClaims) string {
		s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	hour := time.Now().Add(time.Hour).Unix()
	l := &leaks{t: t, out: map[string]string{}, secrets: map[string]string{
		"Redis password":     "redis-pa55/w:rd@%41?#&=+x",
		"wrong password":     "redis-wr0ng/w:rd@%41?#&=+y",
		"check API token":    "http-token-2c9a1d7be4f05a63",
		"admin token":        "admin-token-77e1c0b2a9d84f31",
		"operator's token":   "reader-token-5b0d9c81f3a2e764",
		"guessed token":      "guessed-token-0a1b2c3d4e5f",
		"signing secret":     signing,
		"good JWT":           sign(signing, jwt.MapClaims{"sub": "claim-user-3f9a77aa01", "iss": "https://id.example", "exp": hour}),
		"expired JWT":        sign(signing, jwt.MapClaims{"sub": "ada", "iss": "https://id.example", "exp": 1}),
		"forged JWT":         sign("another", jwt.MapClaims{"sub": "ada", "iss": "https://id.example", "exp": hour}),
		"foreign JWT":        sign(signing, jwt.MapClaims{"sub": "ada", "iss": "https://evil.example", "exp": hour}),
		"user of a claim":    "claim-user-3f9a77aa01",
		"broken token":       "broken.token-1f2e3d4c5b6a.7988",
		"key in a header":    "sk_header_0123456789abcdef",
		"key in a query":     "sk_query_0123456789abcdef%+&",
		"key in a check":     "sk_check_0123456789abcdef\"\\",
		"key with an *":      "sk_star_*_0123456789abcdef",
		"key as an address":  "2001:db8:5ec:ret::1",
		"forging key":        "sk_forge_0123456789abcdef" + forged,
		"key in a batch":     "sk_batch_0123456789abcdef",
		"key of a take":      "job_take_0123456789abcdef",
		"key that is given":  "sk_given_0123456789abcdef",
		"key that is denied": "sk_denied_0123456789abcdef",
		"key of a rule file": "sk_file_0123456789abcdef",
		"key of a bad file":  "sk_badfile_0123456789abcdef",
		"cookie":             "session_0123456789abcdef",
		"Basic credentials":  base64.StdEncoding.EncodeToString([]byte("weir:basic-pa55-0123456789")),
		"secret in a path":   "reset_0123456789abcdef",
		"secret in a query":  "signature_0123456789abcdef",
		"secret method":      "SECRETMETHOD0123456789",
		"user of a check":    "ada.secret.0123456789@example.com",
		"tenant of a check":  "tenant_secret_0123456789",
		"broken receipt":     "receipt_0123456789abcdef",
		"id of a check":      "id_0123456789abcdef\"\\",
	}}
	s := l.secrets
	quote := func(text string) string { b, _ := json.Marshal(text); return string(b) }

	r := redistest.New(t, redistest.Options{Password: s["Redis password"]})
	store := func(password string) string {
		return (&url.URL{Scheme: "redis", User: url.UserPassword("", password), Host: r.Addr}).String()
	}
	upstream := httptest.NewServer(http.NotFoundHandler())
	defer upstream.Close()
	decisions := filepath.Join(dir, "decisions.log")
	seed := write(t, filepath.Join(dir, "rules.yaml"), `
rules:
  - {id: quota, limit: 2/hour, override: {`+s["key of a rule file"]+`: 3/hour}}
  - {id: address, by: [ip], limit: 1/hour, match: {endpoint: "GET /orders/{id}"}}
  - {id: users, by: ["claim:sub"], limit: 2/hour, match: {endpoint: /me}, missing: refuse}
  - {id: tenants, by: ["header:X-Tenant", "path:2"], limit: 2/hour, missing: skip}
blacklist: [`+s["key that is denied"]+`]
`)
	config := write(t, filepath.Join(dir, "weir.yaml"), `
identity:
  api_key: {header: X-API-Key, query: api_key}
  user: {claim: sub}
  jwt: {secret_file: `+write(t, filepath.Join(dir, "jwt.secret"), signing)+`, issuer: "https://id.example"}
decision_log_sample: 1
`)
	tokens := write(t, filepath.Join(dir, "tokens"), fmt.Sprintf("reader read %x\n", sha256.Sum256([]byte(s["operator's token"]))))
	t.Setenv("WEIR_STORE", store(s["Redis password"]))
	t.Setenv("WEIR_HTTP_TOKEN", s["check API token"])
	t.Setenv("WEIR_ADMIN_TOKEN", s["admin token"])
	collector := oteltest.HTTP(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	n := serve(t, "--config", config, "--seed-rules", seed, "--admin-tokens", tokens, "--decision-log", decisions, "--log-level", "debug",
		"--gateway", "127.0.0.1:0", "--upstream", upstream.URL)
	asService, asAdmin, asReader, asGuesser := bearer(s["check API token"]), bearer(s["admin token"]), bearer(s["operator's token"]), bearer(s["guessed token"])

	events := l.watch(n.Admin+"/v1/events", asReader)
	for range 4 { // so that limits are used up
		for _, key := range []string{"key in a check", "key with an *", "key as an address", "forging key", "key of a rule file", "key that is denied"} {
			body := fmt.Sprintf(`{"key": %s, "method": %s, "path": %s, "ip": "203.0.113.7", "attributes": {"user": %s, "header:X-Tenant": %s}}`,
				quote(s[key]), quote(s["secret method"]), quote("/reset/"+s["secret in a path"]+forged), quote(s["user of a check"]), quote(s["tenant of a check"]))
			l.call("POST", n.HTTP+"/v1/check", body, asService)
			l.call("POST", n.HTTP+"/v1/check", body[:len(body)-3], asService) // cut off
			l.call("POST", n.HTTP+"/v1/check", strings.Replace(body, `"ip"`, `"pi"`, 1), asService)
		}
		l.call("POST", n.HTTP+"/v1/checks", `{"checks": [{"key": `+quote(s["key in a batch"])+`}, {"key": `+quote(s["key in a batch"])+`, "cost": -1}, {"nonsense": "`+s["key in a batch"]+`"}]}`, asService)
		l.call("POST", n.HTTP+"/v1/take", `{"key": `+quote(s["key of a take"])+`, "limit": "1/hour"}`, asService)
		l.call("POST", n.HTTP+"/v1/take", `{"key": `+quote(s["key of a take"])+`, "limit": `+quote(s["key of a take"])+`}`, asService)
	}
	reservation := `{"key": "k", "path": "/reserved", "id": ` + quote(s["id of a check"]) + `, "amounts": {"tokens": 1500}, "reserve": "2m"}`
	l.call("POST", n.HTTP+"/v1/check", strings.Replace(reservation, "1500", "-1", 1), asService)
	l.call("POST", n.HTTP+"/v1/check", strings.Replace(reservation, `"id"`, `"di"`, 1), asService)
	l.call("POST", n.HTTP+"/v1/checks", `{"checks": [`+strings.Replace(reservation, "2m", s["id of a check"][:8], 1)+`]}`, asService)
	_, reserved := call(t, "POST", n.HTTP+"/v1/check", reservation, asService) // this response may have the receipt
	var taken struct{ Receipt string }
	if err := json.Unmarshal([]byte(reserved), &taken); err != nil || taken.Receipt == "" || strings.Contains(reserved, "id_0123") {
		t.Fatal(reserved, err)
	}
	s["receipt"] = taken.Receipt
	for _, receipt := range []string{s["broken receipt"], s["receipt"]} {
		for _, path := range []string{"/v1/renew", "/v1/release", "/v1/settle", "/v1/refund"} {
			l.call("POST", n.HTTP+path, `{"receipt": `+quote(receipt)+`}`, asService)
		}
		l.call("POST", n.HTTP+"/v1/renew", `{"receipts": [`+quote(receipt)+`, 7]}`, asService)
		l.call("POST", n.HTTP+"/v1/settle", `{"receipt": `+quote(receipt)+`, "amounts": {"tokens": 5}}`, asService)
		l.call("POST", n.HTTP+"/v1/settle", `{"receipt": `+quote(receipt)+`, "unknown": true, "status": 200}`, asService)
	}
	for _, who := range []string{asGuesser, "Authorization: Basic " + s["Basic credentials"], bearer("")} {
		l.call("POST", n.HTTP+"/v1/check", `{"key": `+quote(s["key in a check"])+`}`, who)
		for _, path := range []string{"/v1/rules", "/v1/rules/id/quota", "/v1/now", "/v1/events", "/v1/nodes", "/metrics", "/v1/version", "/readyz", "/v1/" + s["secret in a path"]} {
			l.call("GET", n.Admin+path+"?token="+s["secret in a query"], "", who)
		}
	}

	target := "/orders/" + s["secret in a path"] + "?api_key=" + url.QueryEscape(s["key in a query"]) + "&sig=" + s["secret in a query"]
	for range 4 {
		for _, headers := range [][]string{
			{"X-API-Key: " + s["key in a header"], "Cookie: sid=" + s["cookie"]},
			{"Authorization: Basic " + s["Basic credentials"], "X-Tenant: " + s["tenant of a check"]},
			{bearer(s["good JWT"])}, {bearer(s["expired JWT"])}, {bearer(s["forged JWT"])}, {bearer(s["foreign JWT"])}, {bearer(s["broken token"])},
		} {
			l.call("GET", n.Gateway+"/me", "", headers...)
			l.call("GET", n.Gateway+"/orders/"+s["secret in a path"], "", headers...)
			l.call("GET", n.Gateway+target, "", headers...)
		}
		l.raw(n.Gateway, "GET "+target+" HTTP/1.1\r\nHost: x\r\nX-API-Key: "+s["key in a header"]+"\r\nX-API-Key: "+s["key in a batch"]+"\r\n\r\n")
		l.raw(n.Gateway, s["secret method"]+" /%0a%1b[2J"+s["secret in a path"]+"/..%2f HTTP/1.1\r\nHost: x\r\nX-API-Key: "+s["key in a header"]+"\x1b[2J\r\n\r\n")
		l.raw(n.Gateway, "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+s["forged JWT"]+", Bearer "+s["good JWT"]+"\r\n\r\n")
		l.raw(n.Gateway, "GET /"+s["secret in a path"]+"\x01 HTTP/9.9\r\n"+s["cookie"]+"\r\n\r\n")
	}

	envoy := dialEnvoy(t, n.GRPC, insecure.NewCredentials())
	for range 4 {
		for _, token := range []string{s["check API token"], s["guessed token"]} {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
			for _, value := range []string{s["key in a header"], s["key with an *"], s["key that is denied"]} {
				answer, err := shouldLimit(ctx, envoy, "api_key", value)
				l.gather("gRPC", fmt.Sprint(answer, err))
				for _, name := range []string{"x-api-key", "authorization", "X_API_Key", "cookie"} {
					verdict, err := auth.NewAuthorizationClient(envoy).Check(ctx, envoysQuestion(s["secret method"], target, map[string]string{name: value}))
					l.gather("gRPC", fmt.Sprint(verdict, err))
				}
				l.call("POST", n.HTTP+"/json", `{"domain": "edge", "descriptors": [{"entries": [{"key": "api_key", "value": `+quote(value)+`}]}]}`, bearer(token))
				l.call("POST", n.HTTP+"/json", `{"domain": "edge", "descriptors": `+quote(value)+`}`, bearer(token))
			}
			l.call("GET", n.HTTP+"/check/nginx", "", "X-Weir-Token: "+token, "X-Original-Method: GET", "X-Original-URI: "+target, "X-Real-IP: 203.0.113.9", "X-API-Key: "+s["key in a header"])
			l.call("GET", n.HTTP+"/check/caddy", "", "X-Weir-Token: "+token, "X-Forwarded-Method: "+s["secret method"], "X-Forwarded-Uri: "+target, "X-Forwarded-For: 203.0.113.9")
			l.call("GET", n.HTTP+"/check/envoy"+target, "", "X-Weir-Token: "+token, bearer(s["forged JWT"]))
		}
	}

	// Input from operators is neither logged nor repeated in errors.
	mustAdmin(t, n, "PUT", "/v1/rules/key", `{"key": `+quote(s["key that is given"])+`, "rule": "quota", "limit": "9/hour"}`, asAdmin)
	l.call("PUT", n.Admin+"/v1/rules/key", `{"key": `+quote(s["key that is given"])+`, "rule": "no-such", "limit": "9/hour"}`, asAdmin)
	l.call("PUT", n.Admin+"/v1/rules/key", `{"key": `+quote(s["key that is given"])+`, "rule": "quota", "limit": "9/hour"}`, asReader)
	l.call("POST", n.Admin+"/v1/counters", `{"key": `+quote(s["key in a check"])+`, "cots": 1}`, asReader)
	l.call("POST", n.Admin+"/v1/counters/reset", `{"key": `+quote(s["key in a check"])+`}`, asAdmin)
	l.call("POST", n.Admin+"/v1/clients", `{"key": `+quote(s["key in a check"])+`}`, asReader)
	l.call("POST", n.Admin+"/v1/rules/whatif", `{"rule": "quota", "limit": "1/hour"}`, asReader)
	l.call("POST", n.Admin+"/v1/denylist/entries", `{"key": `+quote(s["key in a check"])+`, "remove": true}`, asAdmin)
	for _, path := range []string{"/v1/rules/versions", "/v1/nodes", "/v1/version", "/readyz", "/v1/top", "/v1/top?by=refused", "/v1/now", "/v1/rules/usage", "/v1/rules/usage/quota", "/v1/rules/id/none", "/v1/events?client=" + url.QueryEscape(s["key in a check"]), "/metrics", "/debug/pprof/cmdline"} {
		l.call("GET", n.Admin+path, "", asReader)
	}
	l.call("GET", n.HTTP+"/readyz", "")

	// (Commands that check an operator's own file, such as weir rules lint, do show the faulty lines.)
	l.command("keys", "override", s["key that is given"], "--rule", "no-such", "--limit", "9/hour", "--admin", n.Admin)
	l.command("check", "--http", n.HTTP, s["key in a check"], "--path", "/reset/"+s["secret in a path"])
	l.command("nodes", "--admin", n.Admin)
	l.command("top", "--admin", n.Admin)
	l.command("serve", "--store", "reddis://:"+s["wrong password"]+"@"+r.Addr)
	l.command("serve", "--admin-token", s["guessed token"], "--http", "127.0.0.1")
	t.Setenv("WEIR_ADMIN_TOKEN", s["guessed token"])
	t.Setenv("WEIR_HTTP_TOKEN", s["guessed token"])
	l.command("rules", "show", "--admin", n.Admin)
	l.command("check", "--http", n.HTTP, s["key in a check"])

	t.Setenv("WEIR_STORE", store(s["wrong password"]))
	rules := write(t, filepath.Join(dir, "watched.yaml"), "rules:\n  - {id: quota, limit: 2/hour, override: {"+s["key of a rule file"]+": 3/hour}}\n")
	stranger := serve(t, "--rules", rules, "--log-level", "debug", "--decision-log", "stderr", "--decision-log-sample", "1")
	write(t, rules, "rules:\n  - {id: quota, limit: 2/hour, override: {"+s["key of a bad file"]+": 0/hour}}\n")
	stranger.await("rules rejected: the ones in force stay", func(map[string]any) bool { return true })
	l.call("POST", stranger.HTTP+"/v1/check", `{"key": `+quote(s["forging key"])+`}`, asGuesser)
	l.call("GET", stranger.Admin+"/readyz", "", asGuesser)
	r.Kill()
	l.call("POST", n.HTTP+"/v1/check", `{"key": `+quote(s["key in a check"])+`}`, asService)
	for _, path := range []string{"/readyz", "/v1/now", "/v1/nodes", "/v1/rules/versions", "/metrics"} {
		l.call("GET", n.Admin+path, "", asReader)
	}

	for name, n := range map[string]*node{"node": n, "node with a wrong password": stranger} {
		n.stop()
		<-n.exited
		l.gather(name+", log", n.text.String())
		l.gather(name+", stdout", n.out.String())
		if n.said("forged") {
			t.Errorf("%s: a client has made a line", name)
		}
		for line := range strings.Lines(n.text.String()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: %q is no line of the log", name, line)
			}
		}
	}
	seen := <-events
	l.gather("GET v1/events", seen)
	if !strings.Contains(seen, "event: decision") || !strings.Contains(seen, `"client":"sk_`) {
		t.Errorf("nothing was watched: %.300s", seen)
	}
	l.gather("traces and metrics over OTLP", collector.Received().Text)
	if len(collector.Received().Spans) == 0 {
		t.Error("no spans have arrived")
	}
	text, err := os.ReadFile(decisions)
	if err != nil {
		t.Fatal(err)
	}
	l.gather("decision log", string(text))
	lines := 0
	for line := range strings.Lines(string(text)) {
		var d struct{ Time, Outcome string }
		if err := json.Unmarshal([]byte(line), &d); err != nil || d.Time == "" || d.Outcome != "allowed" && d.Outcome != "refused" {
			t.Errorf("%v: %q is no line of the decision log", err, line)
		}
		lines++
	}
	l.check()

	// The decision log and the metrics aren't empty; otherwise the test would prove nothing.
	for _, want := range []string{
		`"key":"sk_hea…ef"`, `"key":"sk_sta…ef"`, `"reason":"denied"`, `"reason":"identity"`, `"path":"/orders/{id}"`, `"method":"other"`,
		`"identity":"the token has expired"`, `"identity":"the token's signature or algorithm is wrong"`, `"identity":"the token has another issuer"`,
		`"identity":"the token is not a JWT"`, `"identity":"The header X-Api-Key is given twice"`, `"edge":"gateway"`, `"edge":"check"`, `"degraded":true`,
	} {
		if !regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(want), "…", "[^\"]*")).Match(text) {
			t.Errorf("no %s in %d lines of the decision log", want, lines)
		}
	}
	if metrics := l.out["GET metrics"]; !strings.Contains(metrics, "weir_decision_log_lines_total") || !strings.Contains(metrics, `weir_identities_rejected_total{edge="gateway"}`) {
		t.Errorf("the metrics weren't scraped: %.300s", metrics)
	}
}

// If an upstream sends more bytes than it announced, they don't appear in the log.
func TestExtraBytesOfAnUpstreamArentLogged(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokSECRET-OF-AN-ANSWER")
		_, _ = io.Copy(io.Discard, conn) // until the node closes the connection
	}))
	defer upstream.Close()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules:\n  - {id: all, by: [], limit: 1000000/hour}\n")
	n := serve(t, "--rules", rules, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL, "--log-level", "debug")
	call(t, "GET", n.Gateway+"/", "")
	n.await("Unsolicited response received on idle HTTP channel", func(l map[string]any) bool { return l["level"] == "DEBUG" })
	n.mu.Lock()
	defer n.mu.Unlock()
	if strings.Contains(n.text.String(), "SECRET") {
		t.Error(n.text.String())
	}
}
