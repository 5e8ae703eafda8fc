package admin_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/guard"
	"github.com/weirhq/weir/server/internal/observe/top"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const rules = `# who may do how much
tiers:
  free: 100/minute
  pro: {limit: 1000/minute, burst: 200}
keys: {"sk_prod_*": pro}
rules:
  - id: quota          # by tier
  - id: search
    match: {endpoint: /v1/search}
    limit: 30/minute
  - id: address
    by: [ip]
    limit: 5000/minute
blacklist: ["sk_revoked_*"]
`

// port is an admin port and the parts behind it.
type port struct {
	*httptest.Server
	limiter   *weir.Limiter
	cooldowns *cooldown.Guard
	top       *top.Top
	source    *inforce.Rules
	dir       *rulestore.Dir // nil if the rules are in a file
	data      string         // the folder of dir
	heard     redisstore.Heard
	log       *lockedBuffer
	noSlots   error // if set, listing slots fails with it
	regions   admin.Regions
}

// slotsOrNot lists slots, or fails with an error if one is set.
type slotsOrNot struct {
	from  admin.Slots
	fails *error
}

func (s slotsOrNot) Slots(ctx context.Context, c *counter.Counter, most int, each func(id counter.Once, n int64, since, ends time.Time)) error {
	if *s.fails != nil {
		return *s.fails
	}
	return s.from.Slots(ctx, c, most, each)
}

func (s slotsOrNot) Slot(ctx context.Context, c *counter.Counter, id counter.Once) (int64, error) {
	if *s.fails != nil {
		return 0, *s.fails
	}
	return s.from.Slot(ctx, c, id)
}

type lockedBuffer struct {
	mu sync.Mutex // guards bytes
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// open starts a port with rules in a data folder, or in a file if file isn't "".
func open(t *testing.T, tokens guard.Tokens, file string) *port {
	t.Helper()
	p := &port{log: &lockedBuffer{}, regions: admin.Regions{Peers: []region.Status{}}}
	log := slog.New(slog.NewTextHandler(p.log, nil))
	seed, err := inforce.Parse("rules", []byte(rules), 0)
	if err != nil {
		t.Fatal(err)
	}
	hot := top.New(top.Options{Rules: func() *weir.RuleSet { return p.limiter.Rules() }})
	p.top = hot
	store := memstore.New(memstore.Options{})
	p.limiter = weir.NewLimiter(store, seed.File.Set, weir.Options{Observe: hot.Observe})
	self := rulestore.Node{Name: "n1", Version: "test", Store: "up"}
	if file != "" {
		p.source = inforce.FromFile(file, seed, p.limiter, log)
	} else {
		p.data = t.TempDir()
		dir, err := rulestore.OpenDir(p.data)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dir.Close() })
		p.dir = dir
		p.source = inforce.FromStore(t.Context(), rulestore.Options{Store: dir, Node: self, Logger: log}, inforce.Start{Seed: seed, Message: "seed"}, p.limiter)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- p.source.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	p.cooldowns = keptOut(t)
	api := &admin.API{
		Rules: p.source, Limiter: p.limiter, Guard: guard.New(guard.Options{Tokens: tokens, Console: true}), Audit: log,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			_, _ = w.Write([]byte("weir_rules_version 1\n"))
		}),
		Top:       top.NewCluster(hot, "n1", nil, nil),
		Cooldowns: p.cooldowns,
		Slots:     slotsOrNot{store, &p.noSlots},
		Heard:     func() redisstore.Heard { return p.heard },
		Regions:   func() admin.Regions { return p.regions },
		Self: func() rulestore.Node {
			out := self
			out.RulesVersion = p.source.InForce().Version
			return out
		},
		Store: func() admin.Store { return admin.Store{URL: "memory", Status: "up"} },
		Now: func() admin.Now {
			return admin.Now{
				Series: admin.Series{Decisions: []uint64{1}, Refused: []uint64{0}, Degraded: []uint64{0}, P50: []*float64{nil}, P99: []*float64{nil}},
				Totals: admin.Rates{ByReason: map[string]float64{"within": 1}, ByEdge: map[string]admin.EdgeRate{"check": {Decisions: 1}}},
				Store:  admin.NowStore{Store: admin.Store{URL: "memory", Status: "up"}, Shards: []admin.NowShard{}}, Trouble: []admin.Trouble{}, FailureModes: []admin.FailureMode{}, FailureTotals: []admin.FailureTotal{},
			}
		},
	}
	mux := http.NewServeMux()
	api.Register(mux)
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Server.Close)
	return p
}

