package httplimit_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

// blocking blocks one key, and has a rule that counts by a header and skips requests without it.
func blocking(t *testing.T) *weir.Limiter {
	return limiter(t, weir.Rules{
		Rules: []weir.Rule{{ID: "tenant", By: []string{"header:x-tenant"}, Missing: weir.MissingSkip, Limits: per(1, 366*24*time.Hour)}},
		Deny:  []string{"sk_blocked"},
	})
}

// askRaw sends a request's head as it is, and returns status and body.
func askRaw(t *testing.T, addr, target, lines string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send(t, conn, "GET "+target+" HTTP/1.1\r\nHost: x\r\n"+lines+"\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// A key that some servers would read but the limiter doesn't would be a way around every list. Such requests get a 400 with
// a reason.
func TestAmbiguousIdentitiesAreRefused(t *testing.T) {
	type source = httplimit.Source
	inHeader, inQuery, asBearer := source{}, source{Query: "api_key"}, source{Bearer: true}
	both := source{Header: "X-API-Key", Query: "api_key", Bearer: true}
	for _, c := range []struct {
		name   string
		source source
		target string
		lines  string
		want   int
	}{
		{"a header", inHeader, "/", "X-API-Key: sk_blocked\r\n", 403},
		{"blanks around it", inHeader, "/", "X-API-Key: \t sk_blocked \t\r\n", 403},
		{"twice", inHeader, "/", "X-API-Key: sk_blocked\r\nX-API-Key: sk_other\r\n", 400},
		{"twice the same", inHeader, "/", "X-API-Key: sk_blocked\r\nx-api-key: sk_blocked\r\n", 400},
		{"twice, once empty", inHeader, "/", "X-API-Key:\r\nX-API-Key: sk_blocked\r\n", 400},
		{"joined", inHeader, "/", "X-API-Key: sk_other, sk_blocked\r\n", 400},
		{"underscores", inHeader, "/", "X_API_Key: sk_blocked\r\n", 400},
		{"an underscore", inHeader, "/", "X-API_Key: sk_blocked\r\n", 400},
		{"dots", inHeader, "/", "X.API.Key: sk_blocked\r\n", 400},
		{"underscores beside it", inHeader, "/", "X-API-Key: sk_other\r\nX_API_KEY: sk_blocked\r\n", 400},
		{"another name of that length", inHeader, "/", "X-API-Kex: sk_blocked\r\n", 200},
		{"a foreign blank behind it", inHeader, "/", "X-API-Key: sk_blocked\xa0\r\n", 400},
		{"a Unicode blank behind it", inHeader, "/", "X-API-Key: sk_blocked\u00a0\r\n", 400},
		{"a byte order mark before it", inHeader, "/", "X-API-Key: \ufeffsk_blocked\r\n", 400},
		{"letters that aren't ASCII", inHeader, "/", "X-API-Key: clé\r\n", 200},
		{"dropped on the way", inHeader, "/", "X-API-Key: sk_other\r\nConnection: close, x-api-key\r\n", 400},
		{"as a trailer", inHeader, "/", "Trailer: X-API-Key\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-API-Key: sk_blocked\r\n", 400},
		{"none", inHeader, "/", "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n", 200},

		{"a parameter", inQuery, "/?api_key=sk_blocked", "", 403},
		{"encoded", inQuery, "/?api%5Fkey=%73k_blocked", "", 403},
		{"given twice", inQuery, "/?api_key=sk_blocked&api_key=sk_other", "", 400},
		{"given twice, once empty", inQuery, "/?api_key=&api_key=sk_blocked", "", 400},
		{"behind a semicolon", inQuery, "/?a=1;api_key=sk_blocked", "", 400},
		{"before a semicolon", inQuery, "/?api_key=sk_blocked;a=1", "", 400},
		{"a semicolon elsewhere", inQuery, "/?a=1;b=2&api_key=sk_blocked", "", 403},
		{"an array", inQuery, "/?api_key[]=sk_blocked", "", 400},
		{"an encoded array", inQuery, "/?api_key%5B0%5D=sk_blocked", "", 400},
		{"an object", inQuery, "/?api_key[a]=sk_blocked", "", 400},
		{"capitals", inQuery, "/?API_KEY=sk_blocked", "", 400},
		{"as PHP reads it", inQuery, "/?api.key=sk_blocked", "", 400},
		{"as PHP reads it, too", inQuery, "/?+api+key=sk_blocked", "", 400},
		{"a blank behind it, encoded", inQuery, "/?api_key=sk_blocked%20", "", 400},
		{"a plus behind it", inQuery, "/?api_key=sk_blocked+", "", 400},
		{"a line end behind it", inQuery, "/?api_key=sk_blocked%0a", "", 400},
		{"a NUL behind it", inQuery, "/?api_key=sk_blocked%00x", "", 400},
		{"a NUL behind the name", inQuery, "/?api_key%00=sk_blocked", "", 400},
		{"broken escapes", inQuery, "/?api_key=sk_blocked%zz", "", 400},
		{"broken escapes in the name", inQuery, "/?api_key%zz=sk_blocked", "", 200},
		{"a fragment", inQuery, "/?api_key=sk_blocked#x", "", 400},
		{"another name", inQuery, "/?api_keys=sk_blocked&xapi_key=sk_blocked", "", 200},

		{"a bearer token", asBearer, "/", "Authorization: Bearer sk_blocked\r\n", 403},
		{"many blanks", asBearer, "/", "Authorization: bEARER   \t sk_blocked\r\n", 403},
		{"a tab", asBearer, "/", "Authorization: Bearer\tsk_blocked\r\n", 403},
		{"a foreign blank", asBearer, "/", "Authorization: Bearer\xa0sk_blocked\r\n", 400},
		{"no scheme", asBearer, "/", "Authorization: sk_blocked\r\n", 403},
		{"two words", asBearer, "/", "Authorization: Bearer sk_blocked sk_other\r\n", 400},
		{"two tokens", asBearer, "/", "Authorization: Bearer sk_other, Bearer sk_blocked\r\n", 400},
		{"two lines", asBearer, "/", "Authorization: Basic eA==\r\nAuthorization: Bearer sk_blocked\r\n", 400},
		{"behind another scheme", asBearer, "/", "Authorization: Basic eA==,bearer sk_blocked\r\n", 400},
		{"one word of another scheme", asBearer, "/", "Authorization: Token sk_blocked\r\n", 403},
		{"two words of another scheme", asBearer, "/", "Authorization: Token sk_blocked x\r\n", 400},
		{"parameters of another scheme", asBearer, "/", "Authorization: Digest username=\"bearer\", realm=\"x\"\r\n", 200},
		{"the last word of another scheme", asBearer, "/", "Authorization: Digest a=b sk_blocked\r\n", 400},
		{"the last word of parameters", asBearer, "/", "Authorization: Digest a=b, sk_blocked\r\n", 400},
		{"the first word of parameters", asBearer, "/", "Authorization: Digest sk_blocked a=b\r\n", 400},
		{"a parameter without a value", asBearer, "/", "Authorization: Digest a=b, sk_blocked=\r\n", 400},
		{"a bearer token within parameters", asBearer, "/", "Authorization: Digest a=bearer sk_blocked, b=c\r\n", 400},
		{"parameters of Bearer", asBearer, "/", "Authorization: Bearer a=sk_blocked, b=c\r\n", 400},
		{"parameters that end in a quote", asBearer, "/", "Authorization: Signature keyId=\"a\",headers=\"host date\"\r\n", 200},
		{"parameters of Amazon's", asBearer, "/", "Authorization: AWS4-HMAC-SHA256 Credential=A/b/s3/aws4_request, SignedHeaders=host;range, Signature=fe5f\r\n", 200},
		{"no blank behind the scheme", asBearer, "/", "Authorization: Bearersk_blocked\r\n", 400},
		{"something else behind the scheme", asBearer, "/", "Authorization: Bearer=sk_blocked\r\n", 400},
		{"the scheme within the token", asBearer, "/", "Authorization: sk_Bearer blocked\r\n", 400},
		{"the scheme within the token, again", asBearer, "/", "Authorization: Bearer sk_Bearerblocked\r\n", 400},
		{"the scheme within a token alone", asBearer, "/", "Authorization: sk_Bearerblocked\r\n", 400},
		{"a foreign blank in parameters", asBearer, "/", "Authorization: Digest a=b\xa0c, d=e\r\n", 400},
		{"a token in quotes", asBearer, "/", "Authorization: Bearer \"sk_blocked\"\r\n", 403},
		{"a token with a name", asBearer, "/", "Authorization: Bearer token=sk_blocked\r\n", 403},
		{"a token with parameters", asBearer, "/", "Authorization: Bearer sk_blocked;x\r\n", 400},
		{"a token as Rails has it", asBearer, "/", "Authorization: Token token=\"sk_blocked\"\r\n", 403},
		{"a token as Rails has it, with more", asBearer, "/", "Authorization: Token token=\"sk_blocked\", nonce=\"x\"\r\n", 403},
		{"a token as Rails reads it", asBearer, "/", "Authorization: Token token=sk_blocked;x, nonce=\"x\"\r\n", 400},
		{"a good one as Rails has it", asBearer, "/", "Authorization: Token token=\"sk_other\", nonce=\"x\"\r\n", 200},
		{"a token in the header Authorization", source{Header: "authorization"}, "/", "Authorization: bearer  sk_blocked\r\n", 403},
		{"not looked at", inHeader, "/", "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n", 200},

		{"behind a second question mark", inQuery, "/??api_key=sk_blocked", "", 400},
		{"a name in ASP's escapes", inQuery, "/?api%u005Fkey=sk_blocked", "", 400},

		{"two places", both, "/?api_key=sk_blocked", "X-API-Key: sk_other\r\n", 400},
		{"two other places", both, "/", "X-API-Key: sk_other\r\nAuthorization: Bearer sk_blocked\r\n", 400},
		{"two places that agree", both, "/?api_key=sk_blocked", "X-API-Key: sk_blocked\r\n", 403},

		{"a header that a rule counts by, twice", inHeader, "/", "X-Tenant: a\r\nX-Tenant: b\r\n", 400},
		{"it, in disguise", inHeader, "/", "X_Tenant: a\r\n", 400},
	} {
		reached := false
		srv, _ := serve(t, wrap(blocking(t), httplimit.Options{Identity: httplimit.Identity{APIKey: c.source}}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true })))
		status, body := askRaw(t, srv.Listener.Addr().String(), c.target, c.lines)
		srv.Close()
		if status != c.want || reached != (c.want == 200) {
			t.Errorf("%s: %d, handler called: %t; want %d", c.name, status, reached, c.want)
		}
		if status != 400 {
			continue
		}
		var answer struct {
			Error struct {
				Code, Message string
				Details       map[string]any
			}
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Error.Code != "AMBIGUOUS_IDENTITY" || answer.Error.Details == nil {
			t.Errorf("%s: %s, %v", c.name, body, err)
		}
		if strings.Contains(body, "sk_") {
			t.Errorf("%s: the answer repeats the key: %s", c.name, body)
		}
	}
}

// Changing the rules changes which headers a request may send only once.
func TestWatchedHeadersFollowTheRules(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "a", By: []string{"header:X-A"}, Limits: per(100, time.Hour)}))
	srv, client := serve(t, wrap(l, httplimit.Options{}, ok))
	twice := func(name string) int { return get(t, client, srv.URL, name, "1", name, "2").StatusCode }
	if a, b := twice("X-A"), twice("X-B"); a != 400 || b != 200 {
		t.Errorf("X-A twice: %d, X-B twice: %d", a, b)
	}
	l.SetRules(compile(t, rules(weir.Rule{ID: "b", By: []string{"header:X-B"}, Limits: per(100, time.Hour)})))
	if a, b := twice("X-A"), twice("X-B"); a != 200 || b != 400 {
		t.Errorf("by other rules X-A twice: %d, X-B twice: %d", a, b)
	}
}

// A rule that counts by the Authorization header counts its token, however the header is spelled.
func TestCountingByAuthorization(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "a", By: []string{"header:Authorization"}, Limits: per(1, time.Hour)}))
	srv, client := serve(t, wrap(l, httplimit.Options{}, ok))
	for value, want := range map[string]int{"Bearer k": 429, "bearer   k": 429, "Bearer\tk": 429, "k": 429, "Bearer \"k\"": 429, "Bearer k j": 400, "Bearerk": 400} {
		get(t, client, srv.URL, "Authorization", "Bearer k")
		if got := get(t, client, srv.URL, "Authorization", value).StatusCode; got != want {
			t.Errorf("%q: %d, want %d", value, got, want)
		}
	}
	digest := `Digest username="a", response="b"`
	if a, b := get(t, client, srv.URL, "Authorization", digest).StatusCode, get(t, client, srv.URL, "Authorization", digest).StatusCode; a != 200 || b != 429 {
		t.Errorf("without a token: %d, then %d", a, b)
	}
}
