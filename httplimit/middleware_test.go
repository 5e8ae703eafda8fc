package httplimit_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// S1: five hundred simultaneous requests reach a bucket of a hundred tokens that doesn't refill meanwhile.
func TestBurst(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "orders", Limits: per(100, 366*24*time.Hour)}))
	srv, client := serve(t, wrap(l, httplimit.Options{}, ok))
	var (
		mu       sync.Mutex
		statuses = map[int]int{}
		wg       sync.WaitGroup
	)
	begin := make(chan struct{})
	for range 500 {
		wg.Go(func() {
			<-begin
			status := statusOf(client, srv.URL)
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	close(begin)
	wg.Wait()
	if statuses[200] != 100 || statuses[429] != 400 {
		t.Errorf("%v", statuses)
	}
}

// Rules may change under load, and with them the values that must be looked up.
func TestRulesChangeUnderLoad(t *testing.T) {
	sets := []*weir.RuleSet{
		compile(t, rules(weir.Rule{ID: "a", Limits: per(1e6, time.Hour)})),
		compile(t, rules(weir.Rule{ID: "b", By: []string{"header:X-Tenant"}, Missing: weir.MissingRefuse, Limits: per(1e6, time.Hour)})),
		compile(t, rules(weir.Rule{ID: "c", Statuses: []int{500}, Limits: per(1e6, time.Hour)})),
	}
	l := weir.NewLimiter(memstore.New(memstore.Options{}), sets[0], weir.Options{})
	h := wrap(l, httplimit.Options{}, ok)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, request("/", "X-Tenant", "acme"))
				if w.Code != 200 || w.Body.String() != "ok" {
					t.Errorf("%d %s", w.Code, w.Body)
					return
				}
			}
		})
	}
	for i := range 500 {
		l.SetRules(sets[i%len(sets)])
	}
	wg.Wait()
}

// Rules that come into force during a request find the values that they count by.
func TestRulesChangeInTheMiddle(t *testing.T) {
	tenant := compile(t, rules(weir.Rule{ID: "b", By: []string{"header:X-Tenant"}, Missing: weir.MissingRefuse, Limits: per(1, time.Hour)}))
	l := limiter(t, rules(weir.Rule{ID: "a", Limits: per(1, time.Hour)}))
	h := wrap(l, httplimit.Options{Identify: func(*http.Request, *weir.Request) { l.SetRules(tenant) }}, ok)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request("/", "X-Tenant", "acme"))
	if w.Code != 200 || w.Header().Get("RateLimit") != `"b";r=0;t=3600` {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

func TestErrorsOfTheStoreAreTold(t *testing.T) {
	store := &outage{Store: memstore.New(memstore.Options{}), fails: []string{"a"}}
	l := weir.NewLimiter(store, compile(t, rules(weir.Rule{ID: "a", Limits: per(1, time.Hour)})), weir.Options{})
	var told []string
	h := wrap(l, httplimit.Options{OnError: func(r *http.Request, err error) {
		told = append(told, fmt.Sprint(r.URL.Path, " ", errors.Is(err, errGone)))
	}}, ok)
	h.ServeHTTP(httptest.NewRecorder(), request("/x"))
	if got := strings.Join(told, ", "); got != "/x true" {
		t.Errorf("told %q", got)
	}
	wrap(l, httplimit.Options{}, ok).ServeHTTP(httptest.NewRecorder(), request("/x")) // no observer is set
}

// A handler can read and replace the limiter's headers.
func TestHandlersSeeTheHeaders(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "a", Limits: per(10, time.Hour)}))
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Expose-Headers", "X-Mine")
		wrap(l, httplimit.Options{Answers: httplimit.Answers{Expose: true}}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if w.Header().Get("X-RateLimit-Remaining") != "9" {
				t.Errorf("%v", w.Header())
			}
			w.Header().Del("RateLimit")
			w.Header().Add("X-RateLimit-Limit", "and mine") // must not spill into the next
		})).ServeHTTP(w, r)
	})
	w := httptest.NewRecorder()
	outer.ServeHTTP(w, request("/"))
	h := w.Result().Header
	if h.Get("RateLimit") != "" || fmt.Sprint(h["X-Ratelimit-Limit"]) != "[10 and mine]" || fmt.Sprint(h["X-Ratelimit-Remaining"]) != "[9]" {
		t.Errorf("%v", h)
	}
	if got := strings.Join(h.Values("Access-Control-Expose-Headers"), ", "); !strings.HasPrefix(got, "X-Mine, X-RateLimit-Limit, ") {
		t.Errorf("exposed: %s", got)
	}
}

