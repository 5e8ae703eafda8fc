package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"github.com/weirhq/weir/server/internal/load"
	"go.uber.org/goleak"
)

// benched is the result of weir bench.
type benched struct {
	stdout, stderr string
	code           int
	err            error
}

// runBench runs weir bench in this process.
func runBench(ctx context.Context, args ...string) benched {
	var stdout, stderr bytes.Buffer
	cmd := root()
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(append([]string{"bench"}, args...))
	err := cmd.ExecuteContext(ctx)
	b := benched{stdout: stdout.String(), stderr: stderr.String(), err: err}
	var e *exit
	switch {
	case errors.As(err, &e):
		b.code = e.code
	case err != nil:
		b.code = exitUsage
	}
	return b
}

func (b benched) report(t *testing.T) *load.Report {
	t.Helper()
	var r load.Report
	if err := json.Unmarshal([]byte(b.stdout), &r); err != nil {
		t.Fatalf("%v in %q; error %v", err, b.stdout, b.err)
	}
	return &r
}

func TestBenchInProcess(t *testing.T) {
	defer goleak.VerifyNone(t)
	b := runBench(t.Context(), "--duration", "250ms", "--warmup", "10ms", "--concurrency", "2", "--keys", "100", "--json")
	r := b.report(t)
	if b.code != 0 || r.Checks == 0 || r.Allowed != r.Checks || r.Loop != "closed" || r.TimedOneIn != load.InProcessSample || r.Keys != 100 {
		t.Errorf("exit %d, %v: %+v", b.code, b.err, r)
	}
	if r.Verdict != nil || r.Interrupted || b.stderr != "" {
		t.Errorf("%+v, stderr %q", r, b.stderr)
	}
}

func TestBenchInProcessByRules(t *testing.T) {
	defer goleak.VerifyNone(t)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte("rules:\n  - id: few\n    limit: 10/day\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := runBench(t.Context(), "--duration", "250ms", "--warmup", "0s", "--distribution", "hot", "--rules", file)
	for _, want := range []string{"in process, rules of " + file, "closed loop", "one key", "allowed", "p99.9", "1 check in 16"} {
		if !strings.Contains(b.stdout, want) {
			t.Errorf("no %q in\n%s", want, b.stdout)
		}
	}
	r := runBench(t.Context(), "--duration", "250ms", "--warmup", "0s", "--distribution", "hot", "--rules", file, "--json").report(t)
	if r.Allowed != 10 || r.Refused != r.Checks-10 {
		t.Errorf("%d checks, %d allowed, %d refused", r.Checks, r.Allowed, r.Refused)
	}
}

// With a single Redis, the CPU time of Redis is measured. With several servers, the report says that it isn't.
func TestBenchOverRedis(t *testing.T) {
	short := []string{"--duration", "1s", "--warmup", "10ms", "--concurrency", "2"}
	single, watched := redistest.New(t, redistest.Options{}), redistest.NewSentinel(t, redistest.Options{})
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	url := "redis://" + single.Addr
	r := runBench(t.Context(), append(short, "--store", url, "--json")...).report(t)
	if r.Checks == 0 || r.Allowed != r.Checks || r.TimedOneIn != load.InProcessSample || r.StoreCPU == nil || r.StoreCPU.PerMillion <= 0 || r.StoreCPU.Unknown != "" {
		t.Errorf("%+v, %+v", r, r.StoreCPU)
	}
	if b := runBench(t.Context(), append(short, "--store", url)...); !strings.Contains(b.stdout, "in process, "+url+", a rule that refuses nobody") || !strings.Contains(b.stdout, "in the store's server") {
		t.Errorf("exit %d, %v:\n%s", b.code, b.err, b.stdout)
	}
	// The benchmark doesn't touch the counters and nodes of others who use this Redis.
	if n, err := single.Do(t.Context(), "EXISTS", "weir{nodes}", "weir{nodes}secret", "weir-bench{nodes}secret"); err != nil || n != int64(0) {
		t.Errorf("%v keys, %v", n, err)
	}
	url = "redis-sentinel://" + strings.Join(watched.Addrs(), ",") + "/" + redistest.MasterName
	r = runBench(t.Context(), append(short, "--store", url, "--json")...).report(t)
	if r.Checks == 0 || r.StoreCPU == nil || !strings.Contains(r.StoreCPU.Unknown, "not measured") {
		t.Errorf("%+v, %+v", r, r.StoreCPU)
	}
}

// Nodes that share a Redis admit at most the limit, and the report has their calls to Redis.
func TestBenchOfNodesOnOneRedis(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	few := []string{"--store", "redis://" + server.Addr, "--duration", "500ms", "--warmup", "0s", "--concurrency", "8", "--keys", "3", "--limit", "20/day"}
	for run := range 2 { // each with fresh counters
		// Refusals are cached: the more checks there are, the fewer of them ask Redis. A slow machine makes only a few
		// checks in half a second.
		for length := 500 * time.Millisecond; ; length *= 2 {
			b := runBench(t.Context(), append(few, "--nodes", "3", "--json", "--duration", length.String(), "--key-prefix", fmt.Sprint(run, length))...)
			r := b.report(t)
			if b.code != 0 || r.Nodes != 3 || !strings.Contains(r.Target, "3 nodes, redis://") || !strings.Contains(r.Target, "20/day for each client") {
				t.Fatalf("exit %d, %v: %+v", b.code, b.err, r)
			}
			if r.Degraded == 0 && r.Allowed > 3*20 {
				t.Errorf("%d allowed: %+v", r.Allowed, r)
			}
			l, c := r.Leases, r.StoreCalls
			if l != nil && c != nil && l.LocalShare >= 0.5 && l.AskedPerCheck <= 0.5 && c.PerCheck <= 0.5 {
				break
			}
			if l == nil || c == nil || length > 10*time.Second {
				t.Fatalf("%d checks in %v: %+v, %+v", r.Checks, length, l, c)
			}
		}
	}
	b := runBench(t.Context(), append(few, "--leases=false", "--json")...)
	r := b.report(t)
	if b.code != 0 || r.Leases != nil || r.Degraded == 0 && r.Allowed != 3*20 || r.StoreCalls.PerCheck <= 0 {
		t.Errorf("exit %d, %v: %+v %+v", b.code, b.err, r, r.StoreCalls)
	}
	text := runBench(t.Context(), append(few, "--nodes", "2")...).stdout
	for _, want := range []string{"2 nodes, redis://", "of charges decided without the store", "store calls", "store CPU"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func benchNode(t *testing.T) *httptest.Server {
	t.Helper()
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "orders", Match: weir.Match{Endpoint: "POST /v1/orders"}, Limits: []weir.Limit{weir.PerHour(3)}}}})
	if err != nil {
		t.Fatal(err)
	}
	answers, err := httplimit.NewAnswerer(httplimit.Answers{})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(checkapi.New(weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{}), answers, checkapi.Options{}))
	t.Cleanup(func() { s.Close(); goleak.VerifyNone(t) })
	return s
}

