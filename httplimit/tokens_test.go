package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
)

// If several limits count the same amount, the dialect tokens shows the one that refuses, or else the one with the least left.
// If two have the same left, it shows the first.
func TestTokensShowTheLimitThatBinds(t *testing.T) {
	limit := func(id string, n int64, window time.Duration) weir.Rule {
		return weir.Rule{ID: id, Limits: per(n, window)}
	}
	taking := func(rule weir.Rule, n int64) weir.Rule {
		rule.Amount, rule.Default = "tokens", counter.Whole(n)
		return rule
	}
	few, many, more := limit("few", 3, time.Hour), limit("many", 100, time.Hour), limit("more", 200, time.Hour)
	minute, hour := limit("minute", 6, time.Minute), limit("hour", 6, time.Hour)
	refusing, lesser := taking(limit("refusing", 40, time.Hour), 30), taking(limit("lesser", 5, time.Hour), 1)
	for _, c := range []struct {
		name  string
		rules []weir.Rule
		asks  int
		of    string
		want  string // limit, what is left, and until when
	}{
		{"the first", []weir.Rule{few, many, more}, 1, "Requests", "3 2 20m0s"},
		{"the second", []weir.Rule{many, few, more}, 1, "Requests", "3 2 20m0s"},
		{"the last", []weir.Rule{more, many, few}, 1, "Requests", "3 2 20m0s"},
		{"the first of equals", []weir.Rule{minute, hour}, 1, "Requests", "6 5 10s"},
		{"the first of equals, turned round", []weir.Rule{hour, minute}, 1, "Requests", "6 5 10m0s"},
		{"one that refuses, before one with less", []weir.Rule{refusing, lesser}, 2, "Tokens", "40 10 45m0s"},
		{"one that refuses, behind one with less", []weir.Rule{lesser, refusing}, 2, "Tokens", "40 10 45m0s"},
		{"requests beside tokens", []weir.Rule{lesser, few, many}, 1, "Requests", "3 2 20m0s"},
		{"tokens beside requests", []weir.Rule{few, lesser, many}, 1, "Tokens", "5 4 12m0s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			answers := httplimit.Answers{Dialects: []httplimit.Dialect{httplimit.Tokens}, Expose: true}
			h := wrap(limiter(t, rules(c.rules...)), httplimit.Options{Answers: answers}, ok)
			var w *httptest.ResponseRecorder
			for range c.asks {
				w = httptest.NewRecorder()
				h.ServeHTTP(w, request("/"))
			}
			var got []string
			for _, what := range []string{"Limit", "Remaining", "Reset"} {
				name := http.CanonicalHeaderKey("X-RateLimit-" + what + "-" + c.of)
				got = append(got, w.Header()[name]...)
				if n := strings.Count(w.Header().Get("Access-Control-Expose-Headers"), name); n != 1 {
					t.Errorf("%s: %s is exposed %d times", c.name, name, n)
				}
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("%s: %q, want %q", c.name, got, c.want)
			}
		})
	}
}
