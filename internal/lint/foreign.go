package lint

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/internal/pattern"
	"github.com/weirhq/weir/internal/private"
)

// Compile is [weir.Compile], but it also returns errors for patterns in the syntax of other products, such as globs,
// regular expressions and the patterns of routers and SQL. Weir would match such patterns literally, so the limit would
// never apply. Each error says what to write instead.
func Compile(doc weir.Rules) (*weir.RuleSet, error) {
	var found counter.Problems
	eachPattern(doc, func(path, wrong, _ string) {
		if wrong != "" {
			found = append(found, counter.Problem{Path: path, Text: wrong})
		}
	})
	set, err := weir.Compile(doc)
	var others counter.Problems
	errors.As(err, &others)
	for _, p := range others {
		if !slices.ContainsFunc(found, func(f counter.Problem) bool { return f.Path == p.Path }) {
			found = append(found, p)
		}
	}
	if len(found) > 0 {
		return nil, found
	}
	return set, nil
}

// Denied returns the same rules with more entries on the deny list. It changes neither the document nor its warnings. If an
// entry can't be on a deny list, the error is [counter.Problems].
func Denied(rules *weir.RuleSet, entries ...string) (*weir.RuleSet, error) {
	for i, entry := range entries {
		if wrong, _ := foreignEntry(entry); wrong != "" {
			return nil, counter.Problems{{Path: fmt.Sprintf("deny[%d]", i), Text: wrong}}
		}
	}
	return private.WithDenied(rules, entries...)
}

// eachPattern calls found for each faulty pattern of a document. wrong is an error text for a pattern that can't be
// meant, and odd is a warning about a pattern that is valid but probably a mistake.
func eachPattern(doc weir.Rules, found func(path, wrong, odd string)) {
	check := func(path string, look func(string) (wrong, odd string), s string) {
		if wrong, odd := look(s); wrong != "" || odd != "" {
			found(path, wrong, odd)
		}
	}
	for _, k := range doc.Keys {
		check("keys."+k.Pattern, foreignKey, k.Pattern)
	}
	for i, r := range doc.Rules {
		path := fmt.Sprintf("rules[%d]", i)
		if r.Descriptor != nil {
			continue
		}
		check(path+".match.endpoint", foreignEndpoint, r.Match.Endpoint)
		check(path+".match.endpoint_regex", foreignRegex, r.Match.EndpointRegex)
		check(path+".match.api_key_pattern", foreignKey, r.Match.APIKeyPattern)
		for j, name := range r.By {
			check(fmt.Sprintf("%s.by[%d]", path, j), foreignAttribute, name)
		}
		for _, key := range slices.Sorted(maps.Keys(r.Override)) {
			if key != "" && !strings.Contains(key, "*") {
				check(path+".override."+key, foreignKey, key)
			}
		}
	}
	for i, entry := range doc.Allow {
		check(fmt.Sprintf("allow[%d]", i), foreignEntry, entry)
	}
	for i, entry := range doc.Deny {
		check(fmt.Sprintf("deny[%d]", i), foreignEntry, entry)
	}
}

// foreignEntry is like foreignKey, but for an entry of the allow or deny list, which may also be an address.
func foreignEntry(s string) (wrong, odd string) {
	s = strings.TrimSpace(s)
	if net, err := new(pattern.List).Add(s); err != nil || net.IsValid() || strings.Trim(s, "*") == "" {
		return "", ""
	}
	return foreignKey(s)
}

// registeredMethods are the methods in IANA's registry besides the common ones, and the methods of caches.
var registeredMethods = strings.Fields(`ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT COPY LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL
	MKREDIRECTREF MKWORKSPACE MOVE ORDERPATCH PRI PROPFIND PROPPATCH QUERY REBIND REPORT SEARCH UNBIND UNCHECKOUT UNLINK UNLOCK
	UPDATEREDIRECTREF VERSION-CONTROL PURGE BAN`)

// foreignEndpoint checks an endpoint. It returns an error text, or else a warning about a probable mistake.
func foreignEndpoint(s string) (wrong, odd string) {
	if trimmed := strings.TrimSpace(s); trimmed != s {
		return fmt.Sprintf("has spaces around it: write %q", trimmed), ""
	}
	path, method := s, ""
	if at := strings.IndexAny(s, " \t"); at >= 0 && s[0] != '/' {
		method, path = s[:at], strings.TrimLeft(s[at:], " \t")
		if wrong, odd = foreignMethod(method, path); wrong != "" {
			return wrong, ""
		}
		method += " "
	}
	if _, rest, ok := strings.Cut(path, "://"); ok {
		_, rest, _ = strings.Cut(rest, "/")
		return fmt.Sprintf("must be a path, without scheme and host: write %q", method+"/"+rest), ""
	}
	if at := strings.IndexAny(path, "?#"); at >= 0 && !strings.ContainsAny(path[:at], "{(") {
		return fmt.Sprintf("must be a path: a query is no part of it; write %q", method+path[:at]), ""
	}
	if strings.ContainsAny(path, " \t") {
		return fmt.Sprintf("%q has a space: give each endpoint a rule of its own; a space in a path is written %%20", path), ""
	}
	return foreignPath(method, path), odd
}