func TestBenchOfANode(t *testing.T) {
	node := benchNode(t)
	b := runBench(t.Context(), node.URL, "--duration", "250ms", "--warmup", "0s", "--rate", "200/s", "--poisson", "--concurrency", "8", "--json", "--quiet")
	r := b.report(t)
	if b.code != 0 || r.Checks == 0 || r.Allowed != r.Checks || r.Target != "POST "+node.URL+"/v1/check" || r.TimedOneIn != 1 {
		t.Errorf("exit %d, %v: %+v", b.code, b.err, r)
	}
	if o := r.OpenLoop; r.Loop != "open" || !r.Poisson || o == nil || o.Due != o.Sent+o.Dropped || o.Sent != r.Checks {
		t.Errorf("%+v, %+v", r, o)
	}
	// With a whole URL, --method and --path belong to the checks. One token is taken by the first look at the node.
	b = runBench(t.Context(), node.URL+"/v1/check", "--method", "POST", "--path", "/v1/orders", "--keys", "1",
		"--duration", "250ms", "--warmup", "0s", "--concurrency", "2", "--json")
	if r = b.report(t); r.Allowed != 2 || r.Refused == 0 || r.Statuses[http.StatusTooManyRequests] != r.Refused {
		t.Errorf("exit %d, %v: %+v", b.code, b.err, r)
	}
}

