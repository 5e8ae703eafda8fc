package imports

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// sides has two services: one with a configuration, the other with the rules imported from it.
type sides struct{ configured, imported *envoy.Service }

func newSides(t *testing.T, files []envoy.File, r *Result) sides {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	config, _, err := envoy.Parse(files, envoy.Modes{})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := rulefile.Parse("rules.yaml", r.Text)
	if err != nil {
		t.Fatalf("%v\n%s", err, r.Text)
	}
	s := sides{
		envoy.New(weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{}), envoy.Options{Configured: true, Logger: quiet}),
		envoy.New(weir.NewLimiter(memstore.New(memstore.Options{}), rules.Set, weir.Options{}), envoy.Options{Logger: quiet}),
	}
	s.configured.SetConfig(config)
	return s
}

// codes returns the codes of a response.
func codes(t *testing.T, s *envoy.Service, req *rls.RateLimitRequest) string {
	t.Helper()
	a, err := s.ShouldRateLimit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	out := a.OverallCode.String()
	for _, st := range a.Statuses {
		out += " " + st.Code.String()
	}
	return out
}

// compare sends the same requests to both sides, and returns how many were refused.
func (s sides) compare(t *testing.T, n int, random func() *rls.RateLimitRequest, rnd *rand.Rand, r *Result) (refused int) {
	t.Helper()
	for range n {
		req := random()
		want, got := codes(t, s.configured, req), codes(t, s.imported, req)
		if got != want {
			t.Fatalf("%v\ngot  %s\nwant %s\n%s", req, got, want, r.Text)
		}
		if strings.HasPrefix(want, "OVER") {
			refused++
		}
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
	}
	return refused
}

// generator writes configurations that can be imported exactly, and requests for them.
type generator struct {
	*rand.Rand
	names int
}

var (
	someKeys   = []string{"api_key", "path", "weird.key_1"}
	someValues = []string{"", "", "a", "ab", "abc", "/v1/x", "10", "true", "a*", "*c", "a*c", "*", "with space", "é#:{}[]", `"quoted"`}
	askValues  = []string{"", "a", "ab", "abc", "ac", "/v1/x", "10", "true", "with space", "é#:{}[]", `"quoted"`, "a*", "zzz"}
	someUnits  = []string{"second", "minute", "HOUR", "day", "week", "month", "year"}
)

func pick[T any](g *rand.Rand, list []T) T { return list[g.IntN(len(list))] }

func (g *generator) descriptors(b *strings.Builder, indent string, depth int) {
	seen := map[string]bool{}
	for range 1 + g.IntN(5) {
		key, value := pick(g.Rand, someKeys), pick(g.Rand, someValues)
		if seen[key+"="+value] {
			continue
		}
		seen[key+"="+value] = true
		fmt.Fprintf(b, "%s- key: %q\n", indent, key)
		if value != "" {
			fmt.Fprintf(b, "%s  value: %q\n", indent, value)
		}
		switch g.IntN(10) {
		case 0, 1: // no limit
		case 2:
			fmt.Fprintf(b, "%s  rate_limit: {unlimited: true}\n", indent)
		default:
			name := ""
			if g.names++; g.IntN(3) == 0 {
				name = fmt.Sprintf(", name: \"n %d\"", g.names)
			}
			fmt.Fprintf(b, "%s  rate_limit: {unit: %s, requests_per_unit: %d%s}\n", indent, pick(g.Rand, someUnits), 1+g.IntN(6), name)
		}
		for _, flag := range []string{"shadow_mode", "detailed_metric"} {
			if g.IntN(8) == 0 {
				fmt.Fprintf(b, "%s  %s: true\n", indent, flag)
			}
		}
		if depth < 3 && g.IntN(3) == 0 {
			fmt.Fprintf(b, "%s  descriptors:\n", indent)
			g.descriptors(b, indent+"    ", depth+1)
		}
	}
}

