package weir

import (
	"slices"
	"strings"
	"testing"
)

// TestDescriptorRules apply to no request: whoever answers Envoy counts for them.
func TestDescriptorRules(t *testing.T) {
	named := Rule{ID: "named", Descriptor: []string{"edge", "tenant=acme"}, Limits: []Limit{PerMinute(1)}}
	rs, err := Compile(Rules{Rules: []Rule{named}})
	if err != nil {
		t.Fatal(err)
	}
	if w := rs.Warnings(); len(w) > 0 {
		t.Errorf("a document for Envoy alone is warned about: %v", w)
	}
	req := &Request{APIKey: "acme", Path: "/x", Method: "GET"}
	m := new(match)
	if rs.run(req, m); len(m.charges) > 0 {
		t.Errorf("%d charges", len(m.charges))
	}
	x := rs.Explain(req)
	if x.Rules[0].Applies || !strings.Contains(x.Rules[0].Why, "Envoy's descriptor [edge, tenant=acme] alone") {
		t.Errorf("%+v", x.Rules[0])
	}
	// Beside another rule, it neither fills a gap nor stands behind one.
	beside, err := Compile(Rules{Rules: []Rule{named, {ID: "paths", By: []string{"path"}, Match: Match{Endpoint: "/x/"}, Limits: []Limit{PerMinute(1)}}}})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, w := range beside.Warnings() {
		texts = append(texts, w.Path+": "+w.Text)
	}
	for _, want := range []string{"a request can match no rule at all", "no rule without `path` stands behind it"} {
		if !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("%q isn't among %q", want, texts)
		}
	}
}

// TestDroppedDescriptor: a limit that is gone is told of, and one whose numbers are a configuration's isn't.
func TestDroppedDescriptor(t *testing.T) {
	compile := func(rules ...Rule) *RuleSet {
		t.Helper()
		rs, err := Compile(Rules{Rules: append(rules, Rule{ID: "all", Limits: []Limit{PerMinute(1)}})})
		if err != nil {
			t.Fatal(err)
		}
		return rs
	}
	own := Rule{ID: "own", Descriptor: []string{"edge", "a"}, Limits: []Limit{PerMinute(1)}}
	borrowed := Rule{ID: "borrowed", Descriptor: []string{"edge", "b"}, Limits: []Limit{{Burst: 3}}}
	renamed := own
	renamed.ID = "renamed"
	if got, _ := compile().Dropped(compile(own, borrowed)); !slices.Equal(got, []int{0}) {
		t.Errorf("dropped %v, want the one with a limit of its own", got)
	}
	if got, _ := compile(renamed).Dropped(compile(own)); len(got) > 0 {
		t.Errorf("dropped %v, and another rule is for the same descriptor", got)
	}
}
