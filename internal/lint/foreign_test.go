package lint

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"pgregory.net/rapid"
)

func ruleFor(m weir.Match) weir.Rules {
	return weir.Rules{Rules: []weir.Rule{{ID: "a", By: []string{"ip"}, Match: m, Limits: per(10, time.Minute)}, {ID: "all", By: []string{"ip"}, Limits: per(10, time.Minute)}}}
}

// verdict returns a document's error or, if it compiles, its warnings.
func verdict(doc weir.Rules) (bad, warnings string) {
	rs, err := Compile(doc)
	if err != nil {
		return err.Error(), ""
	}
	var all []string
	for _, w := range Warnings(doc, rs) {
		all = append(all, w.Error())
	}
	return "", strings.Join(all, "\n")
}

// TestForeignEndpoints checks endpoint patterns in other languages, which would match nothing, and the advice on what
// to write instead.
func TestForeignEndpoints(t *testing.T) {
	for endpoint, instead := range map[string]string{
		"/v1/*":                `write "/v1/"`,
		"/v1/**":               `write "/v1/"`,
		"GET /v1/*":            `write "GET /v1/"`,
		"/v1/...":              `write "/v1/"`,
		"/v1/.*":               `write "/v1/"`,
		"/v1/(.*)":             `write "/v1/"`,
		"/*":                   `write "/"`,
		"/**":                  `write "/"`,
		"/v1/*/items":          `write "/v1/{any1}/items"`,
		"/v1/*/items/*/x":      `write "/v1/{any1}/items/{any2}/x"`,
		"/v1/**/items":         `write "/v1/{any1}/items"`,
		"/v1/*/items/*":        `write "/v1/{any1}/items/"`,
		"/:id":                 `write "/{id}"`,
		"POST /v1/:org/x":      `write "POST /v1/{org}/x"`,
		"/files/:path*":        `write "/files/{path...}"`,
		"/files/:path+":        `write "/files/{path...}"`,
		"/files/*path":         `write "/files/{path...}"`,
		"/<id>":                `write "/{id}"`,
		"/<int:id>/x":          `write "/{id}/x"`,
		"/<path:p>":            `write "/{p...}"`,
		"/[id]":                `write "/{id}"`,
		"/[...slug]":           `write "/{slug...}"`,
		"/[[...slug]]":         `write "/{slug...}"`,
		"/v1/{id:[0-9]+}":      `write "/v1/{id}"`,
		"/v1/{id:int}/x":       `write "/v1/{id}/x"`,
		"/v1/{id?}":            `write "/v1/{id}"`,
		"/v1/{rest:.*}":        `write "/v1/{rest...}"`,
		"/v1/{rest:path}":      `write "/v1/{rest...}"`,
		"/v1/{*rest}":          `write "/v1/{rest...}"`,
		"/v1/{**rest}":         `write "/v1/{rest...}"`,
		"/v1/{rest*}":          `write "/v1/{rest...}"`,
		"/v1/{rest=**}":        `write "/v1/{rest...}"`,
		"/v1/orders*":          "use endpoint_regex",
		"/v1/*.json":           "use endpoint_regex",
		"/v1/orders-[0-9]+":    "use endpoint_regex",
		"/v1/(a|b)":            "use endpoint_regex",
		"/v1/orders(/.*)?":     "use endpoint_regex",
		`/v1/\d+`:              "use endpoint_regex",
		"/login$":              "use endpoint_regex",
		"/v1/{id:[^/]+}":       "use endpoint_regex",
		"^/v1/orders":          `write endpoint_regex: "^/v1/orders"`,
		"/v1/orders?x=1":       `write "/v1/orders"`,
		"GET /v1/orders#top":   `write "GET /v1/orders"`,
		"https://api.test/x/y": `write "/x/y"`,
		"GET https://api.test": `write "GET /"`,
		"/x;v=1/y":             `write "/x/y"`,
		"/x%2fy":               "is not a plain path segment",
		"/a /b":                "give each endpoint a rule of its own",
		"/a,/b":                "give each endpoint a rule of its own",
		"GET /a, POST /b":      "give each endpoint a rule of its own",
		"GET /x HTTP/1.1":      "give each endpoint a rule of its own",
		" /x":                  `write "/x"`,
		"/x ":                  `write "/x"`,
		"GET,POST /x":          `write a rule for each, such as "GET /x", or "/x" for all`,
		"GET, POST /x":         `write a rule for each`,
		"GET|POST /x":          `write a rule for each`,
		"(GET|POST) /x":        `write a rule for each, such as "GET /x"`,
		"POSTS /x":             `write "POST /x"`,
		"PSOT /x":              `write "POST /x"`,
		"DELET /x":             `write "DELETE /x"`,
		"GTE /x":               `write "GET /x"`,
		"ANY /x":               `for all of them write "/x"`,
		"all /x":               `for all of them write "/x"`,
		"* /x":                 `for all of them write "/x"`,
		"get /x":               `write "GET /x"`,
		"Get /x":               `write "GET /x"`,
		"= /x":                 `"=" isn't a method: write "/x"`,
		"~ ^/x":                `write endpoint_regex: "^/x"`,
		"GET: /x":              `"GET:" isn't a method`,
		"/x\x00":               "remove it",
	} {
		bad, _ := verdict(ruleFor(weir.Match{Endpoint: endpoint}))
		if !strings.Contains(bad, "rules[0].match.endpoint: ") || !strings.Contains(bad, instead) {
			t.Errorf("%s: got %q, want %s", endpoint, bad, instead)
			continue
		}
		if advice, ok := strings.CutPrefix(instead, "write \""); ok && !strings.Contains(instead, "for each") { // the advice must itself be valid
			if bad, warnings := verdict(ruleFor(weir.Match{Endpoint: strings.TrimSuffix(advice, `"`)})); bad+warnings != "" {
				t.Errorf("%s: the advice %s is wrong itself: %s%s", endpoint, instead, bad, warnings)
			}
		}
	}
	for endpoint, want := range map[string]string{
		"UPDATE /x":         "UPDATE isn't a method of HTTP",
		"REFRESH /x":        "REFRESH isn't a method of HTTP",
		"PURGE /x":          "",
		"PROPFIND /x":       "",
		"GET /v1/{id}":      "",
		"GET   /v1/{id...}": "",
		"/v1/{$}":           "",
		"/a:batch":          "",
		"/$metadata":        "",
		"/@me/~x/a+b/(c)":   "",
		"/a,b/c.json":       "",
		"/a=b&c!'":          "",
		"/100%/%20x":        "",
		"/über/Straße":      "",
	} {
		bad, warnings := verdict(ruleFor(weir.Match{Endpoint: endpoint}))
		if bad != "" || (warnings == "") != (want == "") || !strings.Contains(warnings, want) {
			t.Errorf("%s: %q, %q; want %q", endpoint, bad, warnings, want)
		}
	}
}

