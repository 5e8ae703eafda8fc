package decisionlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
)

// bed is a limiter whose decisions are counted and written down.
type bed struct {
	t        testing.TB
	log      *Log
	limiter  *weir.Limiter
	registry *prometheus.Registry
}

func newBed(t testing.TB, l *Log, doc weir.Rules) *bed {
	t.Helper()
	rules, err := weir.Compile(doc)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, log: l, registry: prometheus.NewRegistry()}
	m := metrics.New(b.registry)
	b.limiter = weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{Observe: func(o *weir.Observation) {
		m.Observe(o)
		l.Observe(o)
	}})
	return b
}

func (b *bed) check(req weir.Request) weir.Decision {
	d, err := b.limiter.Check(b.t.Context(), &req)
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// decisions is what weir_decisions_total says of an outcome.
func (b *bed) decisions(outcome string) (sum uint64) {
	b.t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "weir_decisions_total" && m.Label[1].GetValue() == outcome {
				sum += uint64(m.Counter.GetValue())
			}
		}
	}
	return sum
}

// read takes a log apart: what its lines say, and how many decisions were left out, by outcome.
func read(t testing.TB, text string) (lines []map[string]any, leftOut map[string]uint64) {
	t.Helper()
	leftOut = map[string]uint64{}
	for l := range strings.Lines(text) {
		var v map[string]any
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		if n, ok := v["left_out"].(float64); ok {
			leftOut[v["outcome"].(string)] += uint64(n)
			continue
		}
		lines = append(lines, v)
	}
	return lines, leftOut
}

func (b *bed) close() {
	b.t.Helper()
	if err := b.log.Close(time.Minute); err != nil {
		b.t.Fatal(err)
	}
}

var orders = weir.Rule{ID: "orders", Match: weir.Match{Endpoint: "GET /v1/orders/{id}"}, Limits: []weir.Limit{weir.PerMinute(1)}}

func daily(n int64) weir.Limit { return weir.Limit{Count: n, Window: 24 * time.Hour} }

