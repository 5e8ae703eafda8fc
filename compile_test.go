package weir_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

func storeOf() counter.Store { return memstore.New(memstore.Options{}) }

func TestCompileRejectsWhatCannotBe(t *testing.T) {
	one := func(r weir.Rule) weir.Rules { return weir.Rules{Rules: []weir.Rule{r}} }
	ok := per(10, time.Minute)
	log := weir.Limit{Algorithm: weir.SlidingLog, Count: 1, Window: time.Minute}
	for want, doc := range map[string]weir.Rules{
		`rules[0].id: a rule needs an id`:                                    one(weir.Rule{Limits: ok}),
		`rules[0].id: must be at most 64 characters, got 65`:                 one(weir.Rule{ID: strings.Repeat("a", 65), Limits: ok}),
		`rules[0].id: must be of a-z, 0-9, _ and - only, got "a b"`:          one(weir.Rule{ID: "a b", Limits: ok}),
		`rules[1].id: "a" is the id of rules[0], too`:                        {Rules: []weir.Rule{{ID: "A", Limits: ok}, {ID: "a", Limits: ok}}},
		`rules[0]: has no numbers`:                                           one(weir.Rule{ID: "a"}),
		`rules[0].limit: must be at least 1, got 0`:                          one(weir.Rule{ID: "a", Limits: per(0, time.Minute)}),
		`rules[0].window: must be at least 1ms`:                              one(weir.Rule{ID: "a", Limits: per(1, 0)}),
		`rules[0].burst: fixed_window has no burst`:                          one(weir.Rule{ID: "a", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 1, Window: time.Second, Burst: 2}}}),
		`rules[0].limits[1].limit: must be at least 1, got -3`:               one(weir.Rule{ID: "a", Limits: []weir.Limit{{Count: 1, Window: time.Second}, {Count: -3, Window: time.Hour}}}),
		`rules[0].limits[1]: the rule has two limits over 1m`:                one(weir.Rule{ID: "a", Limits: append(per(5, time.Minute), ok...)}),
		`rules[0]: refuses everything: a request costs 11 and at most 10`:    one(weir.Rule{ID: "a", Cost: 11, Limits: ok}),
		`rules[0].cost: must be from 1`:                                      one(weir.Rule{ID: "a", Cost: -1, Limits: ok}),
		`rules[0].by[1]: must be one of api_key, user`:                       one(weir.Rule{ID: "a", By: []string{"ip", "usr"}, Limits: ok}),
		`to path:8, for that many segments of the path, got "path:9"`:        one(weir.Rule{ID: "a", By: []string{"path:9"}, Limits: ok}),
		`to path:8, for that many segments of the path, got "path:0"`:        one(weir.Rule{ID: "a", By: []string{"path:0"}, Limits: ok}),
		`to path:8, for that many segments of the path, got "path:x"`:        one(weir.Rule{ID: "a", By: []string{"path:x"}, Limits: ok}),
		`to path:8, for that many segments of the path, got "path:"`:         one(weir.Rule{ID: "a", By: []string{"path:"}, Limits: ok}),
		`rules[0].by[1]: path:2 is listed twice`:                             one(weir.Rule{ID: "a", By: []string{"path", "path:2"}, Limits: ok}),
		`rules[0].by[1]: ip is listed twice`:                                 one(weir.Rule{ID: "a", By: []string{"ip", "ip"}, Limits: ok}),
		`rules[0].match.endpoint: must be a path that begins with "/"`:       one(weir.Rule{ID: "a", Match: weir.Match{Endpoint: "login"}, Limits: ok}),
		`rules[0].match.endpoint: the method must be in capitals`:            one(weir.Rule{ID: "a", Match: weir.Match{Endpoint: "post /login"}, Limits: ok}),
		`rules[0].match.endpoint: the segment "b_{x}" mixes`:                 one(weir.Rule{ID: "a", Match: weir.Match{Endpoint: "/b_{x}"}, Limits: ok}),
		`rules[0].match.endpoint: the wildcard {x} appears twice`:            one(weir.Rule{ID: "a", Match: weir.Match{Endpoint: "/{x}/{x}"}, Limits: ok}),
		`rules[0].match.endpoint: {x...} must be the last`:                   one(weir.Rule{ID: "a", Match: weir.Match{Endpoint: "/{x...}/a"}, Limits: ok}),
		`rules[0].match.endpoint: {$} must be the last`:                      one(weir.Rule{ID: "a", Match: weir.Match{Endpoint: "/{$}/a"}, Limits: ok}),
		`rules[0].match.endpoint: has an empty segment`:                      one(weir.Rule{ID: "a", Match: weir.Match{Endpoint: "/a//b"}, Limits: ok}),
		`rules[0].match.endpoint: the wildcard "{}" must hold a name`:        one(weir.Rule{ID: "a", Match: weir.Match{Endpoint: "/{}"}, Limits: ok}),
		"rules[0].match.endpoint_regex: error parsing regexp: missing clos":  one(weir.Rule{ID: "a", Match: weir.Match{EndpointRegex: "/(a"}, Limits: ok}),
		`rules[0].match.api_key: no request has a key and has none`:          one(weir.Rule{ID: "a", Match: weir.Match{NoKey: true, HasKey: true}, Limits: ok}),
		`rules[0].match.api_key: a request without a key can't match`:        one(weir.Rule{ID: "a", Match: weir.Match{NoKey: true, APIKeyPattern: "x*"}, Limits: ok}),
		`rules[0].tier: there is no tier "pro": no tiers are listed`:         one(weir.Rule{ID: "a", Tier: "pro", Limits: ok}),
		`rules[0].count.status[0]: must be an HTTP status`:                   one(weir.Rule{ID: "a", Statuses: []int{42}, Limits: ok}),
		`rules[0].tiers.pro: needs a limit`:                                  one(weir.Rule{ID: "a", Limits: ok, Tiers: []weir.Tier{{Name: "pro"}}}),
		`rules[0].override.k: needs a limit`:                                 one(weir.Rule{ID: "a", Limits: ok, Override: map[string][]weir.Limit{"k": nil}}),
		`rules[0].override.k.limit: must be at least 1`:                      one(weir.Rule{ID: "a", Limits: ok, Override: map[string][]weir.Limit{"k": per(-1, time.Second)}}),
		`rules[0].candidate.limit: must be at least 1`:                       one(weir.Rule{ID: "a", Limits: ok, Candidate: per(0, time.Second)}),
		`tiers.free: needs a limit`:                                          {Tiers: []weir.Tier{{Name: "free"}}},
		`tiers[0]: a tier needs a name`:                                      {Tiers: []weir.Tier{{Limits: ok}}},
		`tiers.free: the tier is listed twice`:                               {Tiers: []weir.Tier{{Name: "free", Limits: ok}, {Name: "free", Limits: ok}}},
		`default_tier: there is no tier "gold": write one of free`:           {DefaultTier: "gold", Tiers: []weir.Tier{{Name: "free", Limits: ok}}},
		`keys.sk_*: there is no tier "pro": write one of free`:               {Keys: []weir.KeyTier{{Pattern: "sk_*", Tier: "pro"}}, Tiers: []weir.Tier{{Name: "free", Limits: ok}}},
		`deny[0]: "203.0.113.0/33" is neither a key nor an IP range`:         {Deny: []string{"203.0.113.0/33"}},
		`deny[0]: "203.0.113.*" is neither a key nor an IP range`:            {Deny: []string{"203.0.113.*"}},
		`rules[0].match.endpoint_regex: error parsing regexp: unexpected )`:  one(weir.Rule{ID: "a", Match: weir.Match{EndpointRegex: "^/x)|("}, Limits: ok}),
		`rules[0].override.sk_*: must be a whole API key`:                    one(weir.Rule{ID: "a", Limits: ok, Override: map[string][]weir.Limit{"sk_*": ok}}),
		`allow[0]: "*" matches every key`:                                    {Allow: []string{"*"}},
		`deny[1]: must be a key, a pattern such as sk_internal_* or an`:      {Deny: []string{"x", " "}},
		`rules[0].algorithm: this limit is a sliding_window_log, and its`:    one(weir.Rule{ID: "a", Limits: []weir.Limit{log}}),
		`rules[0].limits[1].algorithm: this limit is a fixed_window, and`:    one(weir.Rule{ID: "a", Algorithm: weir.SlidingLog, Limits: []weir.Limit{log, {Algorithm: weir.FixedWindow, Count: 1, Window: time.Hour}}}),
		`rules[0].tiers.pro.algorithm: this limit`:                           one(weir.Rule{ID: "a", Limits: ok, Tiers: []weir.Tier{{Name: "pro", Limits: []weir.Limit{log}}}}),
		`rules[0].override.k.algorithm: this limit`:                          one(weir.Rule{ID: "a", Limits: ok, Override: map[string][]weir.Limit{"k": {log}}}),
		`rules[0].candidate.algorithm: this limit`:                           one(weir.Rule{ID: "a", Limits: ok, Candidate: []weir.Limit{log}}),
		`with the numbers of tier "free": this limit is a sliding_window_lo`: {Tiers: []weir.Tier{{Name: "free", Limits: []weir.Limit{log}}}, Rules: []weir.Rule{{ID: "a"}}},
		`rules[0].max_delay: only a leaky_bucket with mode: queue delays`:    one(weir.Rule{ID: "a", MaxDelay: time.Second, Limits: ok}),
	} {
		_, err := weir.Compile(doc)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

// TestCompileKeepsCountersApart: limits that would be one counter, although both hold for a request.
func TestCompileKeepsCountersApart(t *testing.T) {
	second, hour, minute := weir.Limit{Count: 20, Window: time.Second}, weir.Limit{Count: 5000, Window: time.Hour}, weir.Limit{Count: 5, Window: time.Minute}
	two, one := []weir.Limit{second, hour}, []weir.Limit{minute}
	ip := []string{"ip"}
	api := weir.Rule{ID: "api", By: ip, Limits: two}
	tiers := []weir.Tier{{Name: "free", Limits: two}}
	for name, doc := range map[string]weir.Rules{
		"a rule's own numbers":    {Rules: []weir.Rule{api, {ID: "api-1s", By: ip, Limits: one}}},
		"the other way round":     {Rules: []weir.Rule{{ID: "api-1h", By: ip, Limits: one}, api}},
		"one of them in shadow":   {Rules: []weir.Rule{api, {ID: "api-1s", By: ip, Limits: one, Shadow: true}}},
		"for other endpoints":     {Rules: []weir.Rule{api, {ID: "api-1s", By: ip, Limits: one, Match: weir.Match{Endpoint: "/a"}}}},
		"in a layer":              {Rules: []weir.Rule{{ID: "api", By: ip, Limits: two, Layer: "x"}, {ID: "api-1s", By: ip, Limits: one, Layer: "x"}}},
		"one for all":             {Rules: []weir.Rule{{ID: "api", By: []string{}, Limits: two}, {ID: "api-1s", By: []string{}, Limits: one}}},
		"of the default tier":     {Tiers: tiers, Rules: []weir.Rule{{ID: "api", By: ip}, {ID: "api-1s", By: ip, Limits: one}}},
		"of a rule's tier":        {Rules: []weir.Rule{{ID: "api", By: ip, Limits: one, Tiers: tiers}, {ID: "api-1s", By: ip, Limits: one}}},
		"of an override":          {Rules: []weir.Rule{{ID: "api", Limits: one, Override: map[string][]weir.Limit{"k": two}}, {ID: "api-1s", Limits: one}}},
		"of two overrides":        {Rules: []weir.Rule{{ID: "api", Limits: one, Override: map[string][]weir.Limit{"k": two}}, {ID: "api-1h", Limits: []weir.Limit{second}, Override: map[string][]weir.Limit{"k": one}}}},
		"of candidates":           {Rules: []weir.Rule{{ID: "api", By: ip, Limits: one, Candidate: two}, {ID: "api-1s", By: ip, Limits: one, Candidate: one}}},
		"of names that go deeper": {Rules: []weir.Rule{{ID: "api-1s", By: ip, Limits: two}, {ID: "api-1s-1h", By: ip, Limits: one}}},
		"of a candidate and a strangely named dimension": {Rules: []weir.Rule{{ID: "api", By: []string{"attr:x"}, Limits: one, Candidate: two},
			{ID: "api-1s", By: []string{"attr:x candidate"}, Limits: one}}},
	} {
		_, err := weir.Compile(doc)
		if err == nil || !strings.Contains(err.Error(), "would be one counter: rename one of the rules") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, doc := range map[string]weir.Rules{
		"a candidate beside its own rule": {Rules: []weir.Rule{{ID: "api", By: ip, Limits: one, Candidate: []weir.Limit{{Count: 3, Window: time.Minute}}}}},
		"alternatives of a rule":          {Tiers: tiers, Rules: []weir.Rule{{ID: "api", Limits: two, Tiers: tiers, Override: map[string][]weir.Limit{"k": two, "l": one}}}},
		"counted by something else":       {Rules: []weir.Rule{api, {ID: "api-1s", By: []string{"user"}, Limits: one}}},
		"another algorithm":               {Rules: []weir.Rule{api, {ID: "api-1s", By: ip, Algorithm: weir.FixedWindow, Limits: one}}},
	} {
		if _, err := weir.Compile(doc); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCompileNamesEveryProblem(t *testing.T) {
	_, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "!"}, {ID: "b", Limits: per(0, time.Second), By: []string{"?"}}}})
	if got := strings.Count(err.Error(), "\n") + 1; got != 4 {
		t.Errorf("%d problems, want 4:\n%v", got, err)
	}
}

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
		{"small parts", []weir.Rule{ip, {ID: "a", By: []string{"ip"}, Strict: true, Split: 9, Limits: per(100, time.Minute)}, {ID: "b", By: []string{"ip"}, Strict: true, Split: 7, Cost: 10, Limits: per(1000, time.Minute)}, {ID: "c", By: []string{"ip"}, Strict: true, Split: 2, Limits: per(32, time.Minute)}}, []string{
			"rules[1].split: a part of 100/minute holds fewer than 16 requests: clients will be refused while other parts have room; write 6 or less", "rules[2].split: a part of 1000/minute holds fewer than 16 requests: clients will be refused while other parts have room; write 6 or less"}},
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
	got := compile(t, doc).Warnings()
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

// TestNobody: what a document says about tiers and keys that nobody can have.
func TestNobody(t *testing.T) {
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

// TestUnreachable: rules of a layer that never apply, and those that give more to an invented key.
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
