package weir

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

func compiled(t *testing.T, doc Rules) *RuleSet {
	t.Helper()
	rs, err := Compile(doc)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// most is what one step of a search may look at beyond its bound: a rule against a whole layer, or against a whole document.
const most = -maxCompared / 4

func said(rs *RuleSet, text string) bool {
	return slices.ContainsFunc(rs.Warnings(), func(p counter.Problem) bool { return strings.Contains(p.Text, text) })
}

// What a document can make Compile look at is bounded, whatever is in it, and it says what it hasn't looked at.
func TestSearchesForMistakesAreBounded(t *testing.T) {
	stars := strings.Repeat("*a", 40)
	tiers := []Tier{{"free", []Limit{PerMinute(1)}}, {"pro", []Limit{PerMinute(2)}}}
	keys, lists := Rules{Tiers: tiers, Rules: []Rule{{ID: "quota"}}}, Rules{Rules: []Rule{{ID: "quota", Limits: []Limit{PerMinute(9)}, Override: map[string][]Limit{}}}}
	for i := range 999 {
		keys.Keys = append(keys.Keys, KeyTier{fmt.Sprint(stars, "b", i, "*c"), "free"})
		lists.Deny = append(lists.Deny, fmt.Sprint(stars, "b", i, "*c"))
	}
	for i := range 38_000 {
		name := fmt.Sprint(strings.Repeat("a", 60), i)
		keys.Keys = append(keys.Keys, KeyTier{name, "pro"})
		lists.Rules[0].Override[name] = []Limit{PerMinute(9)}
	}
	rs := compiled(t, keys)
	if c := rs.warnOfKeys(); c >= 0 || c < most || !said(rs, "too many patterns to hold them all against each other") {
		t.Errorf("keys: %d left of %d: %v", c, maxCompared, rs.Warnings())
	}
	rs = compiled(t, lists)
	if c := rs.warnOfLists(); c >= 0 || c < most || !said(rs, "too many patterns on the deny list") {
		t.Errorf("lists: %d left of %d: %v", c, maxCompared, rs.Warnings())
	}

	var paths Rules
	for i := range 6000 {
		paths.Rules = append(paths.Rules, Rule{ID: fmt.Sprint("r", i), By: []string{"path"}, Limits: []Limit{PerMinute(1)}, Match: Match{Endpoint: fmt.Sprint("/a/", i)}})
	}
	rs = compiled(t, paths)
	if c := rs.warnOfPaths(); c >= 0 || c < most || !said(rs, "too many rules count by path") {
		t.Errorf("paths: %d left of %d", c, maxCompared)
	}

	overrides := Rules{Rules: []Rule{{ID: "a", Match: Match{APIKeyPattern: stars + strings.Repeat("a", 1<<16)}, Limits: []Limit{PerMinute(9)}, Override: map[string][]Limit{}}}}
	for i := range 2000 {
		overrides.Rules[0].Override[fmt.Sprint("k", i)] = []Limit{PerMinute(1)}
	}
	rs = compiled(t, overrides)
	if c := rs.warnOfOverrides(); c >= 0 || c < most || !said(rs, "too many overrides") {
		t.Errorf("overrides: %d left of %d", c, maxCompared)
	}

	var layers Rules
	for i := range 6000 {
		layers.Rules = append(layers.Rules, Rule{
			ID: fmt.Sprint("r", i), Layer: fmt.Sprint("l", i/1000), Limits: []Limit{PerMinute(1)},
			Match: Match{APIKeyPattern: fmt.Sprint("*a*a*a*a*a*", i), Endpoint: fmt.Sprint("/a/", i)},
		})
	}
	rs = compiled(t, layers)
	if c := rs.warnOfLayers(); c >= 0 || c < most || !said(rs, "too many rules share a layer") {
		t.Errorf("layers: %d left of %d: %v", c, maxCompared, rs.Warnings())
	}

	var addresses Rules
	for i := range 3000 {
		addresses.Rules = append(addresses.Rules, Rule{ID: fmt.Sprint("r", i), By: []string{"ip"}, Limits: []Limit{PerMinute(1)}},
			Rule{ID: fmt.Sprint("k", i), Match: Match{Endpoint: "/" + fmt.Sprint(i)}, Limits: []Limit{PerMinute(1)}})
	}
	rs = compiled(t, addresses)
	if c := rs.warnOfAddresses(); c >= 0 || c < most || !said(rs, "too many rules count by address") {
		t.Errorf("addresses: %d left of %d", c, maxCompared)
	}

	other := layers
	other.Rules = slices.Clone(layers.Rules)
	for i := range other.Rules {
		other.Rules[i].Match.Endpoint = fmt.Sprint("/b/", i)
	}
	dropped, c := compiled(t, other).dropped(rs)
	if c >= 0 || c < most || len(dropped) == 0 {
		t.Errorf("dropped: %d left of %d, and found %d", c, maxCompared, len(dropped))
	}
	if _, all := compiled(t, other).Dropped(rs); all {
		t.Error("dropped: says that it has looked at all")
	}
}

// Large documents of people who mean no harm are looked at whole.
func TestLargeDocumentsAreLookedAtWhole(t *testing.T) {
	doc := Rules{Tiers: []Tier{{"free", []Limit{PerMinute(1)}}, {"pro", []Limit{PerMinute(2)}}}}
	for i := range 20 {
		doc.Keys = append(doc.Keys, KeyTier{fmt.Sprint("sk_", i, "_*_live"), "free"})
		doc.Deny = append(doc.Deny, fmt.Sprint("*_leaked_", i))
	}
	for i := range 40_000 {
		doc.Keys = append(doc.Keys, KeyTier{fmt.Sprintf("sk_customer_%032d", i), "pro"})
	}
	doc.Keys = append(doc.Keys, KeyTier{"sk_7_x_live", "pro"})
	for i := range 1000 {
		doc.Rules = append(doc.Rules, Rule{ID: fmt.Sprint("r", i), Layer: "api", Match: Match{Endpoint: fmt.Sprint("GET /v1/things/", i, "/parts/{part}")}})
	}
	doc.Rules = append(doc.Rules, Rule{ID: "never", Layer: "api", Match: Match{Endpoint: "GET /v1/things/7/parts/{other}"}})
	rs := compiled(t, doc)
	if said(rs, "too many") || !said(rs, `"sk_7_*_live" stands before it`) || !said(rs, "never applies") {
		t.Error(rs.Warnings())
	}
	older := doc
	older.Rules = append(slices.Clone(doc.Rules), Rule{ID: "gone", Match: Match{Endpoint: "/gone"}})
	if dropped, all := rs.Dropped(compiled(t, older)); !all || len(dropped) != 1 || dropped[0] != len(doc.Rules) {
		t.Errorf("dropped %v, %v", dropped, all)
	}
}

// Ranks are those of the definition: of the rules that are left, the first that none is more specific than.
func TestRanksOfALayer(t *testing.T) {
	paths := []string{"", "/", "/a/", "/a", "/{x}", "/{x}/", "/a/b", "/a/{y}", "/{x}/b", "GET /a/", "GET /{x}/b", "HEAD /a/b", "/a/b/"}
	for range 500 {
		var doc Rules
		for i := range 1 + rand.IntN(12) {
			doc.Rules = append(doc.Rules, Rule{ID: fmt.Sprint("r", i), Layer: "l", Limits: []Limit{PerMinute(1)}, Match: Match{Endpoint: paths[rand.IntN(len(paths))]}})
		}
		rs := compiled(t, doc)
		left := make([]*rule, len(rs.rules))
		for i := range rs.rules {
			left[i] = &rs.rules[i]
		}
		of := func(r *rule) *pattern.Endpoint {
			if r.endpoint == nil {
				return &pattern.Endpoint{Subtree: true}
			}
			return r.endpoint
		}
		for rank := range rs.rules {
			first := slices.IndexFunc(left, func(r *rule) bool {
				return !slices.ContainsFunc(left, func(o *rule) bool { return of(o).MoreSpecific(of(r)) })
			})
			if left[first].rank != rank {
				t.Fatalf("%s %q has rank %d, want %d", left[first].ID, left[first].Match.Endpoint, left[first].rank, rank)
			}
			left = slices.Delete(left, first, first+1)
		}
	}
}

// A sliding counter of a small limit is warned about, with what it loses; the log isn't, nor is a counter from 50 up.
func TestWarnsOfSmallCounters(t *testing.T) {
	small := []Tier{{"free", []Limit{PerMinute(10)}}, {"pro", []Limit{PerMinute(1000)}}}
	for _, c := range []struct {
		rule  Rule
		tiers []Tier
		want  string
	}{
		{Rule{Algorithm: SlidingCounter, Limits: []Limit{PerMinute(50)}}, nil, ""},
		{Rule{Algorithm: SlidingCounter, Limits: []Limit{PerMinute(49)}}, nil, "up to 3% less"},
		{Rule{Algorithm: SlidingCounter, Limits: []Limit{PerMinute(1000), PerSecond(10)}}, nil, "up to 10% less"},
		{Rule{Algorithm: SlidingCounter, Limits: []Limit{PerMinute(1)}}, nil, "up to 50% less"},
		{Rule{Algorithm: SlidingCounter, Limits: []Limit{PerMinute(100)}, Cost: 10}, nil, "up to 10% less"},
		{Rule{Algorithm: SlidingCounter}, small, "up to 10% less"},
		{Rule{Algorithm: SlidingLog, Limits: []Limit{PerMinute(10)}}, nil, ""},
	} {
		c.rule.ID = "a"
		rs := compiled(t, Rules{Tiers: c.tiers, Rules: []Rule{c.rule}})
		if c.want == "" && said(rs, "sliding_window_log") || c.want != "" && (!said(rs, c.want) || !said(rs, "below 50 write `algorithm: sliding_window_log`")) {
			t.Errorf("%+v: want %q, got %v", c.rule, c.want, rs.Warnings())
		}
	}
}

// An override for a key that its rule isn't for, or for something other than a key, is a mistake.
func TestOverridesThatNeverApply(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		key  string
		want string
	}{
		{Rule{Match: Match{NoKey: true}}, "sk_1", "the rule is for requests without a key"},
		{Rule{Match: Match{APIKeyPattern: "sk_prod_*"}}, "sk_1", `the rule is for keys that match "sk_prod_*"`},
		{Rule{Match: Match{APIKeyPattern: "sk_prod_*"}}, "sk_prod_1", ""},
		{Rule{By: []string{"org", "api_key"}}, "org:acme", "an override names an API key"},
		{Rule{}, "user:42", "an override names an API key"},
		{Rule{}, "org", ""},
		{Rule{}, "live:42", ""},
	} {
		c.rule.ID, c.rule.Limits, c.rule.Override = "a", []Limit{PerMinute(10)}, map[string][]Limit{c.key: {PerMinute(20)}}
		rs := compiled(t, Rules{Rules: []Rule{c.rule}})
		if said(rs, "never applies: ") != (c.want != "") || c.want != "" && !said(rs, c.want) {
			t.Errorf("%+v: want %q, got %v", c.rule, c.want, rs.Warnings())
		}
	}
}