// TestForeignRegexes checks regular expressions in the syntax of other products, and those that no path begins with.
func TestForeignRegexes(t *testing.T) {
	for _, regex := range []string{
		"^v1/", "^v1", "^v1/orders$", "/login$ ", " ^/x", "^users/[^/]+",
		"GET /x", "^POST /login", "^(GET|POST) /x", "/v1/{id}", "^/v1/{id}/x", "/v1/{rest...}", "/v1/:id", "^/v1/:id/x$",
		"^/x%20y", "^/caf%C3%A9$", "^/%6cogin", "/a%2b(b|c)",
	} {
		if bad, _ := verdict(ruleFor(weir.Match{EndpointRegex: regex})); !strings.Contains(bad, "rules[0].match.endpoint_regex: ") {
			t.Errorf("%s: got %q", regex, bad)
		}
	}
	for _, regex := range []string{
		"^/V1/", "^/v1/", "orders", "^/(v1|v2)/", "/login$", "^/$", "/$", ".*", "^.*$", "^/v1/orders.*", `^/v1/\d{2,3}/x`, `\bfoo\b`, "^(?:/x)?/y", "(?i)^/X", `^/\p{L}+$`, `/\x{e9}`,
		"^[/x]", "^/v1/a:b", "^/+v1", `\.json$`, "[^/]+$", "^/[?x]", "^|x", "(^v1|/v2)", "/a b", `^/orders(\?.*)?$`, "^/a%2Fb", "^/a%25", "/100%", "/a%zz",
	} {
		if bad, _ := verdict(ruleFor(weir.Match{EndpointRegex: regex})); bad != "" {
			t.Errorf("%s: %s", regex, bad)
		}
	}
}