func TestBenchOfAnEndpoint(t *testing.T) {
	var bad atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete || !strings.HasPrefix(r.URL.Path, "/v1/orders/") || !strings.HasPrefix(r.Header.Get("X-API-Key"), "sk_") ||
			r.Header.Get("X-Tenant") != "acme" || !strings.HasSuffix(r.Header.Get("X-API-Key"), strings.TrimPrefix(r.URL.Path, "/v1/orders/")) {
			bad.Store(r.Method + " " + r.URL.Path + " " + r.Header.Get("X-API-Key"))
		}
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer goleak.VerifyNone(t)
	defer s.Close()
	for _, args := range [][]string{{s.URL + "/v1/orders/{n}"}, {s.URL, "--path", "/v1/orders/{n}"}} {
		b := runBench(t.Context(), append(args, "--method", "DELETE", "--key-prefix", "sk_", "--header", "X-Tenant: acme",
			"--duration", "250ms", "--warmup", "0s", "--concurrency", "2", "--json")...)
		r := b.report(t)
		if b.code != 0 || r.Checks == 0 || r.Refused != r.Checks || bad.Load() != nil {
			t.Errorf("exit %d, %v: %+v; got %v", b.code, b.err, r, bad.Load())
		}
	}
}

func TestBenchVerdict(t *testing.T) {
	defer goleak.VerifyNone(t)
	short := []string{"--duration", "250ms", "--warmup", "0s", "--concurrency", "1"}
	if b := runBench(t.Context(), append(short, "--max-p99", "1h", "--min-rate", "1/hour")...); b.code != 0 || !strings.Contains(b.stdout, "verdict") {
		t.Errorf("exit %d, %v:\n%s", b.code, b.err, b.stdout)
	}
	b := runBench(t.Context(), append(short, "--max-p99", "1ns", "--min-rate", "1e12", "--json")...)
	if r := b.report(t); b.code != 1 || r.Verdict.OK || len(r.Verdict.Missed) != 2 {
		t.Errorf("exit %d, %v: %+v", b.code, b.err, r.Verdict)
	}
	if !strings.Contains(b.err.Error(), "more than 1ns") || !strings.Contains(b.err.Error(), "fewer than 1,000,000,000,000") {
		t.Errorf("got %q", b.err)
	}
}

func TestBenchStopsEarly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if n.Add(1) == 100 {
			cancel()
		}
	}))
	defer goleak.VerifyNone(t)
	defer s.Close()
	b := runBench(ctx, s.URL+"/x", "--duration", "1h", "--warmup", "0s", "--concurrency", "2", "--json")
	if r := b.report(t); b.code != 0 || !r.Interrupted || r.Checks < 90 || r.Errors != 0 {
		t.Errorf("exit %d, %v: %+v", b.code, b.err, r)
	}
	if b := runBench(ctx, "--duration", "1h"); b.code != exitUnavailable || b.err.Error() != "stopped before anything was measured" {
		t.Errorf("exit %d, %v", b.code, b.err)
	}
}

func TestBenchWhereNothingAnswers(t *testing.T) {
	defer goleak.VerifyNone(t)
	l, err := net.Listen("tcp", loopback.Host()+":0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	b := runBench(t.Context(), addr, "--duration", "1h")
	if b.code != exitUnavailable || !strings.Contains(b.err.Error(), "nothing answers at http://"+addr+"/v1/check: ") || b.stdout != "" {
		t.Errorf("exit %d, %v:\n%s", b.code, b.err, b.stdout)
	}
}

func TestBenchOfAnotherServer(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer goleak.VerifyNone(t)
	defer s.Close()
	b := runBench(t.Context(), s.URL, "--duration", "1h")
	if b.code != exitUnavailable || !strings.Contains(b.err.Error(), "answers 404: is it a Weir node?") {
		t.Errorf("exit %d, %v", b.code, b.err)
	}
}

// The target goes away during the measurement.
func TestBenchWhenAnswersEnd(t *testing.T) {
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if n.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
	}))
	defer goleak.VerifyNone(t)
	defer s.Close()
	b := runBench(t.Context(), s.URL+"/x", "--method", "POST", "--duration", "250ms", "--warmup", "0s", "--concurrency", "2", "--json")
	if r := b.report(t); b.code != exitUnavailable || r.Errors == 0 || r.Checks != 0 || !strings.Contains(b.err.Error(), "nothing answered at "+s.URL+"/x: ") {
		t.Errorf("exit %d, %v: %+v", b.code, b.err, r)
	}
}