// keptOut returns a guard in which one client is in a cooldown.
func keptOut(t *testing.T) *cooldown.Guard {
	t.Helper()
	now := time.Now()
	g := cooldown.New(cooldown.Options{Now: func() time.Time { return now }, Fingerprint: func([][2]string) string { return "1a2b3c4d" }})
	policy, err := counter.NewPolicy("search", weir.PerHour(1))
	if err != nil {
		t.Fatal(err)
	}
	policy = policy.With(func(d *counter.Definition) {
		d.Abuse = &counter.Abuse{Refusals: 1, Window: time.Hour, Cooldown: time.Hour, Grow: 2, Most: time.Hour}
	})
	for range 3 {
		g.Decided(&counter.Charge{Counter: counter.Counter{Policy: policy, Subject: []byte("k")}}, time.Hour)
		now = now.Add(2 * time.Second)
	}
	return g
}

// answer is a response.
type answer struct {
	status int
	header http.Header
	text   string
}

func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(a.text), &v); err != nil {
		t.Fatalf("%s: %v", a.text, err)
	}
	return v
}

// code returns the code of an error response, or "".
func (a answer) code(t *testing.T) string {
	t.Helper()
	e, _ := a.json(t)["error"].(map[string]any)
	code, _ := e["code"].(string)
	return code
}

// do sends a request. Header lines are "Name: value".
func (p *port) do(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, p.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Set(name, value)
	}
	res, err := p.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

func (p *port) want(t *testing.T, a answer, status int, code string) {
	t.Helper()
	if a.status != status || code != "" && a.code(t) != code {
		t.Errorf("got %d, want %d %s: %s", a.status, status, code, a.text)
	}
}

func tokens(t *testing.T) guard.Tokens {
	t.Helper()
	sum := func(s string) string {
		b := sha256.Sum256([]byte(s))
		return hex.EncodeToString(b[:])
	}
	file := filepath.Join(t.TempDir(), "tokens")
	text := "# who\nada operate " + sum("secret-ada") + "\n\nbob  read " + sum("secret-bob") + "  -\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ts, err := guard.LoadTokens("secret-all", file)
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

func TestPermissionsOfTokens(t *testing.T) {
	p := open(t, tokens(t), "")
	const write = `{"entries": ["sk_bad"]}`
	for _, c := range []struct {
		method, token string
		status        int
		code          string
	}{
		{"GET", "", 401, "UNAUTHORIZED"},
		{"GET", "Bearer wrong", 401, "UNAUTHORIZED"},
		{"GET", "Basic c2VjcmV0LWFkYQ==", 401, "UNAUTHORIZED"},
		{"GET", "Bearer secret-bob", 200, ""},
		{"PUT", "Bearer secret-bob", 403, "FORBIDDEN"},
		{"PUT", "Bearer secret-ada", 200, ""},
		{"PUT", "bearer secret-all", 200, ""},
		{"PUT", "", 401, "UNAUTHORIZED"},
	} {
		a := p.do(t, c.method, "/v1/denylist?force=true", write, "Authorization: "+c.token)
		p.want(t, a, c.status, c.code)
	}
	p.want(t, p.do(t, "PUT", "/v1/denylist?dry_run=true", write, "Authorization: Bearer secret-bob"), 200, "")
	p.want(t, p.do(t, "POST", "/v1/counters/reset?dry_run=true", `{"key": "k"}`, "Authorization: Bearer secret-bob"), 403, "FORBIDDEN")
	v := p.do(t, "GET", "/v1/rules/versions", "", "Authorization: Bearer secret-bob").json(t)["versions"].([]any)
	if author := v[0].(map[string]any)["author"]; author != "ada" {
		t.Errorf("the version was written by %v, want ada", author)
	}
	log := p.log.String()
	for _, want := range []string{"who=ada", "who=bob", "why=FORBIDDEN", "why=UNAUTHORIZED", "msg=audit", "before=1 after=2", "from=127.0.0.1:"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log doesn't contain %s:\n%s", want, log)
		}
	}
	if strings.Contains(log, "secret-") || strings.Contains(log, "wrong") || strings.Contains(log, "sk_bad") {
		t.Errorf("a token or a key is in the log:\n%s", log)
	}
}

