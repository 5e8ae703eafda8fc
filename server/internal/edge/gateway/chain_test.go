package gateway

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

// limits returns the headers of a response that are about limits.
func limits(h http.Header) map[string]string {
	out := map[string]string{}
	for name, values := range h {
		if isRateLimit(name) || name == "Retry-After" || name == "X-Quota" {
			out[name] = strings.Join(values, " | ")
		}
	}
	delete(out, "X-Ratelimit-Reset") // the time of day
	delete(out, "Ratelimit-Reset")
	return out
}

// wantLimits checks the status, and that the headers about limits are exactly those wanted.
func wantLimits(t *testing.T, a answer, status int, want map[string]string) {
	t.Helper()
	if got := limits(a.Header); a.StatusCode != status || !maps.Equal(got, want) {
		t.Errorf("%s with %v, want %d with %v", a.Status, got, status, want)
	}
}

// If two gateways are chained, the response shows the limit of the more restrictive one, and nothing of the other.
func TestTwoGatewaysInARow(t *testing.T) {
	x := httplimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{httplimit.XRateLimit}}}
	every := httplimit.Options{Answers: httplimit.Answers{
		Dialects: []httplimit.Dialect{httplimit.GitHub, httplimit.IETF06, httplimit.Tokens}, Names: httplimit.HeaderNames{Remaining: "X-Quota"},
	}}
	chain := func(edge, inner weir.Rule, edgeOptions httplimit.Options) *door {
		up := startUpstream(t, nil)
		behind := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, inner), limit: x})
		return start(t, setup{upstream: behind.URL, limiter: limiterOf(t, weir.Options{}, edge), limit: edgeOptions})
	}
	for _, edgeOptions := range []httplimit.Options{x, every} {
		d := chain(few("edge", "/", 100), few("inner", "/", 2), edgeOptions)
		wantLimits(t, d.get(t, "/"), 200, map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "1"})
		wantLimits(t, d.get(t, "/"), 200, map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0"})
		a := d.get(t, "/")
		after := a.Header.Get("Retry-After")
		wantLimits(t, a, 429, map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Rule": "inner", "Retry-After": after})
		if after == "" || !strings.Contains(a.body, `"rule":"inner"`) {
			t.Errorf("Retry-After %q, %s", after, a.body)
		}
	}

	d := chain(few("edge", "/", 2), few("inner", "/", 100), x)
	wantLimits(t, d.get(t, "/"), 200, map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "1"})
	d.get(t, "/")
	a := d.get(t, "/")
	wantLimits(t, a, 429, map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Rule": "edge", "Retry-After": a.Header.Get("Retry-After")})

	// The inner gateway refuses for a reason other than a limit.
	needsUser := few("inner", "/", 100)
	needsUser.By, needsUser.Missing = []string{"user"}, weir.MissingRefuse
	wantLimits(t, chain(few("edge", "/", 100), needsUser, every).get(t, "/"), 403, map[string]string{"X-Ratelimit-Rule": "inner"})
}

// An upstream with limits of its own is treated like a second gateway: its refusals keep their headers, and so do
// responses that leave the client less than the gateway does.
func TestUpstreamThatLimits(t *testing.T) {
	ours := map[string]string{"X-Ratelimit-Limit": "100", "X-Ratelimit-Remaining": "99", "Ratelimit-Limit": "100", "Ratelimit-Remaining": "99"}
	with := func(more ...string) map[string]string {
		out := maps.Clone(ours)
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	for name, c := range map[string]struct {
		status int
		theirs map[string]string
		want   map[string]string // if nil, the same as theirs
	}{
		"no headers":           {200, nil, ours},
		"a bare 429":           {429, nil, nil},
		"a 429 in no dialect":  {429, map[string]string{"Retry-After": "9"}, nil},
		"a 429":                {429, map[string]string{"X-Ratelimit-Limit": "7", "X-Ratelimit-Remaining": "6", "X-Ratelimit-Used": "1", "Retry-After": "9"}, nil},
		"less":                 {200, map[string]string{"X-Ratelimit-Limit": "7", "X-Ratelimit-Remaining": "6", "X-Ratelimit-Used": "1"}, nil},
		"less, as a field":     {200, map[string]string{"Ratelimit": `"a;r=0;";r=500;t=1, "b";r=98;t=1`}, nil},
		"less, in old fields":  {404, map[string]string{"Ratelimit-Limit": "50", "Ratelimit-Remaining": "50"}, nil},
		"as much":              {200, map[string]string{"X-Ratelimit-Limit": "99", "X-Ratelimit-Remaining": "99", "X-Ratelimit-Used": "1"}, ours},
		"more":                 {200, map[string]string{"X-Ratelimit-Limit": "700", "X-Ratelimit-Remaining": "600", "X-Ratelimit-Used": "1"}, ours},
		"more, as a field":     {200, map[string]string{"Ratelimit": `"a;r=0;";r=500;t=1`}, ours},
		"degraded":             {200, map[string]string{"X-Ratelimit-Remaining": "-1", "X-Ratelimit-Policy": "degraded"}, ours},
		"invalid values":       {200, map[string]string{"X-Ratelimit-Remaining": "few", "Ratelimit": "r"}, ours},
		"another API's header": {200, map[string]string{"X-Ratelimit-Remaining-Tokens": "3"}, ours},
		"a failure":            {503, map[string]string{"X-Ratelimit-Limit": "700"}, ours},
		"an overload":          {503, map[string]string{"Retry-After": "9"}, nil},
		"a time to wait":       {200, map[string]string{"Retry-After": "9"}, with("Retry-After", "9")},
		"a refusal by Weir":    {420, map[string]string{"X-Ratelimit-Limit": "700", "X-Ratelimit-Remaining": "600", "X-Ratelimit-Rule": "spend"}, nil},
	} {
		up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			for name, value := range c.theirs {
				w.Header().Set(name, value)
			}
			w.WriteHeader(c.status)
		})
		d := start(t, setup{
			upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("mine", "/", 100)),
			limit: httplimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{httplimit.XRateLimit, httplimit.IETF06}}},
		})
		want := c.want
		if want == nil {
			want = c.theirs
		}
		a := d.get(t, "/")
		if got := limits(a.Header); a.StatusCode != c.status || !maps.Equal(got, want) {
			t.Errorf("%s: %s with %v, want %v", name, a.Status, got, want)
		}
	}
}

// A trailer about limits must not contradict the headers: a response has the limits of one limiter only.
func TestTrailersOfTheLimiterThatBinds(t *testing.T) {
	for _, status := range []int{200, 429} {
		up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-RateLimit-Limit")
			w.WriteHeader(status)
			io.WriteString(w, "body")
			w.Header().Set("X-RateLimit-Limit", "7")
		})
		d := start(t, setup{upstream: up.URL})
		a := d.get(t, "/")
		got := slices.Concat(a.Header.Values("X-RateLimit-Limit"), a.Trailer.Values("X-RateLimit-Limit"))
		if want := map[int]string{200: "1000000", 429: "7"}[status]; len(got) != 1 || got[0] != want {
			t.Errorf("%d: X-RateLimit-Limit is %q, want %s", status, got, want)
		}
	}
}
