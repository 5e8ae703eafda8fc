package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// told is an observer that records decisions.
type told struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (o *told) observe(x *weir.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, fmt.Sprintf("%s|%s|%s|%s|%s|%s", x.Request.Edge, x.Decision.Reason, x.Decision.Rule, x.Request.Method, x.Request.IP, x.Request.Rejected))
}

// take returns the decisions recorded since the last call.
func (o *told) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := o.lines
	o.lines = nil
	return lines
}

func observed(t testing.TB, doc weir.Rules) (*weir.Limiter, *told) {
	o := new(told)
	return weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, doc), weir.Options{Observe: o.observe}), o
}

// A request that is shed is observed once.
func TestShedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, o := observed(t, rules(weir.Rule{ID: "a", Limits: per(100, time.Hour)}))
		goOn := make(chan struct{})
		h := bounded(l, goOn, ok)
		first := make(chan int)
		go func() { first <- askAs(h, "GET", "slow").Code }()
		synctest.Wait()
		if w := askAs(h, "GET", "k"); w.Code != 503 {
			t.Errorf("%d", w.Code)
		}
		if got := o.take(); !slices.Equal(got, []string{"http|overloaded|||invalid IP|"}) {
			t.Errorf("told: %q", got)
		}
		close(goOn)
		<-first
		if got := o.take(); len(got) != 1 || !strings.HasPrefix(got[0], "http|within|a|GET|") {
			t.Errorf("told: %q", got)
		}
	})
}

// A request whose queue has no room is observed twice, as the docs say: it is admitted to the queue, then refused.
func TestFullQueueIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, o := observed(t, rules(weir.Rule{ID: "q", Algorithm: weir.LeakyQueue, Limits: per(6, time.Minute)}))
		h := wrap(l, httplimit.Options{MaxWaiting: 1}, ok)
		go askAs(h, "GET", "a")
		synctest.Wait()
		go askAs(h, "GET", "a") // waits
		synctest.Wait()
		o.take()
		askAs(h, "GET", "b")
		if w := askAs(h, "GET", "b"); w.Code != 503 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		count := map[string]int{}
		for _, line := range o.take() {
			f := strings.Split(line, "|")
			count[f[1]+" "+f[2]]++
		}
		if fmt.Sprint(count) != "map[overloaded q:1 within q:2]" {
			t.Errorf("told: %v", count)
		}
		time.Sleep(time.Minute)
	})
}

// A request with an ambiguous identity is refused and observed once, with the reason and the client, but without the values.
func TestAmbiguousIdentityIsTold(t *testing.T) {
	l, o := observed(t, rules(weir.Rule{ID: "a", Limits: per(100, time.Hour)}))
	h := wrap(l, httplimit.Options{Edge: "gateway", Identity: httplimit.Identity{APIKey: httplimit.Source{Header: "X-API-Key", Query: "api_key"}}}, ok)
	for want, r := range map[string][]string{
		"The header X-Api-Key is given twice":                       {"/", "X-API-Key", "sk_secret1", "X-API-Key", "sk_secret2"},
		"The API key is given twice, with different values":         {"/?api_key=sk_secret1", "X-API-Key", "sk_secret2"},
		"The header X-Api-Key is listed in Connection":              {"/", "X-API-Key", "sk_secret1", "Connection", "x-api-key"},
		"The query parameter api_key is given twice":                {"/?api_key=sk_secret1&api_key=sk_secret2"},
		"The header X-Api-Key must hold one value, without a comma": {"/", "X-API-Key", "sk_secret1, sk_secret2"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(r[0], r[1:]...))
		if w.Code != 400 {
			t.Errorf("%s: %d", want, w.Code)
		}
		if got := o.take(); len(got) != 1 || got[0] != "gateway|identity_required||GET|192.0.2.1|"+want {
			t.Errorf("told: %q, want %q", got, want)
		}
	}
}