// TestRegexesThatMatchAreTaken checks that an expression that matches some path is never rejected as one that matches
// none.
func TestRegexesThatMatchAreTaken(t *testing.T) {
	pieces := []string{"^", "$", "/", "/", "a", "b1", ".", ".*", "[^/]+", "x?", "(a|/b)", "|", "(", ")", `\d`, "-", "[a/]", "+", "*", "//", `\b`, "{2}"}
	segments := []string{"a", "b1", "x", "ab", "1-2", "b"}
	matched := 0
	rapid.Check(t, func(t *rapid.T) {
		regex := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 8).Draw(t, "regex"), "")
		re, err := regexp.Compile(regex)
		if err == nil {
			re, err = regexp.Compile("(?is:" + regex + ")")
		}
		path := "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(segments), 0, 4).Draw(t, "path"), "/")
		if err != nil || !re.MatchString(path) {
			return
		}
		matched++
		if bad, _ := verdict(ruleFor(weir.Match{EndpointRegex: regex})); bad != "" {
			t.Fatalf("%s matches %s: %s", regex, path, bad)
		}
	})
	if matched == 0 {
		t.Error("no expression matched its path")
	}
}

// TestForeignKeys checks key patterns in other languages, in all places where keys are named.
func TestForeignKeys(t *testing.T) {
	limits := per(10, time.Minute)
	places := func(key string) map[string]weir.Rules {
		all := weir.Rule{ID: "all", By: []string{"ip"}, Limits: limits}
		m := map[string]weir.Rules{
			"rules[0].match.api_key_pattern": ruleFor(weir.Match{APIKeyPattern: key}),
			"keys." + key:                    {Tiers: []weir.Tier{{Name: "pro", Limits: limits}}, Keys: []weir.KeyTier{{Pattern: key, Tier: "pro"}}, Rules: []weir.Rule{all}},
			"allow[0]":                       {Allow: []string{key}, Rules: []weir.Rule{all}},
			"deny[0]":                        {Deny: []string{key}, Rules: []weir.Rule{all}},
		}
		if !strings.Contains(key, "*") {
			m["rules[0].override."+key] = weir.Rules{Rules: []weir.Rule{{ID: "all", By: []string{"api_key", "ip"}, Limits: limits, Override: map[string][]weir.Limit{key: limits}}}}
		}
		return m
	}
	for _, c := range []struct {
		key, bad, warning string
	}{
		{"^sk_.*", `write "sk_*"`, ""},
		{"^sk_.*$", `write "sk_*"`, ""},
		{"sk_.*$", `write "sk_*"`, ""},
		{`^sk_\d+`, "is a regular expression", ""},
		{"sk_prod_…c123", "write the whole key", ""},
		{"sk_.*", "", `write "sk_*"`},
		{"sk_.+", "", `write "sk_*"`},
		{"sk_*$", "", `write "sk_*"`},
		{"^sk_", "", "write it as in sk_prod_*"},
		{"^sk_*", "", `write "sk_*"`},
		{"sk_%", "", `write "sk_*"`},
		{"/sk_*/", "", `write "sk_*"`},
		{"sk_?", "", "letter by letter"},
		{"sk_[a-z]", "", "letter by letter"},
		{"(sk|pk)_*", "", "letter by letter"},
		{"^secret$", "", "letter by letter"},
		{"{sk,pk}_*", "", "letter by letter"},
		{"sk_...", "", "letter by letter"},
		{"sk_a_*, sk_b_*", "", "an entry for each"},
		{"sk_a_*,sk_b_*", "", "an entry for each"},
		{"Bearer sk_1", "", "leave that out"},
		{"sk_prod_*", "", ""}, {"sk_1", "", ""}, {"auth0|5f7c8ec7", "", ""}, {"a+b/c9==", "", ""}, {"com.example.*x", "", `write`}, {"alice@example.com", "", ""},
		{`CORP\alice`, "", ""}, {"$2a$10$abc", "", ""}, {"a.b.c", "", ""}, {"*_internal", "", ""},
	} {
		for place, doc := range places(c.key) {
			bad, warnings := verdict(doc)
			if (bad == "") != (c.bad == "") || !strings.Contains(bad, c.bad) || bad != "" && !strings.Contains(bad, place+": ") {
				t.Errorf("%s: got %q, want %q", place, bad, c.bad)
			}
			if (warnings == "") != (c.warning == "") || !strings.Contains(warnings, c.warning) || warnings != "" && !strings.Contains(warnings, place+": ") {
				t.Errorf("%s: warnings %q, want %q", place, warnings, c.warning)
			}
			if _, text, _ := strings.Cut(warnings, place+": "); strings.Contains(text, "secret") {
				t.Errorf("%s: a key is shown: %q", place, warnings)
			}
		}
	}
	for _, doc := range []weir.Rules{ruleFor(weir.Match{APIKeyPattern: " sk_*"}), {Rules: []weir.Rule{{ID: "a", Limits: limits, Override: map[string][]weir.Limit{"k ": limits}}}}} {
		if bad, _ := verdict(doc); !strings.Contains(bad, "has spaces around it") {
			t.Errorf("got %q", bad)
		}
	}
}

