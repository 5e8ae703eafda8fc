package httplimit_test

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

// FuzzIdentity compares the identities of arbitrary requests with those of a second, simpler implementation. It checks that
// nothing is verified without proof, and that no address comes from a header that an untrusted peer sent.
func FuzzIdentity(f *testing.F) {
	const knownKey = "sk_prod_known"
	trusted := prefixes("10.0.0.0/8", "2001:db8:ffff::/48")
	sources := []httplimit.Source{
		{}, {Header: "X-Key"}, {Query: "api_key"}, {Bearer: true}, {Claim: "key"}, {Claim: "key", Header: "X-Key", Query: "api_key", Bearer: true},
	}
	tokens := knownTokens{genuine: {"key": "sk_internal_1", "plan": "pro", "sub": "u"}, "another.genuine.token": {"sub": "v"}, "..": {}}
	var ids []*httplimit.Identifier
	for _, s := range sources {
		ids = append(ids, httplimit.NewIdentifier(httplimit.Identity{
			APIKey: s, User: httplimit.Source{Claim: "sub"}, Org: httplimit.Source{Header: "X-Org"}, Tier: httplimit.Source{Claim: "plan", Header: "X-Tier"},
			JWT: tokens, KnownKeys: known(knownKey),
		}, trusted))
	}

	bearers := []string{
		"", "Bearer " + genuine, "Bearer " + forged, "bearer\t" + genuine, "Token token=" + genuine + ", nonce=x",
		"Bearer another.genuine.token", "Bearer another.forged.token", "Token \"" + genuine + "\"", "Basic dTpw", "Bearer ..", "Bearer " + knownKey,
	}
	for i, bearer := range bearers {
		f.Add(uint8(i), "GET", "/v1/orders?api_key=sk_internal_1", "10.0.0.1:80", "1.1.1.1, 198.51.100.1", "10.0.0.2", "sk_internal_x", bearer, "pro")
		f.Add(uint8(i), "OPTIONS", "/a/%2e%2e/login?api%5fkey="+knownKey, "[2001:db8:ffff::1%eth0]:80", "[::ffff:198.51.100.1]:9", "", knownKey, bearer, "")
		f.Add(uint8(i), "post", "http:login?a;api_key=x&api_key=%zz", "203.0.113.7:1", "10.0.0.1,unknown,", ",", "", bearer, "")
	}

	f.Fuzz(func(t *testing.T, which uint8, method, target, peer, forwarded, forwarded2, key, authorization, tier string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		r := &http.Request{Method: method, URL: u, RemoteAddr: peer, Header: http.Header{
			"X-Api-Key": {key}, "X-Key": {key}, "X-Forwarded-For": {forwarded, forwarded2}, "Authorization": {authorization}, "X-Tier": {tier},
		}}
		source := sources[int(which)%len(sources)]
		var req weir.Request
		if ids[int(which)%len(ids)].Identify(r, &req) != nil {
			return // and so refused
		}

		if req.Path == "" || req.Method != method {
			t.Errorf("%s %q", req.Method, req.Path)
		}
		if want := secondIP(peer, []string{forwarded, forwarded2}, trusted); req.IP != want {
			t.Errorf("address %s, want %s", req.IP, want)
		}
		proof := tokens[bearerOf(authorization)]
		if want, verified := secondKey(source, r, proof, knownKey); req.APIKey != want || req.KeyVerified != verified {
			t.Errorf("key %q, verified %v; want %q, %v", req.APIKey, req.KeyVerified, want, verified)
		}
		if req.User != text(proof["sub"]) || req.Attr("claim:sub") != req.User || req.Org != "" {
			t.Errorf("user %q, %q, org %q without proof", req.User, req.Attr("claim:sub"), req.Org)
		}
		if plan := text(proof["plan"]); req.TierVerified != (plan != "") || plan != "" && req.Tier != plan || plan == "" && req.Tier != tier {
			t.Errorf("tier %q, verified %v", req.Tier, req.TierVerified)
		}
	})
}

// secondKey returns the key from the claim, the header, the bearer token or the query parameter.
func secondKey(s httplimit.Source, r *http.Request, proof httplimit.Claims, knownKey string) (key string, verified bool) {
	if s == (httplimit.Source{}) {
		s.Header = "X-Api-Key"
	}
	if s.Claim != "" && text(proof[s.Claim]) != "" {
		return text(proof[s.Claim]), true
	}
	for _, v := range []struct {
		given bool
		value string
	}{{s.Header != "", r.Header.Get(s.Header)}, {s.Bearer, bearerOf(r.Header.Get("Authorization"))}, {s.Query != "", r.URL.Query().Get(s.Query)}} {
		if v.given && v.value != "" {
			return v.value, v.value == knownKey
		}
	}
	return "", false
}

func bearerOf(authorization string) string {
	switch words := strings.FieldsFunc(authorization, func(r rune) bool { return r == ' ' || r == '\t' }); {
	case len(words) >= 2 && strings.EqualFold(words[0], "token") && strings.HasPrefix(words[1], "token="):
		first, _, _ := strings.Cut(strings.Join(words[1:], " "), ",")
		return strings.Trim(first[len("token="):], `"`)
	case len(words) == 2 && !strings.Contains(words[1], ","):
		if strings.EqualFold(words[0], "token") || strings.EqualFold(words[0], "bearer") {
			return strings.Trim(strings.TrimPrefix(words[1], "token="), `"`)
		}
		return words[1]
	case len(words) == 1 && !strings.EqualFold(words[0], "bearer"):
		return words[0]
	}
	return ""
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// secondIP finds the client's address in the whole chain of forwarded addresses.
func secondIP(peer string, lines []string, trusted []netip.Prefix) netip.Addr {
	isTrusted := func(ip netip.Addr) bool {
		for _, p := range trusted {
			if p.Contains(ip) {
				return true
			}
		}
		return false
	}
	ip := parse(peer)
	hops := strings.Split(strings.Join(lines, ","), ",")
	for i := len(hops) - 1; i >= 0 && isTrusted(ip); i-- {
		hop := parse(strings.TrimSpace(hops[i]))
		if !hop.IsValid() {
			break
		}
		ip = hop
	}
	return ip
}

// parse reads an address with or without port, brackets and zone. If s isn't an address, it returns the zero Addr.
func parse(s string) netip.Addr {
	ip, err := netip.ParseAddr(s)
	if err != nil && strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		ip, err = netip.ParseAddr(s[1 : len(s)-1])
	}
	if err != nil {
		ap, err := netip.ParseAddrPort(s)
		if err != nil {
			return netip.Addr{}
		}
		ip = ap.Addr()
	}
	return ip.Unmap().WithZone("")
}