func TestBadTokensAreThrottled(t *testing.T) {
	p := open(t, tokens(t), "")
	for range 20 { // a job that still uses an old token isn't guessing
		p.want(t, p.do(t, "GET", "/v1/rules", "", "Authorization: Bearer old"), 401, "UNAUTHORIZED")
	}
	last := answer{}
	for i := range 11 {
		last = p.do(t, "GET", "/v1/rules", "", fmt.Sprint("Authorization: Bearer guess", i))
	}
	p.want(t, last, 429, "TOO_MANY_ATTEMPTS")
	if last.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	// Good tokens still work: a client can't lock out others behind the same address.
	p.want(t, p.do(t, "GET", "/v1/rules", "", "Authorization: Bearer secret-ada"), 200, "")
	p.want(t, p.do(t, "GET", "/v1/rules", "", "Authorization: Bearer guess"), 429, "TOO_MANY_ATTEMPTS")
}

func TestPagesOfOtherSitesAreRefused(t *testing.T) {
	p := open(t, nil, "")
	const body = `{"entries": []}`
	p.want(t, p.do(t, "PUT", "/v1/denylist", body, "Origin: https://evil.example"), 403, "CROSS_SITE")
	p.want(t, p.do(t, "PUT", "/v1/denylist", body, "Sec-Fetch-Site: cross-site"), 403, "CROSS_SITE")
	p.want(t, p.do(t, "GET", "/v1/rules", "", "Host: evil.example"), 403, "CROSS_SITE")
	p.want(t, p.do(t, "PUT", "/v1/denylist?force=true", body, "Host: localhost:8082"), 200, "")
	if p.source.InForce().Version != 2 {
		t.Errorf("version %d, want 2: only one was let in", p.source.InForce().Version)
	}
}

// TestListsThatMatchEveryAddress checks that an entry that matches all addresses is rejected, and that one that matches very
// many needs force, each time.
func TestListsThatMatchEveryAddress(t *testing.T) {
	for _, list := range []string{"/v1/allowlist", "/v1/denylist"} {
		p := open(t, nil, "")
		for _, entry := range []string{"0.0.0.0/0", "::/0", "*"} {
			p.want(t, p.do(t, "PUT", list+"?force=true", `{"entries": ["`+entry+`"]}`), 422, "RULES_INVALID")
		}
		entries := `"0.0.0.0/1"`
		for _, more := range []string{"128.0.0.0/1", "sk_[a]", "sk_[b]", ""} {
			p.want(t, p.do(t, "PUT", list, `{"entries": [`+entries+`]}`), 422, "RULES_WARN")
			p.want(t, p.do(t, "PUT", list+"?force=true", `{"entries": [`+entries+`]}`), 200, "")
			entries += `, "` + more + `"`
		}
	}
}

func TestEdits(t *testing.T) {
	p := open(t, nil, "")
	for _, c := range []struct{ method, path, body, want string }{
		{"PUT", "/v1/rules/tier/pro", `{"limit": 800, "capacity": 500}`, "pro: {limit: 800/minute, burst: 500}"},
		{"PUT", "/v1/rules/id/login", `{"match": {"endpoint": "POST /login"}, "limit": "5/minute"}`, "login"},
		{"PUT", "/v1/rules/key", `{"key": "sk_vip", "rule": "search", "limit": "3000/minute"}`, "sk_vip"},
		{"PUT", "/v1/denylist", `{"entries": ["sk_revoked_*", "203.0.113.0/24"]}`, "203.0.113.0/24"},
	} {
		p.want(t, p.do(t, c.method, c.path, c.body), 200, "")
		if text := p.do(t, "GET", "/v1/rules", "").text; !strings.Contains(text, c.want) || !strings.HasPrefix(text, "# who may do how much\n") {
			t.Errorf("after %s %s:\n%s", c.method, c.path, text)
		}
	}
	p.want(t, p.do(t, "DELETE", "/v1/rules/id/login", ""), 200, "")
	p.want(t, p.do(t, "DELETE", "/v1/rules/key", `{"key": "sk_vip", "rule": "search"}`), 200, "")
	for path, body := range map[string]string{
		"/v1/rules/tier/nobody": `{"limit": 5}`,
		"/v1/rules/key":         `{"key": "k", "rule": "nothing", "limit": 5}`,
	} {
		p.want(t, p.do(t, "PUT", path, body), 404, "NOT_FOUND")
	}
	for path, body := range map[string]string{
		"/v1/rules/tier/pro": `{"limit": 5, "burst": 7}`,
		"/v1/rules/key":      `{"rule": "search", "limit": 5}`,
		"/v1/denylist":       `{}`,
		"/v1/allowlist":      `{"entries": []} {}`,
	} {
		p.want(t, p.do(t, "PUT", path, body), 400, "BAD_REQUEST")
	}
	p.want(t, p.do(t, "PUT", "/v1/rules/tier/pro", `{"limit": 0}`), 422, "RULES_INVALID")
}