func TestBenchMistakes(t *testing.T) {
	for want, args := range map[string][]string{
		"--duration: must be more than 0":                                  {"--duration", "0s"},
		"--concurrency: must be from 1":                                    {"--concurrency", "0"},
		"--keys: must be from 1":                                           {"--keys", "-5"},
		`--rate: must be a rate such as 500/s or 30000/minute, got "fast"`: {"--rate", "fast"},
		"--rate: must be from 0 to":                                        {"--rate", "1e9"},
		"--poisson: needs":                                                 {"--poisson"},
		`--distribution: must be uniform, zipf or hot, got "normal"`:       {"--distribution", "normal"},
		"--zipf: must be more than 1":                                      {"--distribution", "zipf", "--zipf", "1"},
		"--zipf: needs --distribution zipf":                                {"--zipf", "2"},
		"--cost: must be from 0":                                           {"--cost", "-1"},
		"--cost: is for checks":                                            {"127.0.0.1:1/x", "--cost", "2"},
		"--rules: is for checks in this process":                           {"127.0.0.1:1", "--rules", "x.yaml"},
		"--store: is for checks in this process":                           {"127.0.0.1:1", "--store", "redis://127.0.0.1"},
		"--store: store URL: must begin with redis://":                     {"--store", "nonsense"},
		"URL: must be that of a node or an endpoint":                       {"redis://u:p@127.0.0.1:1"},
		"--nodes: needs a Redis as --store":                                {"--nodes", "2"},
		"--nodes: must be from 1 to 100":                                   {"--store", "redis://127.0.0.1", "--nodes", "0"},
		"--nodes: is for checks in this process":                           {"127.0.0.1:1", "--nodes", "2"},
		"--leases: needs a Redis as --store":                               {"--leases=false"},
		"--limit: is for checks in this process":                           {"127.0.0.1:1", "--limit", "5/s"},
		"--limit: must be a count and a window":                            {"--limit", "5"},
		"--limit: limit: must be at least 1":                               {"--limit", "0/s"},
		"--limit: is a rule of its own":                                    {"--limit", "5/s", "--rules", "x.yaml"},
		"--header: needs a URL":                                            {"--header", "a: b"},
		"--header: must be":                                                {"127.0.0.1:1", "--header", "nonsense"},
		"--key-header: is for endpoints":                                   {"127.0.0.1:1", "--key-header", "X-Key"},
		"--timeout: must be more than 0":                                   {"127.0.0.1:1", "--timeout", "0s"},
		"--max-p99: must not be negative":                                  {"--max-p99", "-1s"},
		"--key-prefix: must be":                                            {"--key-prefix", "a\nb"},
		"--path: the URL has a path already":                               {"127.0.0.1:1/x", "--path", "/y"},
		"--path: must be a path":                                           {"127.0.0.1:1", "--path", "y"},
		`URL: must be such as`:                                             {"ftp://example.org"},
		`URL: must be such as http://127.0.0.1:8080, got ":"`:              {":"},
		"URL: must not hold a password":                                    {"http://u:p@127.0.0.1:1"},
		"no such file":                                                     {"--rules", filepath.Join(t.TempDir(), "none.yaml")},
		"weir bench takes [URL], got 2 arguments":                          {"a", "b"},
		"unknown flag: --nonsense":                                         {"--nonsense"},
	} {
		b := runBench(t.Context(), args...)
		if b.code != exitUsage || b.err == nil || !strings.Contains(b.err.Error(), want) {
			t.Errorf("%q: exit %d, %v, want %q", args, b.code, b.err, want)
		}
		if b.err != nil && strings.Contains(b.err.Error(), "u:p") {
			t.Error("the password is shown")
		}
	}
}

func TestBenchRates(t *testing.T) {
	for text, want := range map[string]float64{"0": 0, "500": 500, "500/s": 500, "0.5": 0.5, "30000/minute": 500, "1e3": 1000, "36 per hour": 0.01} {
		if r, err := parseRate(text); err != nil || r != want {
			t.Errorf("%q is %v, %v, want %v", text, r, err, want)
		}
	}
	for _, text := range []string{"", "-1", "fast", "5/0s", "-5/minute", "NaN", "Inf"} {
		if r, err := parseRate(text); err == nil {
			t.Errorf("%q is %v", text, r)
		}
	}
}

func TestBenchHelpHasExamples(t *testing.T) {
	b := runBench(t.Context(), "--help")
	for _, want := range []string{"Examples:", "weir bench 127.0.0.1:8080 --rate 2000/s --max-p99 10ms", "--distribution", "Exit 0"} {
		if !strings.Contains(b.stdout, want) {
			t.Errorf("no %q in\n%s", want, b.stdout)
		}
	}
}