func TestLines(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, start(&out, "", Options{}), weir.Rules{
			Version: 42, Deny: []string{"sk_leaked_*"},
			Rules: []weir.Rule{orders, {ID: "users", By: []string{"user"}, Missing: weir.MissingRefuse, Match: weir.Match{Endpoint: "/me"}, Limits: orders.Limits}},
		})
		ip := netip.MustParseAddr("203.0.113.7")
		req := weir.Request{Edge: "gateway", APIKey: "sk_prod_secretsecret_c123", User: "ada@example.com", Method: "GET", Path: "/v1/orders/17", IP: ip}
		b.check(req) // admitted, and so without a line
		b.check(req)
		req.Peek = true
		b.check(req)
		b.check(weir.Request{APIKey: "sk_leaked_abcdefgh", Path: "/", Method: "FORGED\n{}"})
		b.check(weir.Request{Edge: "http", Path: "/me", Rejected: "the token has expired"})
		b.check(weir.Request{Edge: "http", Path: "/free", Rejected: "the token has expired"})
		b.limiter.Tell(&weir.Request{Edge: "check"}, weir.Decision{Reason: weir.ReasonOverloaded})
		b.close()
	})
	const want = `{"time":"2000-01-01T00:00:00.000Z","outcome":"refused","reason":"limited","rule":"orders","rules_version":42,"policy":"1/minute","key":"sk_prod_…c123","user":"ada@e…com","ip":"203.0.113.7","method":"GET","path":"/v1/orders/{id}","retry_after_ms":60000,"edge":"gateway","degraded":false}
{"time":"2000-01-01T00:00:00.000Z","outcome":"refused","reason":"denied","rule":"","rules_version":42,"policy":"","key":"sk_lea…efgh","ip":"","method":"other","path":"","retry_after_ms":-1,"edge":"library","degraded":false}
{"time":"2000-01-01T00:00:00.000Z","outcome":"refused","reason":"identity","rule":"users","rules_version":42,"policy":"","key":"","ip":"","method":"","path":"","retry_after_ms":-1,"edge":"http","degraded":false,"identity":"the token has expired"}
{"time":"2000-01-01T00:00:00.000Z","outcome":"allowed","reason":"unlimited","rule":"","rules_version":42,"policy":"","key":"","ip":"","method":"","path":"","retry_after_ms":0,"edge":"http","degraded":false,"identity":"the token has expired"}
{"time":"2000-01-01T00:00:00.000Z","outcome":"refused","reason":"overloaded","rule":"","rules_version":0,"policy":"","key":"","ip":"","method":"","path":"","retry_after_ms":0,"edge":"check","degraded":false}
`
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// A flood has a bounded number of lines a second, all others are told as left out, and nothing is lost: together they are
// what the metrics have counted.
func TestFlood(t *testing.T) {
	const seconds, perCore = 3, 25_000
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, start(&out, "", Options{}), weir.Rules{Rules: []weir.Rule{
			{ID: "api", Limits: []weir.Limit{daily(1)}},
			{ID: "quiet", Match: weir.Match{Endpoint: "/quiet"}, By: []string{"user"}, Missing: weir.MissingSkip, Limits: []weir.Limit{daily(1)}},
		}})
		for s := range seconds {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range perCore {
						b.check(weir.Request{APIKey: "flood"})
					}
				})
			}
			wg.Wait()
			if s == 1 { // another rule's refusals aren't hidden by the flood
				b.check(weir.Request{APIKey: "x", User: "u", Path: "/quiet"})
				b.check(weir.Request{APIKey: "y", User: "u", Path: "/quiet"})
			}
			synctest.Wait()
			if n := b.log.Stats().Written; n > uint64(s+1)*(perReason+2) {
				t.Errorf("%d lines after %d s", n, s+1)
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		b.close()
		lines, leftOut := read(t, out.String())
		if refused := b.decisions("refused"); refused != 4*seconds*perCore || uint64(len(lines))+leftOut["refused"] != refused {
			t.Errorf("%d lines and %d left out are not the %d refusals", len(lines), leftOut["refused"], refused)
		}
		if quiet := strings.Count(out.String(), `"rule":"quiet"`); quiet != 1 || len(lines) != seconds*perReason+quiet {
			t.Errorf("%d lines, %d of them of the quiet rule", len(lines), quiet)
		}
		if s := b.log.Stats(); s.LeftOut != leftOut["refused"] || s.Written != uint64(strings.Count(out.String(), "\n")) || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// All rules together are bounded, too, and admitted requests leave half of the lines to refusals.
func TestBoundOfAllRules(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		doc := weir.Rules{}
		for i := range 40 {
			doc.Rules = append(doc.Rules, weir.Rule{ID: fmt.Sprint("r", i), Match: weir.Match{Endpoint: fmt.Sprint("/", i)}, Limits: []weir.Limit{daily(100)}})
		}
		b := newBed(t, start(&out, "", Options{Sample: 1}), doc)
		for range 200 {
			for i := range 40 {
				b.check(weir.Request{APIKey: "k", Path: fmt.Sprint("/", i)})
			}
		}
		b.close()
		lines, leftOut := read(t, out.String())
		count := map[any]uint64{}
		for _, l := range lines {
			count[l["outcome"]]++
		}
		for _, outcome := range []string{"allowed", "refused"} {
			if n := count[outcome]; n != perSecond/2 || n+leftOut[outcome] != b.decisions(outcome) || b.decisions(outcome) != 4000 {
				t.Errorf("%s: %d lines, %d left out", outcome, n, leftOut[outcome])
			}
		}
	})
}

// More rules than are told apart share a tally, and are still counted one by one.
func TestManyRules(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, start(&out, "", Options{}), weir.Rules{})
		for i := range maxTallies + 500 {
			for range 3 {
				b.limiter.Tell(&weir.Request{}, weir.Decision{Reason: weir.ReasonOverloaded, Rule: fmt.Sprint("r", i)})
			}
		}
		b.close()
		lines, leftOut := read(t, out.String())
		if n := uint64(len(lines)) + leftOut["refused"]; n != 3*(maxTallies+500) || len(*b.log.table.Load()) > maxTallies+1 {
			t.Errorf("%d of %d, %d tallies", n, 3*(maxTallies+500), len(*b.log.table.Load()))
		}
	})
}

func TestSample(t *testing.T) {
	var out bytes.Buffer
	l := start(&out, "", Options{Sample: 0.1})
	n := 0
	for range 10_000 {
		if l.sampled() {
			n++
		}
	}
	if n < 700 || n > 1300 { // 10 standard deviations
		t.Errorf("%d of 10,000 with a rate of 0.1", n)
	}
	if err := l.Close(time.Minute); err != nil {
		t.Error(err)
	}
}

// stuck is a pipe that nobody reads from, until it is released.
type stuck struct {
	bytes.Buffer
	release chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.release
	return s.Buffer.Write(p)
}

// Whoever checks never waits for a disk or a pipe: what it doesn't take is left out. Nor does a node that ends wait for long.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &stuck{release: make(chan struct{})}
		b := newBed(t, start(out, "", Options{}), weir.Rules{Rules: []weir.Rule{orders}})
		for range 20 {
			for range 5000 {
				b.check(weir.Request{APIKey: "k", Method: "GET", Path: "/v1/orders/1"})
			}
			time.Sleep(time.Second)
		}
		before := time.Now()
		if err := b.log.Close(2 * time.Second); err == nil || time.Since(before) != 2*time.Second {
			t.Errorf("%v after %s", err, time.Since(before))
		}
		close(out.release)
		<-b.log.closed
		lines, leftOut := read(t, out.String())
		if refused := b.decisions("refused"); refused < 99_000 || uint64(len(lines))+leftOut["refused"] != refused || len(lines) > perReason {
			t.Errorf("%d lines and %d left out of %d", len(lines), leftOut["refused"], refused)
		}
	})
}