func TestTheFileIsTheTruth(t *testing.T) {
	p := open(t, nil, "rules.yaml")
	for _, c := range [][3]string{
		{"PUT", "/v1/rules", rules}, {"PUT", "/v1/denylist", `{"entries": []}`}, {"POST", "/v1/rules/rollback", `{"version": 1}`}, {"GET", "/v1/rules/versions", ""},
	} {
		a := p.do(t, c[0], c[1], c[2], "If-Match: *")
		p.want(t, a, 409, "RULES_IN_FILE")
		if !strings.Contains(a.text, "rules.yaml") {
			t.Errorf("%s %s doesn't name the file: %s", c[0], c[1], a.text)
		}
	}
	a := p.do(t, "PUT", "/v1/denylist?dry_run=true", `{"entries": []}`)
	if p.want(t, a, 200, ""); !strings.Contains(a.text, "-blacklist") {
		t.Errorf("what it would change: %s", a.text)
	}
}

func TestCountersByRequest(t *testing.T) {
	p := open(t, nil, "")
	req := weir.Request{APIKey: "k", Method: "GET", Path: "/v1/search"}
	for range 5 {
		if _, err := p.limiter.Check(t.Context(), &req); err != nil {
			t.Fatal(err)
		}
	}
	const body = `{"key": "k", "method": "GET", "path": "/v1/search"}`
	counters := p.do(t, "POST", "/v1/counters", body).json(t)["counters"].([]any)
	// The most restrictive limit comes first, whatever the order of the rules.
	if c := counters[0].(map[string]any); c["rule"] != "search" || c["remaining"] != 25.0 || c["max"] != 30.0 {
		t.Errorf("got %v", counters)
	}
	if a := p.do(t, "POST", "/v1/counters/reset", body); a.json(t)["reset"] != 3.0 {
		t.Errorf("got %s", a.text)
	}
	counters = p.do(t, "POST", "/v1/counters", body).json(t)["counters"].([]any)
	if c := counters[1].(map[string]any); c["remaining"] != 30.0 {
		t.Errorf("after the reset %v", counters)
	}
}

// TestCountersInOrder checks that refusing limits come first, and that the counter that clients without an address
// share isn't shown as the client's.
func TestCountersInOrder(t *testing.T) {
	p := open(t, nil, "")
	const doc = `
rules:
  - {id: address, by: [ip], limit: 3/hour}
  - {id: half, limit: 8/hour}
  - {id: trial, limit: 1/day, shadow: true}
  - {id: minute, limits: [4/hour, 100/day]}
`
	p.want(t, p.do(t, "PUT", "/v1/rules?force=true", doc, "If-Match: *"), 200, "")
	var last weir.Decision
	for i := range 4 {
		req := weir.Request{APIKey: "k", IP: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
		last, _ = p.limiter.Check(t.Context(), &req)
	}
	if !last.Allowed {
		t.Fatal(last)
	}
	for range 3 { // counted for all clients without an address
		if _, err := p.limiter.Check(t.Context(), &weir.Request{APIKey: "other"}); err != nil {
			t.Fatal(err)
		}
	}
	of := func(body string) (out string) {
		for _, c := range p.do(t, "POST", "/v1/counters", body).json(t)["counters"].([]any) {
			c := c.(map[string]any)
			out += fmt.Sprint(c["policy"], " refuses ", c["refuses"], " shared ", c["shared_address"], "\n")
		}
		return out
	}
	want := "minute-1h refuses true shared false\nhalf refuses false shared false\nminute-1d refuses false shared false\naddress refuses true shared true\ntrial refuses true shared false\n"
	if got := of(`{"key": "k"}`); got != want {
		t.Errorf("got\n%s", got)
	}
	if got := of(`{"key": "k", "ip": "192.0.2.99"}`); !strings.Contains(got, "address refuses false shared false") {
		t.Errorf("with an address\n%s", got)
	}
}
