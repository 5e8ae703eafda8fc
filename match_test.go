package weir_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
	"pgregory.net/rapid"
)

// applied returns the ids of the rules that apply to a request. It fails the test if the limiter and Explain disagree.
func applied(t testing.TB, rs *weir.RuleSet, req weir.Request) []string {
	t.Helper()
	var ids []string
	for _, r := range rs.Explain(&req).Rules {
		if r.Applies {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func TestPathsInDisguise(t *testing.T) {
	for _, want := range []string{"/login", "/v1/orders/17"} {
		rs := compile(t, weir.Rules{Rules: []weir.Rule{
			{ID: "endpoint", Match: weir.Match{Endpoint: want}, Limits: per(1, time.Second)},
			{ID: "regex", Match: weir.Match{EndpointRegex: "^" + want + "$"}, Limits: per(1, time.Second)},
			{ID: "both", Match: weir.Match{Endpoint: want, EndpointRegex: "[0-9n]$"}, Limits: per(1, time.Second)},
		}})
		escaped := strings.ReplaceAll(want, "o", "%6F")
		twice := strings.ReplaceAll(want, "o", "%256f")
		for _, path := range []string{
			want, want + "/", "/" + want, "/." + want, "/a/.." + want, "/a/%2e%2e" + want, "/a/..;x=y" + want,
			strings.ToUpper(want), escaped, twice, want + ";x=y", want + ";", want + "?a=b", want + "//", want + "/.",
			strings.ReplaceAll(want, "/", "%2f"), strings.ReplaceAll(want, "/", "\\"), strings.ReplaceAll(want, "/", "%5C"),
			"/.." + want, "/../.." + want, want + "/x/..", want[1:], want + "#frag", "/%2E" + want, "//host" + want, "https://host" + want,
			want + "%00", want + "%0a", want + "%250A", want + "%0d%0ax", want + "%3Fa", want + ".", want + "%20", want + "/;/..", want + "/%252e/..", "/x%252fy/../.." + want,
		} {
			if got := applied(t, rs, weir.Request{Path: path}); len(got) != 3 {
				t.Errorf("of the rules for %s, %q apply to %q", want, got, path)
			}
		}
		for _, path := range []string{want + "x", want + "/x", "/x" + want, "/x?" + want} {
			if got := applied(t, rs, weir.Request{Path: path}); len(got) != 0 {
				t.Errorf("of the rules for %s, %q apply to %q", want, got, path)
			}
		}
	}
}

// If a server could route a path to an endpoint in any reading, the limits of that endpoint apply.
func TestEveryReadingIsLimited(t *testing.T) {
	rs := compile(t, weir.Rules{Rules: []weir.Rule{
		{ID: "login", Match: weir.Match{Endpoint: "/login"}, Limits: per(1, time.Second)},
		{ID: "search", Match: weir.Match{Endpoint: "GET /search/{q}"}, Limits: per(1, time.Second)},
		{ID: "searchre", Match: weir.Match{EndpointRegex: "^/search/[^/]+$"}, Limits: per(1, time.Second)},
		{ID: "v1", Match: weir.Match{Endpoint: "/v1/"}, Limits: per(1, time.Second)},
	}})
	for path, want := range map[string]string{
		"/x%252fy/../login":             "login",
		"/login/;/..":                   "login",
		"/login/%252e/..":               "login",
		"/login//..":                    "login",
		"/search/;shoes":                "search searchre",
		"/search/..;shoes":              "search searchre",
		"/search/%252e%252e%252fshoes":  "search searchre",
		"/search/a%2fb":                 "search searchre",
		"/search/..":                    "search searchre",
		"/search/%2e%2e":                "search searchre",
		"/search;x/%3bq":                "search searchre",
		"/v1/x/..;/..;/y":               "v1",
		"/v1/x/%252e%252e/%252e%252e/y": "v1",
		"/v1/../login":                  "login v1",
		"/search/..%2f..%2flogin":       "login search searchre",
		"/other/%25":                    "",
	} {
		if got := strings.Join(applied(t, rs, weir.Request{Method: "GET", Path: path}), " "); got != want {
			t.Errorf("%s is limited by %q, want %q", path, got, want)
		}
	}
}

// A rule may have both an endpoint and an expression. Both must match, whatever other rules matched before.
func TestEndpointWithRegex(t *testing.T) {
	rs := compile(t, weir.Rules{Rules: []weir.Rule{
		{ID: "both", Match: weir.Match{Endpoint: "GET /v1/{x}", EndpointRegex: "^/v1/login$"}, Limits: per(1, time.Hour)},
	}})
	l := weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{})
	for _, c := range []struct{ path, rule string }{
		{"/v1/login", "both"}, {"/V1//login/", "both"}, {"/v1/loginx", ""}, {"/V1/loginx", ""}, {"/v1/log%69nx", ""}, {"/v1/log%69n", "both"}, {"/v2/login", ""},
	} {
		if d := check(t, l, weir.Request{APIKey: c.path, Method: "GET", Path: c.path}); d.Rule != c.rule {
			t.Errorf("%s is limited by %q, want %q", c.path, d.Rule, c.rule)
		}
	}
}

// In a layer, the most specific rule of each reading applies.
func TestLayersOfReadings(t *testing.T) {
	rs := compile(t, weir.Rules{Rules: []weir.Rule{
		{ID: "rest", Layer: "l", Limits: per(1, time.Second)},
		{ID: "v1", Layer: "l", Match: weir.Match{Endpoint: "/v1/"}, Limits: per(1, time.Second)},
		{ID: "login", Layer: "l", Match: weir.Match{Endpoint: "/v1/login"}, Limits: per(1, time.Second)},
	}})
	for path, want := range map[string]string{
		"/v1/login":       "login",
		"/v1/login;x":     "v1 login",
		"/v1/login/..;/x": "v1",
		"/v1/login/../..": "rest v1",
		"/x/../v1/login":  "rest login",
	} {
		if got := strings.Join(applied(t, rs, weir.Request{Path: path}), " "); got != want {
			t.Errorf("%s is limited by %s, want %s", path, got, want)
		}
	}
}

// A rule that counts by endpoint counts a path for every endpoint that servers could route it to.
func TestReadingsCountedByEndpoint(t *testing.T) {
	l := limiter(t,
		weir.Rule{ID: "each", By: []string{"endpoint"}, Limits: per(1, time.Hour)},
		weir.Rule{ID: "a", Match: weir.Match{Endpoint: "/a/{x...}"}, Limits: per(100, time.Hour)},
		weir.Rule{ID: "b", Match: weir.Match{Endpoint: "/b"}, Limits: per(100, time.Hour)})
	if d := check(t, l, weir.Request{Path: "/a/../b"}); !d.Allowed || len(d.Limits()) != 4 {
		t.Fatalf("%+v", d.Limits())
	}
	for _, path := range []string{"/b", "/a/x", "/a/../b", "/a/%2e%2e/b"} {
		if d := check(t, l, weir.Request{Path: path}); d.Allowed || d.Rule != "each" {
			t.Errorf("%s: %+v", path, d)
		}
	}
	if !check(t, l, weir.Request{Path: "/c"}).Allowed {
		t.Error("other endpoints are used up, too")
	}
}

// Paths with too many readings to check cheaply are refused.
func TestUnreadablePaths(t *testing.T) {
	limited := weir.Rule{ID: "login", Match: weir.Match{Endpoint: "/login"}, Limits: per(1, time.Hour)}
	shadow, all := limited, weir.Rule{ID: "all", Limits: per(1, time.Hour)}
	shadow.Shadow = true
	for _, path := range []string{
		"/" + strings.Repeat("a", private.MaxPath),
		"/%" + strings.Repeat("25", 100) + "2e",
		"/" + strings.Repeat("a", 3000) + "/..;%252f%2f%5c%3f//;/%2e/login",
	} {
		if d := check(t, limiter(t, limited), weir.Request{Path: path}); d.Allowed || d.Reason != weir.ReasonUnreadablePath || d.RetryAfter != weir.Never {
			t.Errorf("%.100q: %v", path, d.Reason)
		}
		for _, r := range []weir.Rule{shadow, all} { // nobody asks where it leads
			if d := check(t, limiter(t, r), weir.Request{Path: path}); !d.Allowed {
				t.Errorf("%.100q: %v with rule %s", path, d.Reason, r.ID)
			}
		}
		if x := compile(t, weir.Rules{Rules: []weir.Rule{limited}}).Explain(&weir.Request{Path: path}); x.Reason != weir.ReasonUnreadablePath {
			t.Errorf("%.100q is explained as %v", path, x.Reason)
		}
	}
	for _, path := range []string{
		"/" + strings.Repeat("a", private.MaxPath-1),
		"/" + strings.Repeat("%e4%b8%ad", 400),
		"/proxy/https%3A%2F%2Fexample.com%2Fa%2Fb%3Fc%3Dd%26e%3D%2525",
	} {
		if d := check(t, limiter(t, limited), weir.Request{Path: path}); !d.Allowed || d.Reason != weir.ReasonUnlimited {
			t.Errorf("%.100q: %v", path, d.Reason)
		}
	}
}

// Endpoints with unusual characters match like all others.
func TestEndpointsOfUnusualCharacters(t *testing.T) {
	for path, want := range map[string]string{
		"/.well-known/jwks.json": "dot", "/.Well-Known/jwks.json": "dot",
		"/caf\u00e9/menu": "accent", "/CAF%C3%89/menu/": "accent",
		"/100%": "percent", "/100%25": "percent", "/SALE%": "sale", "/sale%25": "sale", "/a!b(c)/x": "marks",
		"/": "root", "//": "root", "/.": "root",
		"/.well-known": "", "/caf\u00e9": "", "/..a": "",
	} {
		rs := compile(t, weir.Rules{Rules: []weir.Rule{
			{ID: "root", Match: weir.Match{Endpoint: "/{$}"}, Limits: per(1, time.Hour)},
			{ID: "dot", Match: weir.Match{Endpoint: "/.well-known/{file}"}, Limits: per(1, time.Hour)},
			{ID: "accent", Match: weir.Match{Endpoint: "/caf\u00e9/menu"}, Limits: per(1, time.Hour)},
			{ID: "percent", Match: weir.Match{Endpoint: "/100%"}, Limits: per(1, time.Hour)},
			{ID: "sale", Match: weir.Match{Endpoint: "/Sale%"}, Limits: per(1, time.Hour)},
			{ID: "marks", Match: weir.Match{Endpoint: "/a!b(c)/{x}"}, Limits: per(1, time.Hour)},
		}})
		l := weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{})
		if d := check(t, l, weir.Request{APIKey: "k", Path: path}); d.Rule != want {
			t.Errorf("%q is limited by %q, want %q", path, d.Rule, want)
		}
	}
}

// Endpoints match the same paths as in net/http.ServeMux, except where Weir folds spellings on purpose.
func TestEndpointsMatchAsServeMuxDoes(t *testing.T) {
	segment := rapid.SampledFrom([]string{"a", "b", "c"})
	rapid.Check(t, func(t *rapid.T) {
		pattern := "/"
		n := rapid.IntRange(0, 3).Draw(t, "segments")
		var parts []string
		for i := range n {
			if rapid.Bool().Draw(t, "wild") {
				parts = append(parts, fmt.Sprintf("{w%d}", i))
			} else {
				parts = append(parts, segment.Draw(t, "segment"))
			}
		}
		pattern += strings.Join(parts, "/")
		switch rapid.IntRange(0, 2).Draw(t, "end") {
		case 1:
			pattern = strings.TrimSuffix(pattern, "/") + "/{rest...}"
		case 2:
			pattern = strings.TrimSuffix(pattern, "/") + "/{$}"
		}
		method := rapid.SampledFrom([]string{"", "GET ", "POST "}).Draw(t, "method")
		path := "/" + strings.Join(rapid.SliceOfN(segment, 0, 4).Draw(t, "path"), "/")

		mux := http.NewServeMux()
		mux.Handle(method+pattern, http.NotFoundHandler())
		want := func(path string) bool {
			_, p := mux.Handler(httptest.NewRequest("GET", path, nil))
			return p != ""
		}
		rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "r", Match: weir.Match{Endpoint: method + pattern}, Limits: per(1, time.Second)}}})
		if err != nil {
			t.Fatal(err)
		}
		x := rs.Explain(&weir.Request{Method: "GET", Path: path})
		// Weir ignores a slash at the end of a path.
		if w := want(path) || want(strings.TrimSuffix(path, "/")+"/"); x.Rules[0].Applies != w {
			t.Fatalf("%q on %q: %v, ServeMux says %v (%s)", method+pattern, path, x.Rules[0].Applies, w, x.Rules[0].Why)
		}
	})
}

