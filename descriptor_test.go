package weir

import (
	"strings"
	"testing"
)

// TestDescriptorRules: rules for Envoy's descriptors apply to no request. The edge that answers Envoy charges them.
func TestDescriptorRules(t *testing.T) {
	named := Rule{ID: "named", Descriptor: []string{"edge", "tenant=acme"}, Limits: []Limit{PerMinute(1)}}
	rs, err := Compile(Rules{Rules: []Rule{named}})
	if err != nil {
		t.Fatal(err)
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
}