func (g *generator) request(domain string) *rls.RateLimitRequest {
	req := &rls.RateLimitRequest{Domain: domain, HitsAddend: uint32(g.IntN(3))}
	for range 1 + g.IntN(3) {
		d := &ratelimit.RateLimitDescriptor{}
		for range 1 + g.IntN(6)/4 {
			d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: pick(g.Rand, someKeys), Value: pick(g.Rand, askValues)})
		}
		if g.IntN(4) == 0 {
			d.HitsAddend = wrapperspb.UInt64(uint64(g.IntN(4)))
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// TestImportedEnvoyDecidesTheSame checks that generated configurations and the rules imported from them decide the
// same.
func TestImportedEnvoyDecidesTheSame(t *testing.T) {
	refused := 0
	for seed := range uint64(300) {
		g := &generator{Rand: rand.New(rand.NewPCG(seed, 1))}
		var b strings.Builder
		b.WriteString("domain: edge\ndescriptors:\n")
		g.descriptors(&b, "  ", 1)
		files := []envoy.File{{Name: "edge.yaml", Text: []byte(b.String())}}
		r, err := Envoy(files)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, b.String())
		}
		if i := slices.IndexFunc(r.Notes, func(n Note) bool { return n.Differs }); i >= 0 {
			t.Fatalf("seed %d: %v", seed, r.Notes[i])
		}
		if r.Rules == 0 {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			refused += newSides(t, files, r).compare(t, 100, func() *rls.RateLimitRequest { return g.request("edge") }, g.Rand, r)
		})
	}
	if refused < 1000 {
		t.Errorf("only %d requests were refused: this shows little", refused)
	}
}

// TestImportedRecordedConfigDecidesTheSame checks that the recorded configurations and the rules imported from them
// decide the same, except where the report says that they differ.
func TestImportedRecordedConfigDecidesTheSame(t *testing.T) {
	files := recorded(t)
	r, err := Envoy(files)
	if err != nil {
		t.Fatal(err)
	}
	differs := map[string]bool{}
	for _, n := range r.Notes {
		if _, label, ok := strings.Cut(n.Where, ": "); ok && n.Differs {
			differs[label] = true
		}
	}
	// bank.plan differs because plan=gold replaces the limit of account. The others use keys or numbers that rules
	// can't express.
	want := []string{"bank.plan", "mesh.model", "mesh.path", "mesh.user.action", "shop.closed"}
	for _, w := range want {
		if !differs[w] {
			t.Errorf("the report doesn't say that %s differs", w)
		}
	}
	if len(differs) != len(want) {
		t.Error(differs)
	}
	shapes := map[string][][]string{
		"bank": {{"account"}},
		"shop": {{"api_key"}, {"path"}, {"tenant"}, {"tenant", "route"}, {"tenant", "route", "method"}, {"shady"}, {"noted"}, {"unknown"}},
	}
	values := []string{"vip", "internal", "a", "/v1/exact", "/v1/other", "/v2", "search", "POST"}
	rnd := rand.New(rand.NewPCG(1, 2))
	synctest.Test(t, func(t *testing.T) {
		refused := newSides(t, files, r).compare(t, 5000, func() *rls.RateLimitRequest {
			domain := pick(rnd, []string{"shop", "bank"})
			req := &rls.RateLimitRequest{Domain: domain}
			for range 1 + rnd.IntN(3) {
				d := &ratelimit.RateLimitDescriptor{}
				for _, key := range pick(rnd, shapes[domain]) {
					d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: pick(rnd, values)})
				}
				req.Descriptors = append(req.Descriptors, d)
			}
			return req
		}, rnd, r)
		if refused < 500 {
			t.Errorf("%d were refused", refused)
		}
	})
}

func recorded(t *testing.T) []envoy.File {
	t.Helper()
	paths, err := filepath.Glob("../../edge/envoy/testdata/recorded/config/*.yaml")
	if err != nil || len(paths) != 3 {
		t.Fatal(paths, err)
	}
	var files []envoy.File
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, envoy.File{Name: path, Text: text})
	}
	return files
}