func TestMatching(t *testing.T) {
	m := func(id string, match weir.Match) weir.Rule {
		return weir.Rule{ID: id, Match: match, Limits: per(1, time.Second)}
	}
	rs := compile(t, weir.Rules{
		Tiers: []weir.Tier{{Name: "free", Limits: per(1, time.Second)}, {Name: "pro", Limits: per(1, time.Second)}},
		Rules: []weir.Rule{
			m("all", weir.Match{}),
			m("order", weir.Match{Endpoint: "GET /v1/orders/{id}"}),
			m("below", weir.Match{Endpoint: "/v1/"}),
			m("regex", weir.Match{EndpointRegex: "^/v1/orders.*"}),
			m("slash", weir.Match{EndpointRegex: "^/v1/orders/[0-9]+/$"}),
			m("any", weir.Match{EndpointRegex: ".*"}),
			m("mixed", weir.Match{Endpoint: "/v1/{x...}", EndpointRegex: "7$"}),
			m("middle", weir.Match{EndpointRegex: "ORDERS"}),
			m("prod", weir.Match{APIKeyPattern: "sk_prod_*"}),
			m("glob", weir.Match{APIKeyPattern: "sk_*_vip_*"}),
			m("exact", weir.Match{APIKeyPattern: "sk_prod_1"}),
			m("nokey", weir.Match{NoKey: true}),
			m("somekey", weir.Match{HasKey: true}),
			{ID: "protier", Tier: "pro", Limits: per(1, time.Second)},
			{ID: "label", Tier: "pro", Match: weir.Match{APIKeyPattern: "sk_*"}, Limits: per(1, time.Second)},
			m("options", weir.Match{Endpoint: "OPTIONS /v1/"}),
		},
	})
	for _, c := range []struct {
		req  weir.Request
		want string
	}{
		{weir.Request{}, "all nokey"},
		{weir.Request{Method: "GET", Path: "/v1/orders/17"}, "all order below regex slash any mixed middle nokey"},
		{weir.Request{Method: "HEAD", Path: "/V1//orders/17/"}, "all order below regex slash any mixed middle nokey"},
		{weir.Request{Method: "POST", Path: "/v1/orders/18"}, "all below regex slash any middle nokey"},
		{weir.Request{Path: "/v1/orders/18"}, "all order below regex slash any middle nokey options"},
		{weir.Request{Method: "GET", Path: "/v1"}, "all below any nokey"},
		{weir.Request{Method: "GET", Path: "/v2/orders"}, "all any middle nokey"},
		{weir.Request{APIKey: "sk_prod_1"}, "all prod exact somekey label"},
		{weir.Request{APIKey: "sk_prod_vip_1", Tier: "pro", TierVerified: true}, "all prod glob somekey protier label"},
		{weir.Request{APIKey: "other", Tier: "pro"}, "all somekey"},
		{weir.Request{Method: "OPTIONS", Path: "/v1/x", Preflight: true}, "options"},
		{weir.Request{Method: "OPTIONS", Path: "/v1/x"}, "all below any nokey options"},
	} {
		if got := strings.Join(applied(t, rs, c.req), " "); got != c.want {
			t.Errorf("%+v\n got %s\nwant %s", c.req, got, c.want)
		}
	}
}

