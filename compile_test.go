package weir_test

import (
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

// TestCompileKeepsCountersApart: Compile rejects two limits that would share a counter if both could apply to a request.
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
