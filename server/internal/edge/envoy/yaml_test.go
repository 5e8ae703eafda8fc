package envoy_test

import (
	"fmt"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// TestFilesAreReadLikeRatelimit checks YAML that envoyproxy/ratelimit accepts, and that Weir reads the same limits from it.
func TestFilesAreReadLikeRatelimit(t *testing.T) {
	const base = "  - &base {key: a, rate_limit: &rate {unit: day, requests_per_unit: 5, name: five}}\n"
	for _, c := range []struct{ what, text, ask, want string }{
		{"a word of YAML 1.1", "  - {key: a, rate_limit: {unit: day}, shadow_mode: Yes}\n", "a=1", "OK OK:0/DAY-0"},
		{"another", "  - {key: a, rate_limit: {unit: day}, shadow_mode: OFF}\n", "a=1", "OVER_LIMIT OVER_LIMIT:0/DAY-0"},
		{"a sign", "  - {key: a, rate_limit: {unit: day, requests_per_unit: +5}}\n", "a=1", "OK OK:5/DAY-4"},
		{"no number", "  - {key: a, rate_limit: {unit: day, requests_per_unit: }}\n", "a=1", "OVER_LIMIT OVER_LIMIT:0/DAY-0"},
		{"an own number", base + "  - {key: b, rate_limit: {<<: *rate, requests_per_unit: 3}}\n", "b=1", "OK OK:3/DAY-2"},
		{"an own number first", base + "  - {key: b, rate_limit: {requests_per_unit: 3, <<: *rate}}\n", "b=1", "OK OK:5/DAY-4"},
		{"the first of two", base + "  - {key: b, rate_limit: {<<: [{unit: hour}, *rate]}}\n", "b=1", "OK OK:5/HOUR-4"},
		{"an own unit of a merged limit", base + "  - {<<: *base, key: b, rate_limit: {unit: hour}}\n", "b=1", "OK OK:5/HOUR-4"},
		{"an own number of a merged limit", base + "  - {<<: *base, key: b, rate_limit: {requests_per_unit: 7}}\n", "b=1", "OK OK:7/DAY-6"},
		{"no limit in place of the merged one", base + "  - {<<: *base, key: b, rate_limit: ~}\n", "b=1", "OK OK"},
	} {
		t.Run(c.what, func(t *testing.T) {
			got := once(t, "domain: d\ndescriptors:\n"+c.text, c.ask)
			if brief(got) != c.want {
				t.Errorf("got %s, want %s", brief(got), c.want)
			}
		})
	}
}

// once sends one request to a new service with one file.
func once(t *testing.T, file, descriptor string) *rls.RateLimitResponse {
	t.Helper()
	s := newService(t, memstore.New(memstore.Options{}), envoy.Options{Answers: envoy.Answers{DynamicMetadata: true}}, envoy.File{Name: "f.yaml", Text: []byte(file)})
	got, err := over["json"](t, s)(t.Context(), request("d", descriptor))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestMetadataIsReadLikeRatelimit checks that metadata may use YAML's merges and YAML 1.1's words, and that JSON can represent all
// of it.
func TestMetadataIsReadLikeRatelimit(t *testing.T) {
	for text, want := range map[string]string{
		"{on: yes, off: No, word: 'yes', day: 2024-01-01}":               "map[day:2024-01-01 off:false on:true word:yes]",
		"{<<: {x: 1, y: 1}, y: 2}":                                       "map[x:1 y:2]",
		"{m: {<<: [{x: 1}, {x: 2, y: 2}]}}":                              "map[m:map[x:1 y:2]]",
		"{big: .inf, small: -.inf, none: .nan}":                          "map[big:.inf none:.nan small:-.inf]",
		"{a: 1, b: 1}}, {<<: *first, key: asked, metadata: {b: 2, c: 2}": "map[a:1 b:2 c:2]",
		"{a: 1, b: 1}}, {<<: *first, key: asked, metadata: ":             "<nil>",
	} {
		key := "first"
		if strings.Contains(text, "asked") {
			key = "asked"
		}
		got := once(t, "domain: d\ndescriptors: [&first {key: first, rate_limit: {unit: day, requests_per_unit: 1}, metadata: "+text+"}]\n", key+"=1")
		if fields := fmt.Sprint(got.DynamicMetadata.AsMap()["metadata"]); fields != want {
			t.Errorf("%s: got %s, want %s", text, fields, want)
		}
	}
}

// TestMergedOverIsAWarning checks the warning about a merge key after another key: envoyproxy/ratelimit lets the merge
// win, unlike YAML, which is seldom meant.
func TestMergedOverIsAWarning(t *testing.T) {
	text := "domain: d\ndescriptors:\n  - {key: a, rate_limit: &r {unit: day, requests_per_unit: 5}}\n  - {key: b, rate_limit: {requests_per_unit: 3, <<: *r}}\n"
	_, warnings, err := envoy.Parse([]envoy.File{{Name: "f.yaml", Text: []byte(text)}}, envoy.Modes{})
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0].String(), "f.yaml:4:49: descriptors[1].rate_limit.requests_per_unit: is replaced by") {
		t.Error(err, warnings)
	}
}

// TestMetadataWithoutALimit checks that metadata is validated even without a limit.
func TestMetadataWithoutALimit(t *testing.T) {
	_, _, err := envoy.Parse([]envoy.File{{Name: "f.yaml", Text: []byte("domain: d\ndescriptors: [{key: a, metadata: x}]\n")}}, envoy.Modes{})
	if err == nil || !strings.Contains(err.Error(), "f.yaml:2:34: descriptors[0].metadata: must be a map") {
		t.Error(err)
	}
}