// narrow takes as many bytes as there is room, and then fails, as a disk does.
type narrow struct {
	bytes.Buffer
	room int
}

func (n *narrow) Write(p []byte) (int, error) {
	fits := min(n.room, len(p))
	n.room -= fits
	n.Buffer.Write(p[:fits])
	if fits < len(p) {
		return fits, errors.New("no space left on device")
	}
	return fits, nil
}

// A line that was cut in the middle spoils no other, and counts as left out.
func TestTornLine(t *testing.T) {
	for room := range 700 { // two lines, and whatever fits
		var told bytes.Buffer
		synctest.Test(t, func(t *testing.T) {
			out := &narrow{room: room}
			b := newBed(t, start(out, "", Options{Logger: slog.New(slog.NewTextHandler(&told, nil))}), weir.Rules{Rules: []weir.Rule{orders}})
			for i := range 7 {
				if i == 5 {
					out.room = 1 << 20
				}
				b.check(weir.Request{APIKey: "k", Method: "GET", Path: "/v1/orders/1"})
				synctest.Wait()
			}
			time.Sleep(time.Second)
			b.close()
			var whole []string
			for l := range strings.Lines(out.String()) {
				if json.Valid([]byte(l)) {
					whole = append(whole, l)
				}
			}
			lines, leftOut := read(t, strings.Join(whole, ""))
			if n := uint64(len(lines)) + leftOut["refused"]; n != 6 || strings.Count(out.String(), "\n") > len(whole)+1 {
				t.Errorf("room for %d: %d of 6 decisions:\n%s", room, n, out)
			}
		})
		if strings.Count(told.String(), "can't be written") != 1 || strings.Count(told.String(), "written again") != 1 {
			t.Fatalf("room for %d: %s", room, told.String())
		}
	}
}

// A disk that is full is told once, costs no check anything, and what it didn't take is told afterwards.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.log")
	if err := os.Symlink("/dev/full", path); err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		l, err := Open(path, Options{Logger: slog.New(slog.NewTextHandler(&told, nil))})
		if err != nil {
			t.Fatal(err)
		}
		b := newBed(t, l, weir.Rules{Rules: []weir.Rule{orders}})
		for range 10 {
			for range 100 {
				b.check(weir.Request{APIKey: "k", Method: "GET", Path: "/v1/orders/1"})
			}
			time.Sleep(time.Second)
		}
		if l.Stats().Failures == 0 {
			t.Error("no write has failed")
		}
		if err := os.Remove(path); err != nil { // as whoever makes room does
			t.Fatal(err)
		}
		l.Reopen()
		synctest.Wait()
		b.close()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines, leftOut := read(t, string(text))
		if n := uint64(len(lines)) + leftOut["refused"]; n != b.decisions("refused") || n < 990 {
			t.Errorf("%d of %d decisions:\n%s", n, b.decisions("refused"), text)
		}
	})
	if strings.Count(told.String(), "can't be written") != 1 || !strings.Contains(told.String(), "no space left on device") {
		t.Errorf("told: %s", told.String())
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// A log that was moved is begun anew, and one that is there is appended to. If the name can't be opened, the old file stays.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	path, moved := filepath.Join(dir, "d.log"), filepath.Join(dir, "d.log.1")
	if err := os.WriteFile(path, []byte("{\"before\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		l, err := Open(path, Options{Logger: slog.New(slog.NewTextHandler(&told, nil))})
		if err != nil {
			t.Fatal(err)
		}
		b := newBed(t, l, weir.Rules{Rules: []weir.Rule{orders}})
		refuse := func() {
			b.check(weir.Request{APIKey: "k", Method: "GET", Path: "/v1/orders/1"})
			synctest.Wait()
		}
		refuse() // is admitted
		refuse()
		if err := os.Rename(path, moved); err != nil {
			t.Fatal(err)
		}
		refuse()
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		l.Reopen()
		refuse()
		if !strings.Contains(told.String(), "the file that is open stays") {
			t.Errorf("told: %s", told.String())
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		l.Reopen()
		refuse()
		b.close()
	})
	for file, want := range map[string]int{moved: 4, path: 1} {
		if text, err := os.ReadFile(file); err != nil || bytes.Count(text, []byte("\n")) != want {
			t.Errorf("%s: %v\n%s", file, err, text)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "no", "such"), pipe} {
		if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
