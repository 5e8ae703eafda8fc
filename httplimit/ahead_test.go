package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// A request that would be refused whatever its body contains is refused before the body is read. It counts as refused once,
// and takes nothing.
func TestRefuseAhead(t *testing.T) {
	once := weir.Rule{ID: "requests", By: []string{}, Algorithm: weir.FixedWindow, Limits: per(1, 24*time.Hour)}
	abused := once
	abused.Abuse = &counter.Abuse{Refusals: 3, Window: time.Hour, Cooldown: time.Hour, Grow: 1, Most: time.Hour, Forgive: time.Hour}
	byModel := weir.Rule{ID: "model", By: []string{"attr:model"}, Missing: weir.MissingRefuse, Limits: per(10, 24*time.Hour)}
	tokens := daily("tokens", 1000)
	tokens.Default = counter.Whole(900)
	for name, c := range map[string]struct {
		rules   weir.Rules
		before  int                       // requests that were served or refused
		amounts map[string]counter.Amount // of each of them
		key     []string
		status  int // 0 if it isn't refused
	}{
		"within":                       {rules: rules(once, tokens)},
		"on the deny list":             {rules: weir.Rules{Deny: []string{"sk_bad"}, Rules: []weir.Rule{tokens}}, key: []string{"sk_bad"}, status: 403},
		"past a limit":                 {rules: rules(once, tokens), before: 1, status: 429},
		"in a cooldown":                {rules: rules(abused, tokens), before: 10, status: 429},
		"ambiguous":                    {rules: rules(tokens), key: []string{"a", "b"}, status: 400},
		"past a limit of amounts":      {rules: rules(tokens), before: 2, amounts: amounts(1000)},
		"more than the default left":   {rules: rules(tokens), before: 1, amounts: amounts(500)},
		"by a model that nobody knows": {rules: rules(byModel, tokens)},
	} {
		synctest.Test(t, func(t *testing.T) {
			var told []weir.Reason
			l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, c.rules), weir.Options{
				Guard: cooldown.New(cooldown.Options{}),
				Observe: func(o *weir.Observation) {
					if !o.Request.Peek {
						told = append(told, o.Decision.Reason)
					}
				},
			})
			m := httplimit.New(l, httplimit.Options{})
			for range c.before {
				estimating(&httplimit.Estimate{Amounts: c.amounts, Model: "m"}, m.Wrap(ok)).ServeHTTP(httptest.NewRecorder(), request("/"))
				time.Sleep(time.Second) // so that refusals count toward a cooldown
			}
			before := left(t, l)
			told = nil
			r := request("/")
			r.Header["X-Api-Key"] = c.key
			w := httptest.NewRecorder()
			if _, refused := m.RefuseAhead(w, r); refused != (c.status != 0) || refused && w.Code != c.status {
				t.Errorf("%s: refused: %t, with %d", name, refused, w.Code)
			}
			if want := min(c.status, 1); len(told) != want {
				t.Errorf("%s: observers saw %v", name, told)
			}
			if name == "in a cooldown" && !slices.Equal(told, []weir.Reason{weir.ReasonCooldown}) {
				t.Errorf("it was refused for %v", told)
			}
			if c.status == 429 && (w.Header().Get("Retry-After") == "" || w.Header().Get("X-Ratelimit-Rule") != "requests") {
				t.Errorf("%s: headers: %v", name, w.Header())
			}
			for rule, n := range left(t, l) {
				if n != before[rule] {
					t.Errorf("%s: %s are left of %s, which had %s", name, n, rule, before[rule])
				}
			}
		})
	}
}

// If a counter refills while a request is about to be refused ahead, the request continues, and the counter keeps no charge
// from the attempt.
func TestRefusedAheadAsACounterRefills(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "requests", By: []string{}, Algorithm: weir.FixedWindow, Limits: per(1, 24*time.Hour)}, daily("tokens", 1000)))
	asked := 0
	m := httplimit.New(l, httplimit.Options{Identify: func(_ *http.Request, req *weir.Request) {
		if asked++; asked == 3 { // behind the peek
			if _, err := l.Reset(t.Context(), req); err != nil {
				t.Error(err)
			}
		}
	}})
	m.Wrap(ok).ServeHTTP(httptest.NewRecorder(), request("/"))
	w := httptest.NewRecorder()
	if _, refused := m.RefuseAhead(w, request("/")); refused || w.Header().Get("Retry-After") != "" {
		t.Errorf("refused: %t, %v", refused, w.Header())
	}
	if got := left(t, l)["requests"]; asked != 3 || got != "1" {
		t.Errorf("asked %d times, %s requests left", asked, got)
	}
}