func TestLayersAreAlternatives(t *testing.T) {
	in := func(id, endpoint string) weir.Rule {
		return weir.Rule{ID: id, Layer: "endpoint", Match: weir.Match{Endpoint: endpoint}, Limits: per(1, time.Second)}
	}
	rs := compile(t, weir.Rules{Rules: []weir.Rule{
		in("rest", ""), in("v1", "/v1/"), in("orders", "/v1/orders/{id}"), in("get", "GET /v1/orders/{id}"),
		in("seventeen", "/v1/orders/17"), in("wide", "/{v}/orders/{id}"), in("second", "/v1/orders/17"),
		{ID: "beside", Limits: per(1, time.Second)},
	}})
	for path, want := range map[string]string{
		"/x":             "rest",
		"/v1/x":          "v1",
		"/v1/orders/18":  "get",
		"/v1/orders/17":  "get", // neither it nor seventeen is within the other: the file's order decides
		"/v2/orders/17":  "wide",
		"/v1/orders/1/2": "v1",
	} {
		got := applied(t, rs, weir.Request{Method: "GET", Path: path})
		if !slices.Equal(got, []string{want, "beside"}) {
			t.Errorf("%s: %v, want %s", path, got, want)
		}
	}
	if got := applied(t, rs, weir.Request{Method: "PUT", Path: "/v1/orders/17"}); got[0] != "seventeen" {
		t.Errorf("PUT: %v", got)
	}
}