func foreignMethod(method, path string) (wrong, odd string) {
	switch {
	case method == "~" || method == "~*": // nginx
		return fmt.Sprintf("is a regular expression: write endpoint_regex: %q", path), ""
	case strings.ContainsAny(method, ",|") && strings.Trim(method, ",|(") != "":
		return fmt.Sprintf("has several methods: write a rule for each, such as %q, or %q for all of them", strings.FieldsFunc(method, func(r rune) bool { return r == ',' || r == '|' || r == '(' })[0]+" "+path, path), ""
	case slices.Contains([]string{"*", "ANY", "ALL", "_"}, strings.ToUpper(method)):
		return fmt.Sprintf("%s isn't a method: for all of them write %q", method, path), ""
	case strings.Trim(strings.ToUpper(method), "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "":
		return fmt.Sprintf("%q isn't a method: write %q or %q", method, path, "GET "+path), ""
	case strings.ToUpper(method) != method:
		return fmt.Sprintf("the method must be in capitals: write %q", strings.ToUpper(method)+" "+path), ""
	case slices.Contains(pattern.Methods, method) || slices.Contains(registeredMethods, method):
		return "", ""
	}
	for _, m := range pattern.Methods {
		if guess.Mistakes(m, method) == 1 {
			return fmt.Sprintf("%s isn't a method: write %q", method, m+" "+path), ""
		}
	}
	return "", fmt.Sprintf("%s isn't a method of HTTP, so hardly any request matches: write %q, or %q for all methods, unless your clients do send it", method, "GET "+path, path)
}

var (
	wildName  = `[A-Za-z_][A-Za-z0-9_]*`
	wildWhole = regexp.MustCompile(`^(?:\*{1,2}|:(` + wildName + `)|<(?:[a-z]+:)?(` + wildName + `)>|\[(` + wildName + `)\]|\{\*?(` + wildName + `)[:?][^}]*\})$`)
	wildRest  = regexp.MustCompile(`^(?:\*{1,2}|\.{3}|\.\*|\(\.\*\)|:(` + wildName + `)[*+]|\*(` + wildName + `)|<path:(` + wildName + `)>|\[{1,2}\.{3}(` + wildName + `)\]{1,2}|\{\*{1,2}(` + wildName + `)\}|\{(` + wildName + `)(?:\*|:\.[*+]|:path|=\*\*)\})$`)
)

// foreignPath returns an error text if a path has wildcards in another product's syntax, or characters that no path can
// have.
func foreignPath(method, path string) string {
	if !strings.HasPrefix(path, "/") {
		if strings.HasPrefix(path, "^") {
			return fmt.Sprintf("is a regular expression: write endpoint_regex: %q", path)
		}
		return "" // weir.Compile reports this
	}
	segments := strings.Split(path[1:], "/")
	foreign, mixed, n := "", "", 0
	for i, seg := range segments {
		last := i == len(segments)-1
		switch rest, whole := wildRest.FindStringSubmatch(seg), wildWhole.FindStringSubmatch(seg); {
		case last && rest != nil:
			foreign = seg
			if segments[i] = ""; name(rest) != "" {
				segments[i] = "{" + name(rest) + "...}"
			}
		case whole != nil:
			foreign = seg
			if segments[i] = "{" + name(whole) + "}"; name(whole) == "" {
				n++
				segments[i] = fmt.Sprintf("{any%d}", n)
			}
		case strings.ContainsAny(seg, `*<>[]^|?#\`+"`\"") || strings.HasPrefix(seg, ":") || seg == "..." || strings.Contains(seg, "(?") || strings.Contains(seg, ".+") || last && len(seg) > 1 && strings.HasSuffix(seg, "$"):
			mixed = seg
		case !last && strings.HasSuffix(seg, ","):
			return fmt.Sprintf("%q has a comma before a slash: give each endpoint a rule of its own", path)
		case strings.Contains(seg, ";"):
			plain, _, _ := strings.Cut(seg, ";")
			segments[i] = plain
			return fmt.Sprintf("%q can't be told apart: ;parameters are no part of a path; write %q", seg, method+"/"+strings.Join(segments, "/"))
		case strings.ContainsFunc(seg, unicode.IsControl):
			return fmt.Sprintf("%q has a character that no path has: remove it", seg)
		}
	}
	switch {
	case mixed != "":
		return fmt.Sprintf("%q is no pattern of a segment: a wildcard is a whole one, as in /orders/{id}, and /orders/ is all that is below; for anything else use endpoint_regex, such as %q", mixed, "^/v1/orders-[0-9]+$")
	case foreign != "":
		return fmt.Sprintf("%q would be matched letter by letter: write %q", foreign, method+"/"+strings.Join(segments, "/"))
	}
	return ""
}

// name returns the name in a wildcard, or "" if it has none. found are the submatches of the wildcard's expression.
func name(found []string) string { return strings.Join(found[1:], "") }

var (
	regexMethod = regexp.MustCompile(`^\^?\(?[A-Z]{3,}[A-Z|)]* +\^?/`)
	regexSlash  = regexp.MustCompile(`^\^\w[^|?*{]*$`)
	regexBraces = regexp.MustCompile(`[^pPx\\]\{` + wildName + `(?:\.\.\.)?\}`)
	regexColon  = regexp.MustCompile(`/:` + wildName + `(?:[/$]|$)`)
	regexEscape = regexp.MustCompile(`(?:%[0-9A-Fa-f]{2})+`)
)

// foreignRegex checks a regular expression for paths. It returns an error text, or else a warning about a probable
// mistake.
func foreignRegex(s string) (wrong, odd string) {
	if _, err := pattern.ParseRegex(s); s == "" || err != nil {
		return "", "" // weir.Compile reports this
	}
	switch {
	case strings.TrimSpace(s) != s:
		return fmt.Sprintf("has spaces around it: write %q", strings.TrimSpace(s)), ""
	case regexMethod.MatchString(s):
		return `is matched against the path alone: leave the method out, or use endpoint, as in "POST /login"`, ""
	case regexSlash.MatchString(s):
		return `matches no path: a path begins with "/"; write it as in "^/v1/orders"`, ""
	case regexBraces.MatchString(s) || regexColon.MatchString(s):
		return "has a wildcard of endpoint's, which an expression matches letter by letter: write [^/]+ for a segment, or use endpoint", ""
	}
	for _, escapes := range regexEscape.FindAllString(s, -1) {
		if text := pattern.Unescape(escapes); !strings.EqualFold(text, escapes) {
			return fmt.Sprintf("%q stands in no path, since paths are decoded before they are matched: write %q", escapes, regexp.QuoteMeta(text)), ""
		}
	}
	return "", ""
}

// foreignKey checks a key or a pattern of keys. It returns an error text, or else a warning about a probable mistake. A
// key can look like anything, so few mistakes are certain. The texts go into logs, so they quote patterns, but never a
// key.
func foreignKey(s string) (wrong, odd string) {
	const star = "* stands for any characters, and everything else for itself"
	has := func(any ...string) bool {
		return slices.ContainsFunc(any, func(t string) bool { return strings.Contains(s, t) })
	}
	meant := strings.Trim(s, "^$/")
	for _, any := range []string{".*", ".+", "%"} {
		meant = strings.ReplaceAll(meant, any, "*")
	}
	instead := fmt.Sprintf("write %q", meant)
	if !strings.Contains(meant, "*") {
		instead = "write it as in sk_prod_*"
	}
	switch {
	case strings.TrimSpace(s) != s:
		return "has spaces around it, which no key has: remove them", ""
	case has("…"):
		return "is the short form in which keys are shown: write the whole key, or a pattern such as sk_prod_*", ""
	case strings.HasPrefix(s, "^") && has(".*", ".+", `\d`, `\w`), strings.HasSuffix(s, ".*$"), strings.HasSuffix(s, ".+$"):
		return fmt.Sprintf("is a regular expression, which would be matched letter by letter: %s; %s", star, instead), ""
	case has(".*", ".+"):
		return "", fmt.Sprintf("the dot is part of the key: %s; %s, unless your keys do have it", star, instead)
	case strings.HasPrefix(s, "^"), strings.HasSuffix(s, "*$"), strings.HasSuffix(s, "%"), len(s) > 2 && s[0] == '/' && s[len(s)-1] == '/',
		has("?", "[", "]", "(", ")", "{", "}", `\d`, `\w`, "..."):
		return "", fmt.Sprintf("is matched letter by letter: %s; %s, unless your keys do look like this", star, instead)
	case has(", ", "*,"):
		return "", "is one pattern, with its comma: write an entry for each"
	case len(s) > 7 && strings.EqualFold(s[:7], "bearer "):
		return "", fmt.Sprintf("the key is what follows %q: leave that out", s[:7])
	}
	return "", ""
}

// foreignAttribute checks the name of a header, claim or attribute, and returns an error text.
func foreignAttribute(s string) (wrong, odd string) {
	kind, name, named := strings.Cut(s, ":")
	switch {
	case !named || !isAttribute(s):
		return "", ""
	case strings.TrimSpace(name) != name:
		return fmt.Sprintf("has spaces around the name: write %q", kind+":"+strings.TrimSpace(name)), ""
	case kind == "header" && strings.ContainsFunc(name, notInHeaderName):
		return fmt.Sprintf("no header has the name %q: write it as in header:X-Tenant", name), ""
	}
	return "", ""
}

func notInHeaderName(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}
