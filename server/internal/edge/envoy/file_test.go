package envoy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// request returns a request of descriptors, each a list of keys and values: "user=ann action=read".
func request(domain string, descriptors ...string) *rls.RateLimitRequest {
	req := &rls.RateLimitRequest{Domain: domain}
	for _, text := range descriptors {
		d := &ratelimit.RateLimitDescriptor{}
		for _, pair := range strings.Fields(text) {
			key, value, _ := strings.Cut(pair, "=")
			switch key {
			case "hits":
				var n uint64
				fmt.Sscan(value, &n)
				d.HitsAddend = wrapperspb.UInt64(n)
			case "back":
				d.IsNegativeHits = true
			case "limit": // per hour
				d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{Unit: typev3.RateLimitUnit_HOUR}
				fmt.Sscan(value, &d.Limit.RequestsPerUnit)
			default:
				d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
			}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// brief returns a response on one line: the code, and for each status its limit and what is left.
func brief(a *rls.RateLimitResponse) string {
	out := a.GetOverallCode().String()
	for _, st := range a.GetStatuses() {
		out += " " + st.GetCode().String()
		if l := st.GetCurrentLimit(); l != nil {
			out += fmt.Sprintf(":%d/%s-%d", l.GetRequestsPerUnit(), l.GetUnit(), st.GetLimitRemaining())
		}
	}
	return out
}

// TestFileErrors checks the errors about invalid files, with their positions.
func TestFileErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "f.yaml:1:1: domain: is missing"},
		{"- a", "f.yaml:1:1: must be a map, got a list"},
		{"domain: a\ndescriptor:\n", `f.yaml:2:1: descriptor: there is no key "descriptor"; did you mean "descriptors"?`},
		{"domain: a\ndescriptors:\n  - value: x\n", "f.yaml:3:5: descriptors[0].key: is missing"},
		{"domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n", `f.yaml:4:24: descriptors[0].rate_limit.unit: must be second, minute, hour, day, week, month or year, got "fortnight"`},
		{"domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: -1}\n", "f.yaml:4:48: descriptors[0].rate_limit.requests_per_unit: must be a whole number from 0 to 4294967295"},
		{"domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 1.5}\n", "f.yaml:4:48:"},
		{"domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unlimited: true, unit: day}\n", "f.yaml:4:41: descriptors[0].rate_limit.unit: an unlimited rate_limit has no unit"},
		{"domain: a\ndescriptors:\n  - key: k\n  - key: k\n", `f.yaml:4:10: descriptors[1]: the descriptor "a.k" appears twice`},
		{"domain: a\ndescriptors:\n  - key: k\n    value: x\n    share_threshold: true\n", "f.yaml:5:22: descriptors[0].share_threshold: is for values with a *"},
		{"domain: a\ndescriptors:\n  - key: k\n    shadow_mode: maybe\n", "f.yaml:4:18: descriptors[0].shadow_mode: must be true or false"},
		{"domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 1, name: n, replaces: [{name: n}]}\n", "f.yaml:4:78: descriptors[0].rate_limit.replaces[0].name: a limit can't replace itself"},
		{"domain: a\ndescriptors:\n  - key: k\n    key: l\n", "f.yaml:4:5: descriptors[0].key: is written twice"},
		{"domain: a\ndescriptors: [\n", "f.yaml:"},
		{"domain: a\ndescriptors: 7\n", "f.yaml:2:14: descriptors: must be a list"},
		{"domain: a\ndescriptors: [7]\n", "f.yaml:2:15: descriptors[0]: must be a map"},
		{"domain: a\ndescriptors:\n  - key: k*\n", "f.yaml:3:10: descriptors[0].key: wildcards are for values"},
	} {
		_, _, err := envoy.Parse([]envoy.File{{Name: "f.yaml", Text: []byte(c.text)}}, envoy.Modes{})
		if err == nil || !strings.Contains(unwrapped(err), c.want) {
			t.Errorf("%q:\ngot  %v\nwant %s", c.text, err, c.want)
		}
	}
	twice := []envoy.File{{Name: "a.yaml", Text: []byte("domain: a")}, {Name: "b.yaml", Text: []byte("domain: a")}}
	if _, _, err := envoy.Parse(twice, envoy.Modes{}); err == nil || !strings.Contains(err.Error(), `b.yaml:1:9: domain: "a" is in another file already`) ||
		!strings.Contains(err.Error(), "put both into one file, or have them merged: envoy: {merge_domains: true}") {
		t.Error(err)
	}
	if _, _, err := envoy.Parse(twice, envoy.Modes{MergeDomains: true}); err != nil {
		t.Error(err)
	}
}