func TestCountersBelongToTheRule(t *testing.T) {
	l := limiter(t, weir.Rule{ID: "orders", Match: weir.Match{Endpoint: "/v1/orders/{id}"}, Limits: per(1, time.Hour)})
	check(t, l, weir.Request{APIKey: "k", Path: "/v1/orders/1"})
	if check(t, l, weir.Request{APIKey: "k", Path: "/v1/orders/2"}).Allowed {
		t.Error("each path has a counter of its own")
	}
	l = limiter(t,
		weir.Rule{ID: "each", By: []string{"endpoint"}, Limits: per(1, time.Hour)},
		weir.Rule{ID: "orders", Match: weir.Match{Endpoint: "/v1/orders/{id}"}, Limits: per(100, time.Hour)},
		weir.Rule{ID: "users", Match: weir.Match{Endpoint: "/v1/users/"}, Limits: per(100, time.Hour)})
	for path, want := range map[string]bool{"/v1/orders/1": true, "/v1/users/1": true, "/nowhere/1": true} {
		if check(t, l, weir.Request{Path: path}).Allowed != want || check(t, l, weir.Request{Path: path + "0"}).Allowed {
			t.Errorf("%s and %s0 should share a counter", path, path)
		}
	}
}

func TestNumbersInherit(t *testing.T) {
	rs := compile(t, weir.Rules{
		Tiers: []weir.Tier{{Name: "free", Limits: per(10, time.Minute)}, {Name: "pro", Limits: []weir.Limit{{Count: 100, Window: time.Minute, Burst: 20}}}},
		Rules: []weir.Rule{
			{ID: "quota"},
			{ID: "fixed", Algorithm: weir.FixedWindow},
			{ID: "own", Limits: per(30, time.Minute), Tiers: []weir.Tier{{Name: "pro", Limits: per(300, time.Minute)}}, Override: map[string][]weir.Limit{"vip": per(3000, time.Minute)}},
		},
	})
	for _, c := range []struct {
		req  weir.Request
		want string
	}{
		{weir.Request{APIKey: "k"}, "10 10 30"},
		{weir.Request{APIKey: "k", Tier: "pro", TierVerified: true}, "100 100 300"},
		{weir.Request{APIKey: "vip"}, "10 10 3000"},
		{weir.Request{APIKey: "vip", Tier: "pro", TierVerified: true}, "100 100 3000"},
	} {
		var got []string
		for _, r := range rs.Explain(&c.req).Rules {
			got = append(got, fmt.Sprint(r.Limits[0].Limit.Count))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v, want %s", c.req, got, c.want)
		}
	}
}

