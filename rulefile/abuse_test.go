package rulefile_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/rulefile"
)

// Fields of abuse that are left out have their defaults, and a rule's own abuse takes precedence over the document's.
func TestAbuse(t *testing.T) {
	usual := counter.Abuse{Refusals: 100, Window: time.Minute, Cooldown: time.Minute, Grow: 2, Most: 24 * time.Hour, Forgive: time.Hour}
	own := usual
	own.Refusals, own.Window, own.Cooldown, own.Grow, own.DropAfter, own.Shadow = 5, 10*time.Second, 48*time.Hour, 1.5, 1000, true
	own.Most = own.Cooldown
	f, err := rulefile.Parse("r.yaml", []byte(`
abuse: {}
rules:
  - {id: as-all, limit: 10/hour}
  - {id: usual, limit: 10/hour, abuse: true}
  - {id: none, limit: 10/hour, abuse: false}
  - {id: own, limit: 10/hour, abuse: {refusals: 5/10s, cooldown: 48h, grow: 1.5, drop_after: 1000, shadow: true}}
  - {id: never, limit: 10/second, abuse: true, shadow: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	if f.Rules.Abuse == nil || *f.Rules.Abuse != usual {
		t.Errorf("the document's abuse: %+v", f.Rules.Abuse)
	}
	for i, want := range []*counter.Abuse{nil, &usual, {}, &own, &usual} {
		if got := f.Rules.Rules[i].Abuse; (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: %+v, want %+v", f.Rules.Rules[i].ID, got, want)
		}
	}
	warned := 0
	for _, w := range f.Warnings {
		if strings.Contains(w.Text, "begins no cooldown") {
			warned++
			if w.Line != 8 || w.Path != "rules[4].abuse" {
				t.Errorf("%+v", w)
			}
		}
	}
	if warned != 1 {
		t.Errorf("%+v", f.Warnings)
	}
}

// An abuse for all rules gets a warning if none of the rules can begin a cooldown.
func TestAbuseThatNeverBegins(t *testing.T) {
	for rules, want := range map[string]bool{
		"abuse: true\nrules: [{id: a, limit: 1/hour, shadow: true}, {id: b, limit: 1/hour, abuse: false}]":                             true,
		"abuse: true\nrules: [{id: a, limit: 1/hour, past_limit: book}]":                                                               true,
		"abuse: true\nrules: [{id: a, limit: 2000000/second}]":                                                                         true,
		"abuse: {refusals: 9000000/second}\nrules: [{id: a, limit: 100/minute}]":                                                       true,
		"abuse: true\nrules: [{id: a, limit: 100/minute}, {id: b, limit: 1/hour, abuse: false}]":                                       false,
		"abuse: true\nrules: [{id: a, limit: 1000/second}]":                                                                            false,
		"abuse: true\nrules: [{id: a, limit: 2000000/second, tiers: {free: {limit: 10/second}}}]\ntiers: {free: {limit: 10/second}}\n": false,
		"abuse: {drop_after: 9}\nrules: [{id: a, limit: 2000000/second}]":                                                              false,
	} {
		f, err := rulefile.Parse("r.yaml", []byte(rules))
		if err != nil {
			t.Fatal(err)
		}
		got := slices.ContainsFunc(f.Warnings, func(p rulefile.Problem) bool { return p.Path == "abuse" && p.Line == 1 })
		if got != want {
			t.Errorf("%s: %v", rules, f.Warnings)
		}
	}
}