// unwrapped returns an error with its hints on the same line.
func unwrapped(err error) string {
	text := err.Error()
	if i := strings.Index(text, "^ "); i > 0 {
		first, _, _ := strings.Cut(text, "\n")
		return first + "; " + strings.TrimSpace(text[i+2:])
	}
	return text
}

// TestMisplacedKeyIsAWarning checks that a misplaced key is a warning: envoyproxy/ratelimit accepts keys anywhere, and
// ignores them where they mean nothing.
func TestMisplacedKeyIsAWarning(t *testing.T) {
	text := "domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 1, shadow_mode: true}\n"
	_, warnings, err := envoy.Parse([]envoy.File{{Name: "f.yaml", Text: []byte(text)}}, envoy.Modes{})
	if err != nil || len(warnings) != 1 || warnings[0].Line != 4 || warnings[0].Column != 51 {
		t.Error(err, warnings)
	}
}

// everyKey uses every key of the format, and anchors and merges.
const everyKey = `
domain: all
descriptors:
  - key: plain
    rate_limit: &two {unit: Minute, requests_per_unit: 2}
  - key: number
    value: 10
    rate_limit: *two
  - key: merged
    rate_limit:
      <<: *two
      requests_per_unit: 3
      name: three
  - key: free
    rate_limit: {unlimited: true, replaces: [{name: three}]}
  - key: host
    value: "*.example.*"
    share_threshold: true
    value_to_metric: true
    descriptors:
      - key: path
        value: "/v1/*/items/*"
        detailed_metric: true
        rate_limit: {unit: year, requests_per_unit: 1}
      - key: path
        shadow_mode: yes
        rate_limit: {unit: hour, requests_per_unit: 1}
  - key: never
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: a
    quota_mode: true
    metadata: {pool: {name: a, size: 1}, list: [1, two, null], on: true}
    rate_limit: {unit: week, requests_per_unit: 1}
  - key: b
    quota_mode: true
    metadata: {pool: {name: b, more: 2}}
    rate_limit: {unit: month, requests_per_unit: 2}
`