func TestExplain(t *testing.T) {
	rs := compile(t, weir.Rules{
		Tiers: []weir.Tier{{Name: "free", Limits: per(10, time.Minute)}, {Name: "pro", Limits: per(100, time.Minute)}},
		Keys:  []weir.KeyTier{{Pattern: "sk_prod_*", Tier: "pro"}},
		Allow: []string{"sk_prod_monitor"},
		Rules: []weir.Rule{
			{ID: "quota"},
			{ID: "login", Match: weir.Match{Endpoint: "POST /login"}, By: []string{"user"}, Cost: 3, Limits: per(5, time.Minute)},
			{ID: "pro", Tier: "pro", Limits: per(1, time.Minute)},
			{ID: "org", By: []string{"org"}, Missing: weir.MissingSkip, Limits: per(1, time.Minute)},
			{ID: "search", Match: weir.Match{Endpoint: "/search"}, Limits: per(1, time.Minute)},
		},
	})
	x := rs.Explain(&weir.Request{APIKey: "sk_prod_monitor", Method: "POST", Path: "/LOGIN/", IP: ip1, Cost: 2})
	var b strings.Builder
	fmt.Fprintln(&b, x.Reason, x.Paths, x.Tier, x.TierWhy)
	for _, s := range x.Ignored {
		fmt.Fprintln(&b, "ignored", s)
	}
	for _, r := range x.Rules {
		fmt.Fprintln(&b, r.ID, r.Applies, r.Why, r.By, r.Cost, r.From, r.Source, r.Endpoint, r.SharedAddress, r.Refuses)
	}
	want := `within [/login] free the default tier
ignored allow list entry sk_prod_monitor: the key is not verified
ignored tier pro of keys entry sk_prod_*: the key is not verified
quota true it has no conditions [api_key] 2 tier free tier  false false
login true it matches endpoint POST /login [ip (user is missing)] 6 the rule rule POST /login false false
pro false the rule is for tier pro, the request is in tier free [] 0    false false
org false the request lacks org, and the rule skips such requests [] 0    false false
search false the path doesn't match endpoint /search [] 0   /search false false
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	x = rs.Explain(&weir.Request{Method: "GET", Path: "/search/..;/login"})
	if got := strings.Join(x.Paths, " "); got != "/search/..;/login /search/../login /login" {
		t.Errorf("paths %s", got)
	}
	if got := x.Rules[1]; got.Why != "the method GET isn't that of endpoint POST /login" {
		t.Errorf("login: %+v", got)
	}
	paths := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "each", By: []string{"api_key", "path:1"}, Limits: per(1, time.Hour)}}})
	if x := paths.Explain(&weir.Request{APIKey: "k", Path: "/V1/orders/17"}); strings.Join(x.Rules[0].By, ", ") != "api_key, path (/v1)" {
		t.Errorf("%+v", x.Rules)
	}
	if x := paths.Explain(&weir.Request{APIKey: "k", IP: ip1}); strings.Join(x.Rules[0].By, ", ") != "api_key, ip (path is missing)" {
		t.Errorf("%+v", x.Rules)
	}
	if x := paths.Explain(&weir.Request{APIKey: "k"}); x.Rules[0].By[1] != "ip (path is missing, and so is ip: all such requests count as one address)" || !x.Rules[0].SharedAddress {
		t.Errorf("%+v", x.Rules)
	}
	own := compile(t, weir.Rules{
		Tiers: []weir.Tier{{Name: "free", Limits: per(10, time.Minute)}},
		Rules: []weir.Rule{
			{ID: "a", By: []string{"user"}, Missing: weir.MissingRefuse, Limits: per(1, time.Hour)},
			{ID: "b", Limits: per(1, time.Hour), Override: map[string][]weir.Limit{"vip": per(9, time.Hour)}, Tiers: []weir.Tier{{Name: "free", Limits: per(2, time.Hour)}}},
			{ID: "c", By: []string{"ip"}, Limits: per(1, time.Hour)},
		},
	})
	for _, c := range []struct {
		req  weir.Request
		want string
	}{
		{weir.Request{APIKey: "vip", KeyVerified: true, IP: ip1}, "true  false,false override false,false rule false,"},
		{weir.Request{APIKey: "vip", KeyVerified: true, User: "ada"}, "false rule false,false override false,false rule true,"},
		{weir.Request{APIKey: "k", User: "ada", IP: ip1}, "false rule false,false rule_tier false,false rule false,"},
	} {
		got := ""
		for _, r := range own.Explain(&c.req).Rules {
			got += fmt.Sprint(r.Refuses, " ", r.Source, " ", r.SharedAddress, ",")
		}
		if got != c.want {
			t.Errorf("%+v: got %s, want %s", c.req, got, c.want)
		}
	}
	late := compile(t, weir.Rules{Rules: []weir.Rule{
		{ID: "a", Limits: per(1, time.Hour)},
		{ID: "b", By: []string{"user"}, Missing: weir.MissingRefuse, Limits: per(1, time.Hour)},
	}})
	if x := late.Explain(&weir.Request{APIKey: "k"}); !x.Rules[0].Applies || x.Rules[0].Cost != 0 || !x.Rules[1].Refuses {
		t.Errorf("refused by the second rule: %+v", x.Rules)
	}
	x = rs.Explain(&weir.Request{Path: "/login/../search"})
	if got := x.Rules[4]; !got.Applies || got.Why != "it matches endpoint /search, where the path is read as /search" {
		t.Errorf("search: %+v", got)
	}
	if x := rs.Explain(&weir.Request{APIKey: "sk_prod_monitor", KeyVerified: true}); x.Reason != weir.ReasonBypassed || x.Pattern != "sk_prod_monitor" {
		t.Errorf("%+v", x)
	}
}

// A check charges exactly the rules that Explain says apply.
func TestExplainAgreesWithCheck(t *testing.T) {
	endpoints := []string{"", "/a", "/a/", "GET /a/{x}", "/{x}/b", "POST /a/b"}
	rapid.Check(t, func(t *rapid.T) {
		var doc weir.Rules
		for i := range rapid.IntRange(1, 6).Draw(t, "rules") {
			doc.Rules = append(doc.Rules, weir.Rule{
				ID:      fmt.Sprint("r", i),
				Match:   weir.Match{Endpoint: rapid.SampledFrom(endpoints).Draw(t, "endpoint"), APIKeyPattern: rapid.SampledFrom([]string{"", "k*", "*y"}).Draw(t, "pattern")},
				By:      rapid.SampledFrom([][]string{nil, {}, {"user"}, {"ip", "user"}, {"path", "user"}}).Draw(t, "by"),
				Missing: weir.Missing(rapid.IntRange(0, 1).Draw(t, "missing")),
				Layer:   rapid.SampledFrom([]string{"", "l"}).Draw(t, "layer"),
				Limits:  per(10, time.Hour),
				Amount:  rapid.SampledFrom([]string{"", "", "tokens", "points"}).Draw(t, "amount"),
			})
			if r := &doc.Rules[i]; r.Amount != "" && rapid.Bool().Draw(t, "default") {
				r.Default = counter.Whole(2)
			}
		}
		doc.Weights = []weir.Sum{{Name: "points", Parts: []weir.Weight{{Amount: "output", Each: 2e12}}}}
		rs, err := weir.Compile(doc)
		if err != nil {
			t.Fatal(err)
		}
		req := weir.Request{
			APIKey: rapid.SampledFrom([]string{"", "key", "k", "x"}).Draw(t, "key"),
			User:   rapid.SampledFrom([]string{"", "u"}).Draw(t, "user"),
			Method: rapid.SampledFrom([]string{"", "GET", "POST"}).Draw(t, "method"),
			Path:   rapid.SampledFrom([]string{"", "/a", "/a/b", "/c/b", "/"}).Draw(t, "path"),
			Peek:   rapid.Bool().Draw(t, "peek"),
		}
		req.Amounts = rapid.SampledFrom([]map[string]counter.Amount{nil, {"tokens": 1}, {"output": counter.Whole(1)}, {"usd": 5, "points": 0}}).Draw(t, "amounts")
		d, err := weir.NewLimiter(storeOf(), rs, weir.Options{}).Check(t.Context(), &req)
		if err != nil {
			t.Fatal(err)
		}
		var charged, explained []string
		for _, s := range d.Limits() {
			charged = append(charged, s.Policy.Rule)
		}
		for _, r := range rs.Explain(&req).Rules {
			if r.Applies {
				explained = append(explained, r.ID)
			}
		}
		if !slices.Equal(charged, explained) {
			t.Fatalf("%+v: charged %v, explained %v", req, charged, explained)
		}
	})
}
