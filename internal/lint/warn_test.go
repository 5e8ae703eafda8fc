package lint

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

func compiled(t *testing.T, doc weir.Rules) *weir.RuleSet {
	t.Helper()
	rs, err := Compile(doc)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// most is how far one step of a search may exceed the budget: by comparing one rule with a whole layer or a whole
// document.
const most = -maxCompared / 4

func warnings(rs *weir.RuleSet) []counter.Problem { return Warnings(rs.Rules(), rs) }

func said(rs *weir.RuleSet, text string) bool {
	return slices.ContainsFunc(warnings(rs), func(p counter.Problem) bool { return strings.Contains(p.Text, text) })
}

// left returns what a search leaves of its budget.
func left(rs *weir.RuleSet, search func(*document)) pattern.Budget {
	d := open(rs)
	search(d)
	return d.budget
}

// The work that a document can cause is bounded, whatever it contains, and a warning says what wasn't checked.
func TestSearchesForMistakesAreBounded(t *testing.T) {
	stars := strings.Repeat("*a", 40)
	tiers := []weir.Tier{{Name: "free", Limits: []weir.Limit{weir.PerMinute(1)}}, {Name: "pro", Limits: []weir.Limit{weir.PerMinute(2)}}}
	keys, lists := weir.Rules{Tiers: tiers, Rules: []weir.Rule{{ID: "quota"}}}, weir.Rules{Rules: []weir.Rule{{ID: "quota", Limits: []weir.Limit{weir.PerMinute(9)}, Override: map[string][]weir.Limit{}}}}
	for i := range 999 {
		keys.Keys = append(keys.Keys, weir.KeyTier{Pattern: fmt.Sprint(stars, "b", i, "*c"), Tier: "free"})
		lists.Deny = append(lists.Deny, fmt.Sprint(stars, "b", i, "*c"))
	}
	for i := range 38_000 {
		name := fmt.Sprint(strings.Repeat("a", 60), i)
		keys.Keys = append(keys.Keys, weir.KeyTier{Pattern: name, Tier: "pro"})
		lists.Rules[0].Override[name] = []weir.Limit{weir.PerMinute(9)}
	}
	rs := compiled(t, keys)
	if c := left(rs, (*document).warnOfKeys); c >= 0 || c < most || !said(rs, "too many to hold them all against each other") {
		t.Errorf("keys: %d left of %d: %v", c, maxCompared, warnings(rs))
	}
	rs = compiled(t, lists)
	if c := left(rs, (*document).warnOfLists); c >= 0 || c < most || !said(rs, "too many to hold them all against each other") {
		t.Errorf("lists: %d left of %d: %v", c, maxCompared, warnings(rs))
	}

	var paths weir.Rules
	for i := range 6000 {
		paths.Rules = append(paths.Rules, weir.Rule{ID: fmt.Sprint("r", i), By: []string{"path"}, Limits: []weir.Limit{weir.PerMinute(1)}, Match: weir.Match{Endpoint: fmt.Sprint("/a/", i)}})
	}
	rs = compiled(t, paths)
	if c := left(rs, (*document).warnOfPaths); c >= 0 || c < most || !said(rs, "too many to hold them all against each other") {
		t.Errorf("paths: %d left of %d", c, maxCompared)
	}

	overrides := weir.Rules{Rules: []weir.Rule{{ID: "a", Match: weir.Match{APIKeyPattern: stars + strings.Repeat("a", 1<<16)}, Limits: []weir.Limit{weir.PerMinute(9)}, Override: map[string][]weir.Limit{}}}}
	for i := range 2000 {
		overrides.Rules[0].Override[fmt.Sprint("k", i)] = []weir.Limit{weir.PerMinute(1)}
	}
	rs = compiled(t, overrides)
	if c := left(rs, (*document).warnOfOverrides); c >= 0 || c < most || !said(rs, "too many to hold them all against each other") {
		t.Errorf("overrides: %d left of %d", c, maxCompared)
	}

	var layers weir.Rules
	for i := range 6000 {
		layers.Rules = append(layers.Rules, weir.Rule{
			ID: fmt.Sprint("r", i), Layer: fmt.Sprint("l", i/1000), Limits: []weir.Limit{weir.PerMinute(1)},
			Match: weir.Match{APIKeyPattern: fmt.Sprint("*a*a*a*a*a*", i), Endpoint: fmt.Sprint("/a/", i)},
		})
	}
	rs = compiled(t, layers)
	if c := left(rs, (*document).warnOfLayers); c >= 0 || c < most || !said(rs, "too many to hold them all against each other") {
		t.Errorf("layers: %d left of %d: %v", c, maxCompared, warnings(rs))
	}

	var addresses weir.Rules
	for i := range 3000 {
		addresses.Rules = append(addresses.Rules, weir.Rule{ID: fmt.Sprint("r", i), By: []string{"ip"}, Limits: []weir.Limit{weir.PerMinute(1)}},
			weir.Rule{ID: fmt.Sprint("k", i), Match: weir.Match{Endpoint: "/" + fmt.Sprint(i)}, Limits: []weir.Limit{weir.PerMinute(1)}})
	}
	rs = compiled(t, addresses)
	if c := left(rs, (*document).warnOfAddresses); c >= 0 || c < most || !said(rs, "too many to hold them all against each other") {
		t.Errorf("addresses: %d left of %d", c, maxCompared)
	}

	other := layers
	other.Rules = slices.Clone(layers.Rules)
	for i := range other.Rules {
		other.Rules[i].Match.Endpoint = fmt.Sprint("/b/", i)
	}
	d := open(compiled(t, other))
	dropped := d.dropped(open(rs))
	if c := d.budget; c >= 0 || c < most || len(dropped) == 0 {
		t.Errorf("dropped: %d left of %d, and found %d", d.budget, maxCompared, len(dropped))
	}
	if _, all := Dropped(rs, compiled(t, other)); all {
		t.Error("dropped: says that it has looked at all")
	}
}

// Large but ordinary documents are checked completely.
func TestLargeDocumentsAreLookedAtWhole(t *testing.T) {
	doc := weir.Rules{Tiers: []weir.Tier{{Name: "free", Limits: []weir.Limit{weir.PerMinute(1)}}, {Name: "pro", Limits: []weir.Limit{weir.PerMinute(2)}}}}
	for i := range 20 {
		doc.Keys = append(doc.Keys, weir.KeyTier{Pattern: fmt.Sprint("sk_", i, "_*_live"), Tier: "free"})
		doc.Deny = append(doc.Deny, fmt.Sprint("*_leaked_", i))
	}
	for i := range 40_000 {
		doc.Keys = append(doc.Keys, weir.KeyTier{Pattern: fmt.Sprintf("sk_customer_%032d", i), Tier: "pro"})
	}
	doc.Keys = append(doc.Keys, weir.KeyTier{Pattern: "sk_7_x_live", Tier: "pro"})
	for i := range 1000 {
		doc.Rules = append(doc.Rules, weir.Rule{ID: fmt.Sprint("r", i), Layer: "api", Match: weir.Match{Endpoint: fmt.Sprint("GET /v1/things/", i, "/parts/{part}")}})
	}
	doc.Rules = append(doc.Rules, weir.Rule{ID: "never", Layer: "api", Match: weir.Match{Endpoint: "GET /v1/things/7/parts/{other}"}})
	rs := compiled(t, doc)
	if said(rs, "too many") || !said(rs, `"sk_7_*_live" stands before it`) || !said(rs, "never applies") {
		t.Error(warnings(rs))
	}
	older := doc
	older.Rules = append(slices.Clone(doc.Rules), weir.Rule{ID: "gone", Match: weir.Match{Endpoint: "/gone"}})
	if dropped, all := Dropped(compiled(t, older), rs); !all || len(dropped) != 1 || dropped[0] != len(doc.Rules) {
		t.Errorf("dropped %v, %v", dropped, all)
	}
}

// Sliding counters with limits below 50 are warned about, with the amount that they may lose. Sliding logs and larger
// limits aren't.
func TestWarnsOfSmallCounters(t *testing.T) {
	small := []weir.Tier{{Name: "free", Limits: []weir.Limit{weir.PerMinute(10)}}, {Name: "pro", Limits: []weir.Limit{weir.PerMinute(1000)}}}
	for _, c := range []struct {
		rule  weir.Rule
		tiers []weir.Tier
		want  string
	}{
		{weir.Rule{Algorithm: weir.SlidingCounter, Limits: []weir.Limit{weir.PerMinute(50)}}, nil, ""},
		{weir.Rule{Algorithm: weir.SlidingCounter, Limits: []weir.Limit{weir.PerMinute(49)}}, nil, "up to 3% less"},
		{weir.Rule{Algorithm: weir.SlidingCounter, Limits: []weir.Limit{weir.PerMinute(1000), weir.PerSecond(10)}}, nil, "up to 10% less"},
		{weir.Rule{Algorithm: weir.SlidingCounter, Limits: []weir.Limit{weir.PerMinute(1)}}, nil, "up to 50% less"},
		{weir.Rule{Algorithm: weir.SlidingCounter, Limits: []weir.Limit{weir.PerMinute(100)}, Cost: 10}, nil, "up to 10% less"},
		{weir.Rule{Algorithm: weir.SlidingCounter}, small, "up to 10% less"},
		{weir.Rule{Algorithm: weir.SlidingLog, Limits: []weir.Limit{weir.PerMinute(10)}}, nil, ""},
	} {
		c.rule.ID = "a"
		rs := compiled(t, weir.Rules{Tiers: c.tiers, Rules: []weir.Rule{c.rule}})
		if c.want == "" && said(rs, "sliding_window_log") || c.want != "" && (!said(rs, c.want) || !said(rs, "below 50 write `algorithm: sliding_window_log`")) {
			t.Errorf("%+v: want %q, got %v", c.rule, c.want, warnings(rs))
		}
	}
}

// Overrides for keys to which a rule doesn't apply, or for something other than a key, are reported.
func TestOverridesThatNeverApply(t *testing.T) {
	for _, c := range []struct {
		rule weir.Rule
		key  string
		want string
	}{
		{weir.Rule{Match: weir.Match{NoKey: true}}, "sk_1", "the rule is for requests without a key"},
		{weir.Rule{Match: weir.Match{APIKeyPattern: "sk_prod_*"}}, "sk_1", `the rule is for keys that match "sk_prod_*"`},
		{weir.Rule{Match: weir.Match{APIKeyPattern: "sk_prod_*"}}, "sk_prod_1", ""},
		{weir.Rule{By: []string{"org", "api_key"}}, "org:acme", "an override names an API key"},
		{weir.Rule{}, "user:42", "an override names an API key"},
		{weir.Rule{}, "org", ""},
		{weir.Rule{}, "live:42", ""},
	} {
		c.rule.ID, c.rule.Limits, c.rule.Override = "a", []weir.Limit{weir.PerMinute(10)}, map[string][]weir.Limit{c.key: {weir.PerMinute(20)}}
		rs := compiled(t, weir.Rules{Rules: []weir.Rule{c.rule}})
		if said(rs, "never applies: ") != (c.want != "") || c.want != "" && !said(rs, c.want) {
			t.Errorf("%+v: want %q, got %v", c.rule, c.want, warnings(rs))
		}
	}
}

// A rule per address with a lower limit than a client's tier or override refuses that client first.
func TestAddressesThatCapClients(t *testing.T) {
	tiers := []weir.Tier{{Name: "free", Limits: []weir.Limit{weir.PerMinute(100)}}, {Name: "pro", Limits: []weir.Limit{{Count: 1000, Window: time.Minute, Burst: 200}}}}
	for name, c := range map[string]struct {
		address, quota weir.Rule
		want           string
	}{
		"below pro":                {weir.Rule{Limits: []weir.Limit{weir.PerMinute(900)}}, weir.Rule{}, `rules[1]: caps tier "pro": "quota" gives a client of that tier 1000/minute, and this rule admits 900/minute for its address; write ` + "`tier: free`"},
		"below both":               {weir.Rule{Limits: []weir.Limit{weir.PerSecond(20), weir.PerHour(5000)}}, weir.Rule{}, `rules[1]: caps tier "pro": "quota" gives a client of that tier 1000/minute, and this rule admits 5000/hour`},
		"below pro's burst":        {weir.Rule{Limits: []weir.Limit{weir.PerSecond(20)}}, weir.Rule{}, `rules[1]: caps tier "pro": "quota" gives a client of that tier 200 at once, and this rule admits 20 requests at once`},
		"below free, for it alone": {weir.Rule{Tier: "free", Limits: []weir.Limit{weir.PerMinute(90)}}, weir.Rule{}, `rules[1]: caps tier "free": "quota" gives a client of that tier 100/minute, and this rule admits 90/minute for its address; raise its limit`},
		"by what a request costs":  {weir.Rule{Cost: 2, Limits: []weir.Limit{weir.PerMinute(1200)}}, weir.Rule{}, `caps tier "pro"`},
		"the rule's own tiers":     {weir.Rule{Limits: []weir.Limit{weir.PerMinute(1200)}}, weir.Rule{Tiers: []weir.Tier{{Name: "pro", Limits: []weir.Limit{weir.PerMinute(3000)}}}}, `caps tier "pro": "quota" gives a client of that tier 3000/minute`},
		"an override":              {weir.Rule{Limits: []weir.Limit{weir.PerMinute(1200)}}, weir.Rule{Override: map[string][]weir.Limit{"b": {weir.PerMinute(5000)}, "a": {weir.PerMinute(6000)}}}, `rules[0].override.a: is capped: it gives the client 6000/minute, and "address" admits 1200/minute for its address`},
		"of clients with a key":    {weir.Rule{Match: weir.Match{HasKey: true}, Limits: []weir.Limit{weir.PerMinute(900)}}, weir.Rule{}, `caps tier "pro": "quota" gives a client of that tier 1000/minute, and this rule admits 900/minute for its address; write ` + "`tier: free`"},
		"of keys like *":           {weir.Rule{Match: weir.Match{APIKeyPattern: "*"}, Limits: []weir.Limit{weir.PerMinute(900)}}, weir.Rule{}, `this rule admits 900/minute for its address; raise its limit`},
		"of paths below /":         {weir.Rule{Match: weir.Match{Endpoint: "/"}, Limits: []weir.Limit{weir.PerMinute(900)}}, weir.Rule{}, `caps tier "pro"`},
		"of paths like .*":         {weir.Rule{Match: weir.Match{EndpointRegex: "^/.*"}, Limits: []weir.Limit{weir.PerMinute(900)}}, weir.Rule{}, `caps tier "pro"`},
		"of GETs below /":          {weir.Rule{Match: weir.Match{Endpoint: "GET /"}, Limits: []weir.Limit{weir.PerMinute(900)}}, weir.Rule{}, ""},
		"of users with a key":      {weir.Rule{Match: weir.Match{HasKey: true}, Limits: []weir.Limit{weir.PerMinute(900)}}, weir.Rule{By: []string{"user"}}, ""},
		"an override of pro":       {weir.Rule{Tier: "free", Limits: []weir.Limit{weir.PerMinute(1200)}}, weir.Rule{Override: map[string][]weir.Limit{"sk_prod_1": {weir.PerMinute(5000)}}}, ""},
		"above":                    {weir.Rule{Limits: []weir.Limit{weir.PerMinute(1000)}}, weir.Rule{}, ""},
		"for free alone":           {weir.Rule{Tier: "free", Limits: []weir.Limit{weir.PerMinute(100)}}, weir.Rule{}, ""},
		"more for pro":             {weir.Rule{Limits: []weir.Limit{weir.PerMinute(100)}, Tiers: []weir.Tier{{Name: "pro", Limits: []weir.Limit{weir.PerMinute(1000)}}}}, weir.Rule{}, ""},
		"for no key":               {weir.Rule{Match: weir.Match{NoKey: true}, Limits: []weir.Limit{weir.PerMinute(10)}}, weir.Rule{}, ""},
		"for one endpoint":         {weir.Rule{Match: weir.Match{Endpoint: "/login"}, Limits: []weir.Limit{weir.PerMinute(10)}}, weir.Rule{}, ""},
		"in the same layer":        {weir.Rule{Layer: "l", Limits: []weir.Limit{weir.PerMinute(10)}}, weir.Rule{Layer: "l"}, ""},
		"in shadow":                {weir.Rule{Shadow: true, Limits: []weir.Limit{weir.PerMinute(10)}}, weir.Rule{}, ""},
		"of failures":              {weir.Rule{Statuses: []int{401}, Limits: []weir.Limit{weir.PerMinute(10)}}, weir.Rule{}, ""},
		"a quota of a day":         {weir.Rule{Limits: []weir.Limit{weir.PerMinute(100)}}, weir.Rule{Limits: []weir.Limit{weir.PerHour(1)}, Tiers: []weir.Tier{{Name: "pro", Limits: []weir.Limit{{Count: 10_000, Window: 24 * time.Hour}}}}}, ""},
		"numbers for all":          {weir.Rule{Limits: []weir.Limit{weir.PerMinute(100)}}, weir.Rule{Limits: []weir.Limit{weir.PerMinute(200)}}, ""},
	} {
		c.quota.ID, c.address.ID, c.address.By = "quota", "address", []string{"ip"}
		rs := compiled(t, weir.Rules{Tiers: tiers, Keys: []weir.KeyTier{{Pattern: "sk_prod_*", Tier: "pro"}}, Rules: []weir.Rule{c.quota, c.address}})
		var found []string
		for _, p := range warnings(rs) {
			if strings.Contains(p.Text, "cap") {
				found = append(found, p.Error())
			}
		}
		if got := strings.Join(found, "\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
	}
}

func per(n int64, window time.Duration) []weir.Limit { return []weir.Limit{{Count: n, Window: window}} }

func TestCompileWarnings(t *testing.T) {
	ok := per(10, time.Minute)
	ip := weir.Rule{ID: "ip", By: []string{"ip"}, Limits: ok}
	for _, c := range []struct {
		name  string
		rules []weir.Rule
		want  []string
	}{
		{"nothing", []weir.Rule{{ID: "a", Limits: ok}, {ID: "ip", By: []string{"ip"}, Limits: ok}}, nil},
		{"folded id", []weir.Rule{{ID: "Quota", By: []string{"ip"}, Limits: ok}}, []string{`rules[0].id: "Quota" is read as "quota"`}},
		{"an address in a header", []weir.Rule{{ID: "a", By: []string{"header:x-forwarded-for"}, Limits: ok}, {ID: "b", By: []string{"ip"}, Limits: ok}}, []string{"rules[0]: counts by X-Forwarded-For"}},
		{"no ip rule", []weir.Rule{{ID: "a", Limits: ok}}, []string{"rules[0]: no rule counts by ip behind it"}},
		{"gaps", []weir.Rule{{ID: "a", By: []string{"ip"}, Match: weir.Match{Endpoint: "/a"}, Limits: ok}}, []string{"rules: a request can match no rule"}},
		{"shadow is no rule", []weir.Rule{{ID: "a", By: []string{"ip"}, Shadow: true, Limits: ok}}, []string{"rules: a request can match no rule"}},
		{"networks of no address", []weir.Rule{ip, {ID: "a", By: []string{}, IPv4Prefix: 24, Limits: ok}, {ID: "b", Missing: weir.MissingSkip, IPv6Prefix: 48, Limits: ok}, {ID: "c", IPv6Prefix: 48, Limits: ok}}, []string{"rules[1]: `ipv4_prefix` and `ipv6_prefix` change nothing", "rules[2]: `ipv4_prefix` and"}},
		{"its own endpoint", []weir.Rule{ip, {ID: "a", By: []string{"ip", "endpoint"}, Match: weir.Match{Endpoint: "/a/"}, Limits: ok}}, []string{"rules[1].by: `endpoint` in `by` changes nothing: it stands for the rule's own `match`"}},
		{"its own regex", []weir.Rule{ip, {ID: "a", By: []string{"endpoint"}, Match: weir.Match{EndpointRegex: "^/a"}, Limits: ok}}, []string{"rules[1].by: `endpoint` in `by` changes nothing: it stands for the rule's own"}},
		{"no endpoints", []weir.Rule{ip, {ID: "a", By: []string{"ip", "endpoint"}, Limits: ok}}, []string{"rules[1].by: `endpoint` in `by` changes nothing: it stands for the endpoints of rules, and no rule has one"}},
		{"others' endpoints", []weir.Rule{{ID: "a", By: []string{"ip", "endpoint"}, Limits: ok}, {ID: "b", By: []string{"ip"}, Match: weir.Match{Endpoint: "/b"}, Limits: ok}}, nil},
		{"paths, and nothing behind", []weir.Rule{{ID: "a", By: []string{"ip", "path"}, Limits: ok}}, []string{"rules[0].by: no rule without `path` stands behind it"}},
		{"paths behind paths", []weir.Rule{{ID: "a", By: []string{"ip", "path"}, Limits: ok}, {ID: "b", By: []string{"ip", "path:1"}, Limits: ok}}, []string{"rules[0].by: no rule without `path`", "rules[1].by: no rule without `path`"}},
		{"paths, and all behind", []weir.Rule{{ID: "a", By: []string{"ip", "path:3"}, Match: weir.Match{Endpoint: "/a/"}, Limits: ok}, ip}, nil},
		{"paths, and the same endpoint behind", []weir.Rule{{ID: "a", By: []string{"path"}, Match: weir.Match{Endpoint: "/a/b/"}, Limits: ok}, {ID: "b", By: []string{"ip"}, Match: weir.Match{Endpoint: "/a/"}, Limits: ok}}, []string{"rules: a request can match no rule"}},
		{"paths, and others behind", []weir.Rule{{ID: "a", By: []string{"ip", "path"}, Limits: ok}, {ID: "b", By: []string{"ip"}, Match: weir.Match{Endpoint: "/a/"}, Limits: ok}}, []string{"rules[0].by: no rule without `path`"}},
		{"paths, and a shadow behind", []weir.Rule{{ID: "a", By: []string{"ip", "path"}, Limits: ok}, {ID: "b", By: []string{"ip"}, Shadow: true, Limits: ok}}, []string{"rules[0].by: no rule without `path`"}},
		{"paths, and an alternative", []weir.Rule{{ID: "a", Layer: "l", By: []string{"ip", "path"}, Match: weir.Match{Endpoint: "/a/"}, Limits: ok}, {ID: "b", Layer: "l", By: []string{"ip"}, Limits: ok}}, []string{"rules[0].by: no rule without `path`"}},
		{"paths in shadow", []weir.Rule{ip, {ID: "a", By: []string{"user", "path"}, Shadow: true, Limits: ok}}, nil},
	} {
		checkWarnings(t, c.name, weir.Rules{Rules: c.rules}, c.want)
	}
}

func checkWarnings(t *testing.T, name string, doc weir.Rules, want []string) {
	t.Helper()
	got := Warnings(doc, compiled(t, doc))
	if len(got) != len(want) {
		t.Errorf("%s: %v, want %v", name, got, want)
		return
	}
	for i, w := range want {
		if !strings.HasPrefix(got[i].Error(), w) {
			t.Errorf("%s: %q, want %q", name, got[i], w)
		}
	}
}

// TestTiersAndKeysOfNoClient checks warnings about tiers and keys that no client can have.
func TestTiersAndKeysOfNoClient(t *testing.T) {
	limits := per(10, time.Minute)
	tiers := []weir.Tier{{Name: "free", Limits: limits}, {Name: "pro", Limits: limits}, {Name: "max", Limits: limits}}
	rules := func(more ...weir.Rule) []weir.Rule {
		return append([]weir.Rule{{ID: "quota", By: []string{"ip"}, Limits: limits}}, more...)
	}
	for _, c := range []struct {
		name string
		doc  weir.Rules
		want []string
	}{
		{"tiers", weir.Rules{Tiers: tiers, Keys: []weir.KeyTier{{Pattern: "a*", Tier: "max"}}, Rules: rules()}, []string{"tiers.pro: nobody is in this tier, unless requests carry it"}},
		{"the default tier", weir.Rules{Tiers: tiers, DefaultTier: "max", Rules: rules(weir.Rule{ID: "a", Tier: "pro", Limits: limits})}, []string{"tiers.free: nobody"}},
		{"a rule's tiers", weir.Rules{Tiers: tiers[:2], Rules: rules(weir.Rule{ID: "a", Limits: limits, Tiers: tiers[1:2]})}, nil},
		{"keys behind a wider pattern", weir.Rules{Tiers: tiers, Rules: rules(), Keys: []weir.KeyTier{
			{Pattern: "sk_*", Tier: "pro"}, {Pattern: "sk_*_x*", Tier: "max"}, {Pattern: "sk_1", Tier: "max"}, {Pattern: "sk*", Tier: "max"}, {Pattern: "sk_2", Tier: "pro"}}},
			[]string{`keys.sk_*_x*: no key gets here: "sk_*" stands before it`, "keys.sk_1: no key gets here"}},
		{"refused keys", weir.Rules{Deny: []string{"sk_old_*"}, Rules: rules(
			weir.Rule{ID: "a", Match: weir.Match{APIKeyPattern: "sk_old_1*"}, Limits: limits},
			weir.Rule{ID: "b", Limits: limits, Override: map[string][]weir.Limit{"sk_old_7": limits, "sk_new": limits}})},
			[]string{`rules[1].match.api_key_pattern: the rule applies to nobody: "sk_old_*" on the deny list`, `rules[2].override.sk_old_7: changes nothing`}},
		{"free keys", weir.Rules{Allow: []string{"sk_in_*"}, Rules: rules(
			weir.Rule{ID: "a", Match: weir.Match{APIKeyPattern: "sk_in_*"}, Limits: limits}, weir.Rule{ID: "b", Match: weir.Match{APIKeyPattern: "sk_*"}, Limits: limits})},
			[]string{`rules[1].match.api_key_pattern: the rule applies to no verified key: "sk_in_*" on the allow list`}},
		{"no key to count by", weir.Rules{Rules: rules(weir.Rule{ID: "a", Match: weir.Match{NoKey: true}, Missing: weir.MissingSkip, Limits: limits})},
			[]string{"rules[1]: counts nothing"}},
	} {
		checkWarnings(t, c.name, c.doc, c.want)
	}
}

// If covers doesn't know a condition, lint would call a rule unreachable although it applies to other requests.
func TestConditionsTellRulesApart(t *testing.T) {
	limits := per(10, time.Minute)
	for i := range reflect.TypeFor[weir.Match]().NumField() {
		a, b := weir.Match{}, weir.Match{}
		set := func(m *weir.Match, text string) {
			switch f := reflect.ValueOf(m).Elem().Field(i); f.Kind() {
			case reflect.Bool:
				f.SetBool(text == "/a")
			case reflect.String:
				f.SetString(text)
			default:
				t.Fatalf("this test has to learn how to set a %s", f.Type())
			}
		}
		set(&a, "/a")
		set(&b, "/b")
		doc := weir.Rules{Rules: []weir.Rule{
			{ID: "a", Layer: "x", By: []string{"ip"}, Match: a, Limits: limits}, {ID: "b", Layer: "x", By: []string{"ip"}, Match: b, Limits: limits},
			{ID: "all", By: []string{"ip"}, Limits: limits},
		}}
		checkWarnings(t, reflect.TypeFor[weir.Match]().Field(i).Name, doc, nil)
	}
}

// TestUnreachable checks warnings about rules of a layer that never apply, and about rules that give more to made-up
// keys.
func TestUnreachable(t *testing.T) {
	limits, more := per(10, time.Minute), per(100, time.Minute)
	rule := func(id string, m weir.Match, limits []weir.Limit) weir.Rule {
		return weir.Rule{ID: id, Layer: "x", By: []string{"ip"}, Match: m, Limits: limits}
	}
	tiered := func(id, tier string) weir.Rule {
		r := rule(id, weir.Match{}, limits)
		r.Tier = tier
		return r
	}
	all := rule("all", weir.Match{}, limits)
	never := func(i int, by string) []string {
		return []string{fmt.Sprintf("rules[%d]: never applies: %q goes before it in the layer \"x\"", i, by)}
	}
	for _, c := range []struct {
		name  string
		rules []weir.Rule
		want  []string
	}{
		{"the same", []weir.Rule{all, rule("b", weir.Match{}, limits)}, never(1, "all")},
		{"a more specific one behind", []weir.Rule{all, rule("b", weir.Match{Endpoint: "/a"}, limits)}, nil},
		{"the same endpoint", []weir.Rule{rule("a", weir.Match{Endpoint: "/a/{x}"}, limits), rule("b", weir.Match{Endpoint: "/a/{y}"}, limits), all}, never(1, "a")},
		{"another method", []weir.Rule{rule("a", weir.Match{Endpoint: "GET /a"}, limits), rule("b", weir.Match{Endpoint: "POST /a"}, limits), all}, nil},
		{"a key within a pattern", []weir.Rule{rule("a", weir.Match{APIKeyPattern: "sk_*"}, limits), rule("b", weir.Match{APIKeyPattern: "sk_b_*"}, limits), all}, never(1, "a")},
		{"a pattern behind a key", []weir.Rule{rule("a", weir.Match{APIKeyPattern: "sk_b_*"}, limits), rule("b", weir.Match{APIKeyPattern: "sk_*"}, limits), all}, nil},
		{"a pattern behind all", []weir.Rule{all, rule("b", weir.Match{APIKeyPattern: "sk_*"}, more)}, never(1, "all")},
		{"a regex behind all", []weir.Rule{all, rule("b", weir.Match{EndpointRegex: "^/a"}, limits)}, never(1, "all")},
		{"other regexes", []weir.Rule{rule("a", weir.Match{EndpointRegex: "^/a"}, limits), rule("b", weir.Match{EndpointRegex: "^/b"}, limits), all}, nil},
		{"present and absent", []weir.Rule{rule("a", weir.Match{HasKey: true}, limits), rule("b", weir.Match{NoKey: true}, limits), all}, nil},
		{"present, and a pattern", []weir.Rule{rule("a", weir.Match{HasKey: true}, limits), rule("b", weir.Match{APIKeyPattern: "b*"}, limits), all}, never(1, "a")},
		{"other tiers", []weir.Rule{tiered("a", "free"), tiered("b", "pro"), all}, nil},
		{"the same tier", []weir.Rule{tiered("a", "pro"), tiered("b", "pro"), all}, never(1, "a")},
		{"preflights", []weir.Rule{rule("a", weir.Match{Endpoint: "/a"}, limits), rule("b", weir.Match{Endpoint: "OPTIONS /a", EndpointRegex: "x"}, limits), all}, nil},
		{"no layer", []weir.Rule{{ID: "a", By: []string{"ip"}, Limits: limits}, {ID: "b", By: []string{"ip"}, Limits: limits}}, nil},
		{"an invented key", []weir.Rule{rule("vip", weir.Match{APIKeyPattern: "sk_vip_*"}, more), all},
			[]string{"rules[0].match.api_key_pattern: a client that invents such a key gets 100/minute in place of \"all\"'s 10/minute"}},
		{"an invented key gets less", []weir.Rule{rule("trial", weir.Match{APIKeyPattern: "sk_try_*"}, limits), rule("all", weir.Match{}, more)}, nil},
		{"a key that must be known", []weir.Rule{rule("vip", weir.Match{APIKeyPattern: "sk_vip_1"}, more), all}, nil},
	} {
		doc := weir.Rules{Rules: c.rules, Tiers: []weir.Tier{{Name: "free", Limits: limits}, {Name: "pro", Limits: limits}}, Keys: []weir.KeyTier{{Pattern: "p*", Tier: "pro"}}}
		checkWarnings(t, c.name, doc, c.want)
	}
}

// TestDroppedDescriptor checks that a removed limit is reported, except if its numbers came from a configuration.
func TestDroppedDescriptor(t *testing.T) {
	compile := func(rules ...weir.Rule) *weir.RuleSet {
		t.Helper()
		rs, err := weir.Compile(weir.Rules{Rules: append(rules, weir.Rule{ID: "all", Limits: []weir.Limit{weir.PerMinute(1)}})})
		if err != nil {
			t.Fatal(err)
		}
		return rs
	}
	own := weir.Rule{ID: "own", Descriptor: []string{"edge", "a"}, Limits: []weir.Limit{weir.PerMinute(1)}}
	borrowed := weir.Rule{ID: "borrowed", Descriptor: []string{"edge", "b"}, Limits: []weir.Limit{{Burst: 3}}}
	renamed := own
	renamed.ID = "renamed"
	if got, _ := Dropped(compile(own, borrowed), compile()); !slices.Equal(got, []int{0}) {
		t.Errorf("dropped %v, want the one with a limit of its own", got)
	}
	if got, _ := Dropped(compile(own), compile(renamed)); len(got) > 0 {
		t.Errorf("dropped %v, and another rule is for the same descriptor", got)
	}
}

// TestDescriptorsAndGaps checks that a document with only rules for Envoy's descriptors isn't warned about requests
// without a rule.
func TestDescriptorsAndGaps(t *testing.T) {
	named := weir.Rule{ID: "named", Descriptor: []string{"edge", "tenant=acme"}, Limits: []weir.Limit{weir.PerMinute(1)}}
	if w := warnings(compiled(t, weir.Rules{Rules: []weir.Rule{named}})); len(w) > 0 {
		t.Errorf("a document for Envoy alone is warned about: %v", w)
	}
	// Next to another rule, it neither fills a gap nor is it a fallback.
	beside, err := weir.Compile(weir.Rules{Rules: []weir.Rule{named, {ID: "paths", By: []string{"path"}, Match: weir.Match{Endpoint: "/x/"}, Limits: []weir.Limit{weir.PerMinute(1)}}}})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, w := range warnings(beside) {
		texts = append(texts, w.Path+": "+w.Text)
	}
	for _, want := range []string{"a request can match no rule at all", "no rule without `path` stands behind it"} {
		if !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("%q isn't among %q", want, texts)
		}
	}
}

func TestScopesThatAdmitMore(t *testing.T) {
	rs := compiled(t, weir.Rules{Rules: []weir.Rule{{ID: "apart", Limits: []weir.Limit{weir.PerMinute(10)}, Global: true, OnPartition: weir.FailLocal}}})
	if !said(rs, "the limit times the regions") {
		t.Errorf("%v", warnings(rs))
	}
}