// A rule by address that is below what a tier or an override gives a client refuses that client first.
func TestAddressesThatCapClients(t *testing.T) {
	tiers := []Tier{{"free", []Limit{PerMinute(100)}}, {"pro", []Limit{{Count: 1000, Window: time.Minute, Burst: 200}}}}
	for name, c := range map[string]struct {
		address, quota Rule
		want           string
	}{
		"below pro":                {Rule{Limits: []Limit{PerMinute(900)}}, Rule{}, `rules[1]: caps tier "pro": "quota" gives a client of that tier 1000/minute, and this rule admits 900/minute for its address; write ` + "`tier: free`"},
		"below both":               {Rule{Limits: []Limit{PerSecond(20), PerHour(5000)}}, Rule{}, `rules[1]: caps tier "pro": "quota" gives a client of that tier 1000/minute, and this rule admits 5000/hour`},
		"below pro's burst":        {Rule{Limits: []Limit{PerSecond(20)}}, Rule{}, `rules[1]: caps tier "pro": "quota" gives a client of that tier 200 at once, and this rule admits 20 requests at once`},
		"below free, for it alone": {Rule{Tier: "free", Limits: []Limit{PerMinute(90)}}, Rule{}, `rules[1]: caps tier "free": "quota" gives a client of that tier 100/minute, and this rule admits 90/minute for its address; raise its limit`},
		"by what a request costs":  {Rule{Cost: 2, Limits: []Limit{PerMinute(1200)}}, Rule{}, `caps tier "pro"`},
		"the rule's own tiers":     {Rule{Limits: []Limit{PerMinute(1200)}}, Rule{Tiers: []Tier{{"pro", []Limit{PerMinute(3000)}}}}, `caps tier "pro": "quota" gives a client of that tier 3000/minute`},
		"an override":              {Rule{Limits: []Limit{PerMinute(1200)}}, Rule{Override: map[string][]Limit{"b": {PerMinute(5000)}, "a": {PerMinute(6000)}}}, `rules[0].override.a: is capped: it gives the client 6000/minute, and "address" admits 1200/minute for its address`},
		"of clients with a key":    {Rule{Match: Match{HasKey: true}, Limits: []Limit{PerMinute(900)}}, Rule{}, `caps tier "pro": "quota" gives a client of that tier 1000/minute, and this rule admits 900/minute for its address; write ` + "`tier: free`"},
		"of keys like *":           {Rule{Match: Match{APIKeyPattern: "*"}, Limits: []Limit{PerMinute(900)}}, Rule{}, `this rule admits 900/minute for its address; raise its limit`},
		"of paths below /":         {Rule{Match: Match{Endpoint: "/"}, Limits: []Limit{PerMinute(900)}}, Rule{}, `caps tier "pro"`},
		"of paths like .*":         {Rule{Match: Match{EndpointRegex: "^/.*"}, Limits: []Limit{PerMinute(900)}}, Rule{}, `caps tier "pro"`},
		"of GETs below /":          {Rule{Match: Match{Endpoint: "GET /"}, Limits: []Limit{PerMinute(900)}}, Rule{}, ""},
		"of users with a key":      {Rule{Match: Match{HasKey: true}, Limits: []Limit{PerMinute(900)}}, Rule{By: []string{"user"}}, ""},
		"an override of pro":       {Rule{Tier: "free", Limits: []Limit{PerMinute(1200)}}, Rule{Override: map[string][]Limit{"sk_prod_1": {PerMinute(5000)}}}, ""},
		"above":                    {Rule{Limits: []Limit{PerMinute(1000)}}, Rule{}, ""},
		"for free alone":           {Rule{Tier: "free", Limits: []Limit{PerMinute(100)}}, Rule{}, ""},
		"more for pro":             {Rule{Limits: []Limit{PerMinute(100)}, Tiers: []Tier{{"pro", []Limit{PerMinute(1000)}}}}, Rule{}, ""},
		"for no key":               {Rule{Match: Match{NoKey: true}, Limits: []Limit{PerMinute(10)}}, Rule{}, ""},
		"for one endpoint":         {Rule{Match: Match{Endpoint: "/login"}, Limits: []Limit{PerMinute(10)}}, Rule{}, ""},
		"in the same layer":        {Rule{Layer: "l", Limits: []Limit{PerMinute(10)}}, Rule{Layer: "l"}, ""},
		"in shadow":                {Rule{Shadow: true, Limits: []Limit{PerMinute(10)}}, Rule{}, ""},
		"of failures":              {Rule{Statuses: []int{401}, Limits: []Limit{PerMinute(10)}}, Rule{}, ""},
		"a quota of a day":         {Rule{Limits: []Limit{PerMinute(100)}}, Rule{Limits: []Limit{PerHour(1)}, Tiers: []Tier{{"pro", []Limit{{Count: 10_000, Window: 24 * time.Hour}}}}}, ""},
		"numbers for all":          {Rule{Limits: []Limit{PerMinute(100)}}, Rule{Limits: []Limit{PerMinute(200)}}, ""},
	} {
		c.quota.ID, c.address.ID, c.address.By = "quota", "address", []string{"ip"}
		rs := compiled(t, Rules{Tiers: tiers, Keys: []KeyTier{{"sk_prod_*", "pro"}}, Rules: []Rule{c.quota, c.address}})
		var found []string
		for _, p := range rs.Warnings() {
			if strings.Contains(p.Text, "cap") {
				found = append(found, p.Error())
			}
		}
		if got := strings.Join(found, "\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
	}
}
