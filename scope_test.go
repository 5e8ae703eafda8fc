package weir

import (
	"strings"
	"testing"
	"time"
)

func TestScopesThatCannotBe(t *testing.T) {
	limits := []Limit{{Count: 10, Window: time.Minute}}
	for _, c := range []struct {
		rule Rule
		says string // "": nothing
	}{
		{Rule{ID: "r", Limits: limits, Global: true}, ""},
		{Rule{ID: "r", Limits: limits, Global: true, Home: "us", OnPartition: FailRefuse}, ""},
		{Rule{ID: "r", Limits: limits, Home: "us"}, "rules[0].home: is for rules with scope: global"},
		{Rule{ID: "r", Limits: limits, Floor: 5}, "rules[0].floor: is for rules with scope: global"},
		{Rule{ID: "r", Limits: limits, Global: true, Floor: 50}, ""},
		{Rule{ID: "r", Limits: limits, Global: true, Floor: 51}, "rules[0].floor: must be from 0% to 50%"},
		{Rule{ID: "r", Limits: limits, OnPartition: FailLocal}, "rules[0].on_partition: is for rules with scope: global"},
		{Rule{ID: "r", Limits: limits, Global: true, Algorithm: SlidingLog}, "rules[0].scope: sliding_window_log can't be global"},
		{Rule{ID: "r", Limits: limits, Global: true, Algorithm: LeakyQueue}, "can't be global"},
		{Rule{ID: "r", Limits: []Limit{{Count: 10}}, Global: true, Algorithm: Concurrency}, "concurrency can't be global"},
		{Rule{ID: "r", Limits: limits, Global: true, Book: true}, "can't have past_limit"},
		{Rule{ID: "r", Limits: limits, Global: true, Strict: true, Split: 2}, "can't be split"},
	} {
		_, err := Compile(Rules{Version: 1, Rules: []Rule{c.rule}})
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: %v, want %q", c.rule, err, c.says)
		}
	}
}

func TestScopesAreExplained(t *testing.T) {
	limits := []Limit{{Count: 10, Window: time.Minute}}
	rs, err := Compile(Rules{Version: 1, Rules: []Rule{
		{ID: "own", Limits: limits},
		{ID: "wide", Limits: limits, Global: true},
		{ID: "apart", Limits: limits, Global: true, Home: "us", OnPartition: FailLocal},
		{ID: "asks", Limits: limits, Global: true, Strict: true},
		{ID: "floor", Limits: limits, Global: true, Floor: 5},
	}})
	if err != nil {
		t.Fatal(err)
	}
	x := rs.Explain(&Request{APIKey: "k"})
	for i, want := range []string{
		"", "borrows more of its home; one that is cut off goes on with the 0%", "borrows more of its home us; one that is cut off counts the whole limit by itself",
		"global: every check asks its home in other regions, and is refused", "goes on with the 5%",
	} {
		if got := x.Rules[i].Scope; !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %q, want %q", x.Rules[i].ID, got, want)
		}
	}
	for i, p := range x.Rules {
		if l := p.Limits[0]; l.Global != (i > 0) || l.Strict != (i > 0) || l.Home != map[bool]string{true: "us"}[i == 2] || l.Travels != (i == 3) {
			t.Errorf("%+v", l)
		}
	}
}
