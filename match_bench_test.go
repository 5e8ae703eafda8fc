package weir

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// manyRules is a large document: n rules with ServeMux patterns, 20 expressions
// with a literal prefix, and 10,000 overrides on one of the rules.
func manyRules(tb testing.TB, n int) *RuleSet {
	limits := []Limit{{Count: 1000, Window: time.Minute}}
	var doc Rules
	for i := range n {
		doc.Rules = append(doc.Rules, Rule{ID: fmt.Sprint("endpoint", i), Limits: limits,
			Match: Match{Endpoint: fmt.Sprintf("GET /v1/things%d/{id}/parts/{part}", i)}})
	}
	for i := range 20 {
		doc.Rules = append(doc.Rules, Rule{ID: fmt.Sprint("regex", i), Limits: limits,
			Match: Match{EndpointRegex: fmt.Sprintf("^/v%d/reports/[0-9]+/(daily|weekly)$", i+2)}})
	}
	doc.Rules[n/2].Override = map[string][]Limit{}
	for i := range 10_000 {
		doc.Rules[n/2].Override[fmt.Sprint("sk_vip_", i)] = limits
	}
	rs, err := Compile(doc)
	if err != nil {
		tb.Fatal(err)
	}
	return rs
}

func matchRequests(n int) []Request {
	return []Request{
		{APIKey: "sk_vip_4711", Method: "GET", Path: fmt.Sprintf("/v1/things%d/17/parts/42", n/2)},
		{APIKey: "sk_prod_1", Method: "GET", Path: "/v7/reports/2026/weekly"},
		{APIKey: "sk_prod_1", Method: "GET", Path: "/V1//things3/17/parts/%34%32/"},
		{APIKey: "sk_prod_1", Method: "GET", Path: "/v1/things3/17/parts/42;v=1"},
		{APIKey: "sk_prod_1", Method: "GET", Path: "/v1/x/..;/things3/17/parts/42"},
		{APIKey: "sk_prod_1", Method: "GET", Path: "/v1/things3//17/parts/42;v=1"},
		{APIKey: "sk_prod_1", Method: "GET", Path: "/v1/x/../things3/17/parts/%252e"},
		{APIKey: "sk_prod_1", Method: "GET", Path: "/nowhere/at/all"},
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		rs := manyRules(b, n)
		for i, name := range []string{"override", "regex", "disguise", "readings=2", "readings=3", "readings=4", "readings=7", "none"} {
			b.Run(fmt.Sprintf("rules=%d/%s", n, name), func(b *testing.B) {
				req, m := matchRequests(n)[i], new(match)
				b.ReportAllocs()
				for b.Loop() {
					rs.run(&req, m)
				}
				if i < 7 && len(m.charges) != 1 || i == 7 && len(m.charges) != 0 {
					b.Fatalf("%d charges", len(m.charges))
				}
				if readings, ok := strings.CutPrefix(name, "readings="); ok && readings != fmt.Sprint(m.readings.Len()) {
					b.Fatalf("%d readings", m.readings.Len())
				}
			})
		}
	}
}