// TestForeignAttributes checks header names that no request can have.
func TestForeignAttributes(t *testing.T) {
	for by, good := range map[string]bool{
		"header:X-Tenant": true, "header:x_tenant": true, "claim:https://x.test/plan": true, "claim:a b": true, "attr:region": true,
		"header:X Tenant": false, "header:X-Tenant:": false, "header: X-Tenant": false, "header:X-Größe": false, "header:{name}": false, "claim: plan": false, "attr:region ": false, "header:\"x\"": false,
	} {
		bad, _ := verdict(weir.Rules{Rules: []weir.Rule{{ID: "a", By: []string{by}, Limits: per(1, time.Minute)}}})
		if (bad == "") != good || bad != "" && !strings.Contains(bad, "rules[0].by[0]: ") {
			t.Errorf("%s: %q", by, bad)
		}
	}
}

// TestListsForEverybody checks list entries that cover all clients or nearly all.
func TestListsForEverybody(t *testing.T) {
	for _, c := range []struct {
		entry, bad, warning string
	}{
		{"0.0.0.0/0", "covers every address", ""},
		{"1.2.3.4/0", "covers every address", ""},
		{" 0.0.0.0/0 ", "covers every address", ""},
		{"::/0", "covers every address", ""},
		{"2001:db8::/0", "covers every address", ""},
		{"::ffff:0.0.0.0/96", "covers every address", ""},
		{"::ffff:0.0.0.0/95", "mixes IPv4 and IPv6", ""},
		{"*", "matches every key", ""},
		{"**", "matches every key", ""},
		{"0.0.0.0/1", "", "a large part of all addresses"},
		{"128.0.0.0/1", "", "a large part of all addresses"},
		{"64.0.0.0/7", "", "a large part of all addresses"},
		{"2000::/3", "", "a large part of all addresses"},
		{"::/1", "", "a large part of all addresses"},
		{"2a00::/12", "", "a large part of all addresses"},
		{"203.0.113.1-203.0.113.9", "nor an IP range", ""},
		{"203.0.113.1 - 9", "nor an IP range", ""},
		{"203.0.113.0/255.255.255.0", "nor an IP range", ""},
		{"10.0/16", "nor an IP range", ""},
		{"10/8", "nor an IP range", ""},
		{"203.0.113.7:8080", "write 203.0.113.7", ""},
		{"[2001:db8::1]:80", "write 2001:db8::1", ""},
		{"ip:203.0.113.7", "write 203.0.113.7", ""},
		{"10.0.0.0/8", "", ""}, {"fc00::/7", "", ""}, {"fe80::/10", "", ""}, {"2001:db8::/32", "", ""}, {"203.0.113.7", "", ""}, {"sk_*", "", ""}, {"a/b", "", ""}, {"2024-10-01", "", ""},
	} {
		for list, doc := range map[string]weir.Rules{"allow": {Allow: []string{"sk_1", c.entry}}, "deny": {Deny: []string{"sk_1", c.entry}}} {
			doc.Rules = []weir.Rule{{ID: "all", By: []string{"ip"}, Limits: per(1, time.Minute)}}
			bad, warnings := verdict(doc)
			if (bad == "") != (c.bad == "") || !strings.Contains(bad, c.bad) || bad != "" && !strings.HasPrefix(bad, list+"[1]: ") {
				t.Errorf("%s in the %s: got %q, want %q", strconv.Quote(c.entry), list, bad, c.bad)
			}
			if (warnings == "") != (c.warning == "") || !strings.Contains(warnings, c.warning) || warnings != "" && !strings.HasPrefix(warnings, list+"[1]: ") {
				t.Errorf("%s in the %s: warnings %q, want %q", strconv.Quote(c.entry), list, warnings, c.warning)
			}
		}
	}
}
