package weir

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestExpressionsBelowSegments: expressions that begin with whole segments are found through the trie of endpoints, which
// ignores empty segments.
func TestExpressionsBelowSegments(t *testing.T) {
	var doc Rules
	for _, expr := range []string{"^/", "^/a/", "^/a/b/[0-9]$", "^/a/b", "^/a/b/c/", "^/a/(/|b)"} {
		doc.Rules = append(doc.Rules, Rule{ID: "r" + strconv.Itoa(len(doc.Rules)), Match: Match{EndpointRegex: expr}, Limits: []Limit{{Count: 1, Window: time.Hour}}})
	}
	doc.Rules = append(doc.Rules, Rule{ID: "wild", Match: Match{Endpoint: "/{x}/b/{y}"}, Limits: doc.Rules[0].Limits})
	rs, err := Compile(doc)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/":        "r0",
		"/a":       "r0 r1",
		"/b/a":     "r0",
		"/a/b":     "r0 r1 r3 r5",
		"/a/b/7":   "r0 r1 r2 r3 r5 wild",
		"/A/%62/x": "r0 r1 r3 r5 wild",
		"/a/b/c":   "r0 r1 r3 r4 r5 wild",
		"/a//b/x":  "r0 r1 r3 r5 wild",
		"/a//x":    "r0 r1 r5",
		"//a/x":    "r0 r1",
		"/ab/c":    "r0",
	} {
		var ids []string
		for _, r := range rs.Explain(&Request{Method: "GET", Path: path}).Rules {
			if r.Applies {
				ids = append(ids, r.ID)
			}
		}
		m := new(match)
		rs.run(&Request{Method: "GET", Path: path}, m)
		if got := strings.Join(ids, " "); got != want || len(m.charges) != len(ids) {
			t.Errorf("%s: %s, and %d are charged, want %s", path, got, len(m.charges), want)
		}
	}
}