func TestEveryKey(t *testing.T) {
	s := newService(t, memstore.New(memstore.Options{}), envoy.Options{Answers: envoy.Answers{DynamicMetadata: true}}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
	for i, c := range []struct{ ask, want string }{
		{"plain=x", "OK OK:2/MINUTE-1"},
		{"plain=y", "OK OK:2/MINUTE-1"},
		{"number=10", "OK OK:2/MINUTE-1"},
		{"number=11", "OK OK"},
		{"merged=x", "OK OK:3/MINUTE-2"},
		{"merged=x; free=x", "OK OK OK"}, // replaced, and unlimited
		{"merged=x", "OK OK:3/MINUTE-1"},
		{"host=a.example.com path=/v1/o/items/1", "OK OK:1/YEAR-0"},
		{"host=b.example.org path=/v1/o/items/1", "OVER_LIMIT OVER_LIMIT:1/YEAR-0"}, // shares the counter of host
		{"host=b.example.org path=/v1/o/items/2", "OK OK:1/YEAR-0"},                 // has a counter of its own for path
		{"host=b.example.org path=/", "OK OK:1/HOUR-0"},
		{"host=b.example.org path=/", "OK OK:1/HOUR-0"}, // in shadow mode
		{"host=b.example.org", "OK OK"},                 // no limit at this level
		{"host=b.example.org path=/ more=x", "OK OK"},   // no limit at this level, either
		{"host=example path=/", "OK OK"},
		{"never=x", "OVER_LIMIT OVER_LIMIT:0/SECOND-0"},
		{"hits=3 plain=z", "OVER_LIMIT OVER_LIMIT:2/MINUTE-0"},
		{"a=1; b=1", "OK OK:1/WEEK-0 OK:2/MONTH-1"},
		{"a=1; b=1", "OK OVER_LIMIT:1/WEEK-0 OK:2/MONTH-0"},                                        // one quota is spent, but the other isn't
		{"a=1; b=1; plain=q", "OVER_LIMIT OVER_LIMIT:1/WEEK-0 OVER_LIMIT:2/MONTH-0 OK:2/MINUTE-1"}, // both quotas are spent
		{"plain=q", "OK OK:2/MINUTE-1"},                                                            // nothing was taken from the third limit
		{"plain=q; back plain=q", "OK OK:2/MINUTE-0 OK"},
		{"plain=q", "OK OK:2/MINUTE-0"}, // one token, because one was given back
	} {
		req := request("all", strings.Split(c.ask, ";")...)
		got, err := s.ShouldRateLimit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if brief(got) != c.want {
			t.Errorf("%d: %s: got %s, want %s", i, c.ask, brief(got), c.want)
		}
	}
	got, err := s.ShouldRateLimit(t.Context(), request("all", "a=2", "b=2"))
	if err != nil {
		t.Fatal(err)
	}
	fields := got.DynamicMetadata.AsMap()["metadata"].(map[string]any)
	if fmt.Sprint(fields) != "map[list:[1 two <nil>] on:true pool:map[more:2 name:a size:1]]" {
		t.Error(fields)
	}
}

// TestGlobalModes checks envoyproxy/ratelimit's SHADOW_MODE and QUOTA_MODE. A request that they let pass counts toward
// all its limits. The modes also apply to limits that a request carries. In QUOTA_MODE, a descriptor without a limit
// counts as a quota that isn't spent.
func TestGlobalModes(t *testing.T) {
	file := envoy.File{Name: "f.yaml", Text: []byte("domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n  - {key: l, rate_limit: {unit: day, requests_per_unit: 9}}\n")}
	shadow := newService(t, memstore.New(memstore.Options{}), envoy.Options{Modes: envoy.Modes{Shadow: true}}, file)
	quota := newService(t, memstore.New(memstore.Options{}), envoy.Options{Modes: envoy.Modes{Quota: true}}, file)
	for _, c := range []struct {
		ask, want string
		spent     bool // all quotas are spent
	}{
		{"k=1", "OK:1/DAY-0", false},
		{"k=1", "OVER_LIMIT:1/DAY-0", true},
		{"k=1;k=2", "OVER_LIMIT:1/DAY-0 OK:1/DAY-0", false},
		{"k=1;none=x", "OVER_LIMIT:1/DAY-0 OK", false},
		{"k=1;l=1", "OVER_LIMIT:1/DAY-0 OK:9/DAY-8", false},
		{"limit=0 o=1;l=1", "OVER_LIMIT:0/HOUR-0 OK:9/DAY-7", false},
		{"limit=0 o=1;none=x", "OVER_LIMIT:0/HOUR-0 OK", false},
		{"limit=0 o=1", "OVER_LIMIT:0/HOUR-0", true},
		{"k=1;limit=3 o=2;none=x", "OVER_LIMIT:1/DAY-0 OK:3/HOUR-2 OK", false},
		{"limit=3 o=2", "OK:3/HOUR-1", false},
	} {
		for mode, s := range map[string]*envoy.Service{"shadow": shadow, "quota": quota} {
			want := "OK " + c.want
			if c.spent && mode == "quota" {
				want = "OVER_LIMIT " + c.want
			}
			if got, err := s.ShouldRateLimit(t.Context(), request("d", strings.Split(c.ask, ";")...)); err != nil || brief(got) != want {
				t.Errorf("%s: %s: got %v %v, want %s", mode, c.ask, brief(got), err, want)
			}
		}
	}
}

// FuzzParse checks that no file crashes the parser, that an accepted file can answer requests, and that an error has a
// position.
func FuzzParse(f *testing.F) {
	f.Add(everyKey)
	for _, name := range []string{"bank", "mesh", "shop"} {
		text, err := os.ReadFile(filepath.Join("testdata/recorded/config", name+".yaml"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("domain: &a [*a]")
	f.Add("domain: a\ndescriptors: &d\n  - key: k\n    descriptors: *d\n")
	f.Add("domain: a\ndescriptors:\n  - &d {key: k, <<: *d}\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, _, err := envoy.Parse([]envoy.File{{Name: "f.yaml", Text: []byte(text)}}, envoy.Modes{})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f.yaml:") {
				t.Errorf("an error without a position: %v", err)
			}
			return
		}
		if c.Domains() != 1 {
			t.Errorf("%d domains", c.Domains())
		}
	})
}
