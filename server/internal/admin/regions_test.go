package admin_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/admin"
)

// warned returns the warnings in a response about regions, as path and hint.
func warned(t *testing.T, a answer) (out []string) {
	t.Helper()
	var v struct {
		Warnings []rulefile.Problem
		Error    struct {
			Details struct{ Warnings []rulefile.Problem }
		}
	}
	if err := json.Unmarshal([]byte(a.text), &v); err != nil {
		t.Fatal(err)
	}
	for _, w := range slices.Concat(v.Warnings, v.Error.Details.Warnings) {
		if strings.HasSuffix(w.Path, ".home") || strings.HasSuffix(w.Path, ".scope") {
			out = append(out, w.Path+": "+w.Text+"; "+w.Hint)
		}
	}
	return out
}

// TestRulesInTheseRegions checks that when rules are validated or written, a node warns once about homes that it
// doesn't know and about limits too small for its regions to share.
func TestRulesInTheseRegions(t *testing.T) {
	const (
		homeless = `rules[3].home: no region is named "eu-wset": the regions that this node knows are ap, eu-west, us; did you mean "eu-west"?`
		small    = "rules[3].scope: it is too small to be shared by 3 regions, which takes 48 tokens: in other regions every check waits for its home; if that is what you want, write on_partition: refuse; "
		asks     = "rules[3].scope: it is too small to be shared, or strict"
	)
	text := func(line string) string {
		return strings.Replace(rules, "blacklist:", "  - "+line+"\nblacklist:", 1)
	}
	far := "{id: far, by: [user], limit: 100/minute, scope: global, home: eu-wset}"
	three := admin.Regions{Name: "us", Home: "us", Peers: []region.Status{{Region: "ap"}, {Region: "eu-west"}}}
	for _, c := range []struct {
		name, rule string
		regions    admin.Regions
		want       []string // how the warnings begin
	}{
		{"a known home", "{id: near, by: [user], limit: 100/minute, scope: global, home: eu-west}", three, nil},
		{"an unknown one", far, three, []string{homeless}},
		{"a node that knows no other regions", far, admin.Regions{Name: "us", Home: "us", Peers: []region.Status{}}, nil},
		{"too small for two", "{id: few, by: [user], limit: 31/minute, scope: global}", three, []string{asks}},
		{"too small for three", "{id: few, by: [user], limit: 47/minute, scope: global}", three, []string{small}},
		{"enough for three", "{id: few, by: [user], limit: 48/minute, scope: global}", three, nil},
		{"the same in two", "{id: few, by: [user], limit: 47/minute, scope: global}", admin.Regions{Name: "us", Peers: three.Peers[:1]}, nil},
		{"too small, and meant", "{id: few, by: [user], limit: 5/minute, scope: global, on_partition: refuse}", three, nil},
		{"too small, and not global", "{id: few, by: [user], limit: 5/minute}", three, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := open(t, nil, "")
			p.regions = c.regions
			says := func(what string, a answer, want []string) {
				t.Helper()
				if got := warned(t, a); !slices.EqualFunc(got, want, strings.HasPrefix) {
					t.Errorf("%s: %d, got %q\nwant %q", what, a.status, got, want)
				}
			}
			next := text(c.rule)
			says("validate", p.do(t, "POST", "/v1/rules/validate", next), c.want)
			says("dry run", p.do(t, "PUT", "/v1/rules?dry_run=true", next, `If-Match: "1"`), c.want)
			a := p.do(t, "PUT", "/v1/rules", next, `If-Match: "1"`)
			if len(c.want) > 0 {
				p.want(t, a, 422, "RULES_WARN")
				a = p.do(t, "PUT", "/v1/rules?force=true", next, `If-Match: "1"`)
			}
			p.want(t, a, 200, "")
			says("apply", a, c.want)

			other := strings.Replace(next, "30/minute", "25/minute", 1) // nothing is said about what was in the previous text
			says("dry run of another change", p.do(t, "PUT", "/v1/rules?dry_run=true", other, `If-Match: "2"`), nil)
			p.want(t, p.do(t, "PUT", "/v1/rules", other, `If-Match: "2"`), 200, "")
			says("validate all", p.do(t, "POST", "/v1/rules/validate", other), c.want)
			says("validate one rule", p.do(t, "POST", "/v1/rules/validate?rule=search", "match: {endpoint: /v1/search}\nlimit: 24/minute\n"), nil)
		})
	}
}