// A refusal has the right Content-Length and leaves the connection usable.
func TestRefusalsKeepTheConnection(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "a", By: []string{}, Limits: per(1, time.Hour)}))
	conns := map[string]bool{}
	limited := wrap(l, httplimit.Options{}, ok)
	srv, client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conns[r.RemoteAddr] = true
		limited.ServeHTTP(w, r)
	}))
	for i := range 5 {
		resp, err := client.Post(srv.URL, "text/plain", strings.NewReader(strings.Repeat("x", 10_000)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || int64(len(body)) != resp.ContentLength || (resp.StatusCode == 200) != (i == 0) {
			t.Errorf("%d: %v, %d of %d bytes", resp.StatusCode, err, len(body), resp.ContentLength)
		}
	}
	if len(conns) != 1 {
		t.Errorf("%d connections", len(conns))
	}
}

// Only clients that ask for problem details get them.
func TestWhoGetsProblemDetails(t *testing.T) {
	l := limiter(t, weir.Rules{Deny: []string{"k"}})
	h := wrap(l, httplimit.Options{}, ok)
	const problem = "application/problem+json"
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/*": false, "application/json": false, problem + "x": false, "x" + problem: false,
		problem: true, "Application/Problem+JSON": true, "text/html, " + problem: true, " " + problem + " ;q=1, text/html": true,
		problem + ";q=0": false, problem + "; q=0.000": false, problem + "; Q=0": false, problem + ";q=0.001": true,
		problem + ";charset=utf-8": true, problem + "; charset=utf-8; q=0": false, problem + "; charset=utf-8; q=0.5": true,
		problem + ";q": true, problem + ";q=": false, problem + ";q=x": false, problem + ";q=-1": false,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request("/", "X-API-Key", "k", "Accept", accept))
		if got := w.Header().Get("Content-Type") == problem; w.Code != 403 || got != want {
			t.Errorf("%q: %d, a problem: %t", accept, w.Code, got)
		}
	}
}

func TestAnswersThatCannotBe(t *testing.T) {
	for want, a := range map[string]httplimit.Answers{
		`headers: must be of x-ratelimit, ietf, ietf-06, github and tokens, got "x"`:                {Dialects: []httplimit.Dialect{"x"}},
		"headers: ietf and ietf-06 give RateLimit different meanings":                               {Dialects: []httplimit.Dialect{httplimit.IETF, httplimit.IETF06}},
		`headers: names: "X Quota" can't be the name of a header`:                                   {Names: httplimit.HeaderNames{Limit: "X Quota"}},
		`headers: names: "X-Quota\r\nX: y" can't be`:                                                {Names: httplimit.HeaderNames{ResetAfter: "X-Quota\r\nX: y"}},
		"refusal: status: must be from 400 to 599, got 200":                                         {Refusal: httplimit.Template{Status: 200}},
		"refusal: status: must be from 400 to 599, got 399":                                         {Refusal: httplimit.Template{Status: 399}},
		"refusal: status: must be from 400 to 599, got 600":                                         {Refusal: httplimit.Template{Status: 600}},
		`refusal: content_type: must be a media type such as text/plain, got "text/plain; charset"`: {Refusal: httplimit.Template{ContentType: "text/plain; charset"}},
		"refusal: body: template: refusal:1: ":                                                      {Refusal: httplimit.Template{Body: "{{.Limit"}},
		"refusal: body: template: refusal:1:2: executing":                                           {Refusal: httplimit.Template{Body: "{{.Nope}}"}},
	} {
		got, err := httplimit.NewAnswerer(a)
		if err == nil || !strings.HasPrefix(err.Error(), want) || got != nil {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("New took it: %s", want)
				}
			}()
			httplimit.New(nil, httplimit.Options{Answers: a})
		}()
	}
}

// Header names must be tokens as in RFC 9110, and the status of a refusal must be an error.
func TestAnswersThatCanBe(t *testing.T) {
	const token = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	for c := rune(0); c < 0x100; c++ {
		_, err := httplimit.NewAnswerer(httplimit.Answers{Names: httplimit.HeaderNames{Limit: "X" + string(c)}})
		if want := strings.ContainsRune(token, c); (err == nil) != want {
			t.Errorf("%q in the name of a header: %v", c, err)
		}
	}
	for _, status := range []int{400, 429, 503, 599} {
		if _, err := httplimit.NewAnswerer(httplimit.Answers{Refusal: httplimit.Template{Status: status}}); err != nil {
			t.Errorf("status %d: %v", status, err)
		}
	}
}

// The tiers of a rule share its name, and here even the limit. Cached headers of one tier must not be sent for another.
func TestEachTierSeesItsOwnPolicy(t *testing.T) {
	l := limiter(t, weir.Rules{
		Tiers: []weir.Tier{
			{Name: "free", Limits: per(10, time.Hour)}, {Name: "pro", Limits: per(10, time.Minute)}, {Name: "max", Limits: per(1000, time.Minute)},
		},
		Rules: []weir.Rule{{ID: "quota"}},
	})
	h := wrap(l, httplimit.Options{Identity: httplimit.Identity{Tier: httplimit.Source{Header: "X-Tier"}, TrustUnverified: true}}, ok)
	for range 3 {
		for tier, want := range map[string]string{"free": `10 "quota";q=10;w=3600`, "pro": `10 "quota";q=10;w=60`, "max": `1000 "quota";q=1000;w=60`} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, request("/", "X-API-Key", tier, "X-Tier", tier))
			if got := w.Header().Get("X-RateLimit-Limit") + " " + w.Header().Get("RateLimit-Policy"); got != want {
				t.Errorf("%s: %s, want %s", tier, got, want)
			}
		}
	}
}