// TestEnvoyReport checks the report on what can't be imported exactly.
func TestEnvoyReport(t *testing.T) {
	text := `
domain: edge
descriptors:
  - {key: a, value: "x*", share_threshold: true, descriptors: [{key: b, rate_limit: {unit: week, requests_per_unit: 7}}]}
  - {key: c, quota_mode: true, metadata: {x: y}, rate_limit: {unit: month, requests_per_unit: 3, name: Big Pool, replaces: [{name: z}]}}
  - {key: d, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: "e=f", rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: g, rate_limit: {unlimited: true}}
  - {key: h, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 4294967295}}
  - {key: h, value: free}
  - {key: "i-*", value: "i-*", rate_limit: {unit: hour, requests_per_unit: 6}}
`
	r, err := Envoy([]envoy.File{{Name: "/etc/edge.yaml", Text: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"  # share_threshold: there all values share one counter; here each has its own\n  - id: edge-a-b\n    match: {descriptor: [edge, \"a=x*\", b]}\n    algorithm: fixed_window\n    limit: 7/7d\n    past_limit: count\n",
		"  - id: edge-big-pool\n", "limit: 3/30d\n", "limit: 1/365d\n", "limit: 4294967295/second\n    past_limit: count\n    shadow: true\n",
		"  # edge.yaml: edge.e=f: the key has a =", "[edge, \"i-*=i-*\"]", "match: {descriptor: [edge, h=free]}\n    algorithm: fixed_window\n    limit: 9000000000/second\n",
	} {
		if !strings.Contains(string(r.Text), want) {
			t.Errorf("%q isn't in\n%s", want, r.Text)
		}
	}
	var notes []string
	for _, n := range r.Notes {
		notes = append(notes, fmt.Sprint(n.Differs, " ", n))
	}
	for _, want := range []string{
		"true edge.yaml: edge.a.b: rule edge-a-b: share_threshold", "true edge.yaml: edge.c: rule edge-big-pool: quota_mode", "true edge.yaml: edge.c: rule edge-big-pool: replaces",
		"false edge.yaml: edge.c: rule edge-big-pool: metadata", "true edge.yaml: edge.d: rule edge-d: requests_per_unit is 0", "false edge.yaml: edge.d: rule edge-d: detailed_metric",
		"true edge.yaml: edge.e=f: the key has a =", "false edge.yaml: edge.g: unlimited", "false edge.yaml: edge.h: rule edge-h-2: unlimited there",
	} {
		if !slices.ContainsFunc(notes, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("%q isn't among %q", want, notes)
		}
	}
	if len(notes) != 9 || r.Rules != 6 {
		t.Errorf("%d notes, %d rules", len(notes), r.Rules)
	}
	if _, err := Envoy([]envoy.File{{Name: "a.yaml", Text: []byte("domain: a\ndescriptors: [{kee: b}]")}}); err == nil || !strings.Contains(err.Error(), "a.yaml:2:16") {
		t.Error(err)
	}
}

// TestEnvoyWindows checks that units are fixed lengths of time, aligned to the epoch and not to the calendar, as in
// envoyproxy/ratelimit.
func TestEnvoyWindows(t *testing.T) {
	const day = 24 * time.Hour
	for unit, length := range map[string]time.Duration{
		"second": time.Second, "minute": time.Minute, "hour": time.Hour, "DAY": day, "week": 7 * day, "Month": 30 * day, "YEAR": 365 * day,
	} {
		text := fmt.Sprintf("domain: a\ndescriptors: [{key: k, rate_limit: {unit: %s, requests_per_unit: 5}}]", unit)
		r, err := Envoy([]envoy.File{{Name: "a.yaml", Text: []byte(text)}})
		if err != nil {
			t.Fatal(err)
		}
		f, err := rulefile.Parse("rules.yaml", r.Text)
		if err != nil {
			t.Fatal(err)
		}
		rule := f.Rules.Rules[0]
		if want := (weir.Limit{Count: 5, Window: length}); rule.Algorithm != weir.FixedWindow || rule.Calendar != (counter.Calendar{}) || !slices.Equal(rule.Limits, []weir.Limit{want}) {
			t.Errorf("%s: %+v\n%s", unit, rule, r.Text)
		}
	}
}

// TestEnvoyMerges checks that an import reads YAML's merges like envoyproxy/ratelimit, where the last number wins.
func TestEnvoyMerges(t *testing.T) {
	text := "domain: a\ndescriptors:\n  - {key: k, rate_limit: &rate {unit: day, requests_per_unit: 5}}\n  - {key: l, rate_limit: {requests_per_unit: 3, <<: *rate}}\n"
	r, err := Envoy([]envoy.File{{Name: "a.yaml", Text: []byte(text)}})
	if err != nil || strings.Count(string(r.Text), "limit: 5/day") != 2 {
		t.Errorf("%v\n%s", err, r.Text)
	}
}

// TestHugeEnvoyConfig checks that a configuration that is too large for one document is refused quickly.
func TestHugeEnvoyConfig(t *testing.T) {
	text := []byte("domain: a\ndescriptors:\n  - {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	for i := range 20_000 {
		text = fmt.Appendf(text, "  - {key: k, value: v%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	if _, err := Envoy([]envoy.File{{Name: "a.yaml", Text: text}}); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Error(err)
	}
}