// The decision says why a token doesn't verify without repeating the token, whether the identity or a rule needed the token.
func TestRejectedTokenIsTold(t *testing.T) {
	byPlace := httplimit.Identity{User: httplimit.Source{Claim: "sub"}}
	byRule := httplimit.Identity{}
	for token, want := range map[string]string{
		"":                          "",
		genuine:                     "",
		forged:                      wrongSignature,
		"a.b.c":                     wrongSignature,
		"sk_prod_secret":            notAToken,
		strings.Repeat("x", 20<<10): notAToken,
	} {
		for name, id := range map[string]httplimit.Identity{"a place": byPlace, "a rule": byRule} {
			l, o := observed(t, rules(weir.Rule{ID: "users", By: []string{"claim:sub"}, Limits: per(100, time.Hour)}))
			id.JWT = knownTokens{genuine: {"sub": "ada"}}
			w := httptest.NewRecorder()
			wrap(l, httplimit.Options{Identity: id}, ok).ServeHTTP(w, request("/", "Authorization", "Bearer "+token))
			if got := o.take(); len(got) != 1 || !strings.HasSuffix(got[0], "|"+want) || !strings.HasPrefix(got[0], "http|within|users|GET|192.0.2.1|") {
				t.Errorf("%s, %.40s…: told %q, want %q", name, token, got, want)
			}
		}
	}
}

// A credential that isn't meant as a JWT isn't reported as an invalid one. Examples are an API key as the bearer token, and
// credentials of another scheme.
func TestOtherCredentialsAreNotRejected(t *testing.T) {
	l, o := observed(t, rules(weir.Rule{ID: "keys", Limits: per(100, time.Hour)}))
	jwt := knownTokens{genuine: {"sub": "ada"}}
	alone := wrap(l, httplimit.Options{Identity: httplimit.Identity{User: httplimit.Source{Claim: "sub"}, JWT: jwt}}, ok)
	orKey := wrap(l, httplimit.Options{Identity: httplimit.Identity{APIKey: httplimit.Source{Claim: "sub", Bearer: true}, JWT: jwt}}, ok)
	for credentials, want := range map[string][2]string{
		"Bearer sk_prod_1": {notAToken, ""}, "Basic d2VpcjpzZWNyZXQ=": {"", ""},
		"Bearer " + forged: {wrongSignature, wrongSignature}, "bearer\t" + forged: {wrongSignature, wrongSignature}, forged: {wrongSignature, wrongSignature},
	} {
		for i, h := range []http.Handler{alone, orKey} {
			h.ServeHTTP(httptest.NewRecorder(), request("/", "Authorization", credentials))
			if got := o.take(); len(got) != 1 || !strings.HasSuffix(got[0], "|"+want[i]) {
				t.Errorf("%.20s: told %q, want %q", credentials, got, want[i])
			}
		}
	}
}

// Requests that are refused without a check are observed with the version of the rules in force and with a retry time.
func TestRefusalsWithoutACheckAreToldWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		doc := rules(weir.Rule{ID: "q", Algorithm: weir.LeakyQueue, Limits: per(6, time.Minute)})
		doc.Version = 7
		var mu sync.Mutex
		told := map[weir.Reason]weir.Decision{}
		l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, doc), weir.Options{Observe: func(o *weir.Observation) {
			mu.Lock()
			defer mu.Unlock()
			told[o.Decision.Reason] = *o.Decision
		}})
		h := wrap(l, httplimit.Options{MaxWaiting: 1}, ok)
		for range 3 { // the first is let through, and the second waits
			go askAs(h, "GET", "a")
			synctest.Wait()
		}
		h.ServeHTTP(httptest.NewRecorder(), request("/", "X-API-Key", "a", "X-API-Key", "b"))
		time.Sleep(time.Minute) // until no request waits
		mu.Lock()
		defer mu.Unlock()
		if d := told[weir.ReasonOverloaded]; d.RulesVersion != 7 || d.RetryAfter <= 0 {
			t.Errorf("a full queue: version %d, retry after %s", d.RulesVersion, d.RetryAfter)
		}
		if d := told[weir.ReasonIdentityRequired]; d.RulesVersion != 7 || d.RetryAfter != weir.Never {
			t.Errorf("an ambiguous identity: version %d, retry after %s", d.RulesVersion, d.RetryAfter)
		}
	})
}
