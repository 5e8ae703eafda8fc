package serve

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/server/internal/admin"
)

// The text about what happens while the store is lost fits the number of rules and the flags.
func TestWordsWithoutTheStore(t *testing.T) {
	rule := func(mode counter.FailureMode) weir.Rule { return weir.Rule{ID: "r", OnStoreFailure: mode} }
	emergency := &weir.Limit{Count: 10, Window: time.Second}
	for _, c := range []struct {
		rules     []weir.Rule
		emergency *weir.Limit
		want      string
	}{
		{nil, nil, "no rule limits anything"},
		{nil, emergency, "no rule limits anything"},
		{[]weir.Rule{{Shadow: true}}, nil, "no rule limits anything"},
		{[]weir.Rule{rule(weir.FailRefuse)}, nil, "of the rules, 1 refuses with 503"},
		{[]weir.Rule{rule(weir.FailRefuse), rule(weir.FailAllow), rule(weir.FailRefuse), rule(weir.FailLocal)}, nil, "of the rules, 2 refuse with 503, 1 counts on each node alone, 1 admits clients that a node doesn't know"},
		{[]weir.Rule{rule(weir.FailAllow), rule(weir.FailAllow)}, emergency, "of the rules, 2 admit requests, up to 10/second of an address on each node (--emergency-limit)"},
		{[]weir.Rule{rule(weir.FailAllow)}, emergency, "of the rules, 1 admits requests, up to 10/second of an address on each node (--emergency-limit)"},
	} {
		if got := failureModes(c.rules, c.emergency).words; got != c.want {
			t.Errorf("%d rules: %q, want %q", len(c.rules), got, c.want)
		}
	}
}

// If there are many rules, only some are named, those that refuse first, and all are counted.
func TestFailureModesOfManyRules(t *testing.T) {
	var rules []weir.Rule
	for i := range 2500 {
		mode := weir.FailAllow
		if i >= 2490 {
			mode = weir.FailRefuse
		}
		rules = append(rules, weir.Rule{ID: fmt.Sprint("r", i), OnStoreFailure: mode, Shadow: i == 0})
	}
	m := failureModes(rules, nil)
	want := []admin.FailureTotal{
		{Mode: "refuse", Text: "answers 503", Rules: 10}, {Mode: "allow", Text: "counts clients that a node knows on each node alone, and admits the others", Rules: 2489}, {Mode: "allow", Text: "is in shadow, and refuses nobody", Rules: 1},
	}
	if !slices.Equal(m.totals, want) || len(m.list) != mostModes || m.list[0].Rule != "r2490" || m.list[10].Rule != "r1" {
		t.Errorf("%d of %v, first %v", len(m.list), m.totals, m.list[:11])
	}
}
