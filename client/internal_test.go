package client

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// Sizes returns how many hosts the Transport remembers, and how many policies and routes of the host that has the most.
func (t *Transport) Sizes() (hosts, policies, routes int) {
	for _, h := range t.hosts {
		policies, routes = max(policies, len(h.policies)), max(routes, len(h.routes))
	}
	return len(t.hosts), policies, routes
}

func (r reading) String() string {
	other := ""
	if r.other {
		other = " other"
	}
	return fmt.Sprintf("{%s %v %v %v %v%s}", r.name, r.limit, r.window, r.left, r.reset, other)
}

func TestReadHeaders(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		headers []string
		want    string
	}{
		{[]string{"RateLimit-Policy", `"a";q=100;w=60, "b b\"";q=5000;w=3600;pk=:cHJv:`, "RateLimit", `"a";r=73;t=17`}, `[{a 100 1m0s 73 17s} {b b" 5000 1h0m0s -1 -1ns}] -1ns`},
		{[]string{"RateLimit-Policy", `"a";q=100;qu="requests";w=60, "b";q=5;qu="tokens";w=60`, "RateLimit", `"b";r=3;t=17`}, `[{a 100 1m0s -1 -1ns} {b -1 -1ns 3 17s other}] -1ns`},
		{[]string{"RateLimit-Policy", `"b";q=5;qu="concurrent-requests"`, "X-RateLimit-Remaining", "3"}, `[{b -1 -1ns -1 -1ns other}] -1ns`},
		{[]string{"RateLimit", `"a";r=73;t=17, "b";r=0`}, `[{a -1 -1ns 73 17s} {b -1 -1ns 0 -1ns}] -1ns`},
		{[]string{"RateLimit", "limit=100, remaining=50, reset=5", "RateLimit-Policy", "100;w=60"}, `[{ 100 1m0s 50 5s}] -1ns`},
		{[]string{"RateLimit-Limit", "100, 100;w=60", "RateLimit-Remaining", "9", "RateLimit-Reset", "4"}, `[{ 100 -1ns 9 4s}] -1ns`},
		{[]string{"X-RateLimit-Limit", "60", "X-RateLimit-Remaining", "7", "X-RateLimit-Reset", fmt.Sprint(now.Unix() + 9), "X-RateLimit-Resource", "core"}, `[{core 60 -1ns 7 9s}] -1ns`},
		{[]string{"X-RateLimit-Remaining", "7", "X-RateLimit-Reset", fmt.Sprint(now.UnixMilli() + 250)}, `[{ -1 -1ns 7 250ms}] -1ns`},
		{[]string{"X-RateLimit-Limit-Requests", "60", "X-RateLimit-Remaining-Requests", "59", "X-RateLimit-Reset-Requests", "1m0.5s"}, `[{ 60 -1ns 59 1m0.5s}] -1ns`},
		{[]string{"X-RateLimit-Remaining", "-1", "X-RateLimit-Policy", "degraded"}, `[] -1ns`},
		{[]string{"Retry-After", "1e300"}, `[] -1ns`},
		{[]string{"Retry-After", "99999999"}, `[] 24h0m0s`},
		{[]string{"Retry-After", "-5"}, `[] -1ns`},
		{[]string{"Retry-After", "NaN"}, `[] -1ns`},
		{[]string{"Retry-After", now.Add(90 * time.Second).Format(http.TimeFormat)}, `[] 1m30s`},
		{[]string{"RateLimit", `"a;r=73`}, `[] -1ns`},
		{[]string{"RateLimit", `"a";r=-3;t=NaN`}, `[{a -1 -1ns -1 -1ns}] -1ns`},
	} {
		h := http.Header{}
		for i := 0; i < len(c.headers); i += 2 {
			h.Add(c.headers[i], c.headers[i+1])
		}
		rs := readHeaders(h, now)
		if got := fmt.Sprint(rs.policies, rs.retry); got != c.want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.headers, got, c.want)
		}
	}
}

func FuzzReadHeaders(f *testing.F) {
	f.Add(`"a";q=100;w=60`, `"a";r=73;t=17`, "7", "12")
	f.Add(`"a";pk=:aGk=:, b;c`, "limit=1, remaining=2", "1e400", "1700000000000")
	f.Fuzz(func(t *testing.T, policies, limit, retry, reset string) {
		rs := readHeaders(http.Header{
			"Ratelimit-Policy": {policies, policies}, "Ratelimit": {limit}, "Retry-After": {retry},
			"X-Ratelimit-Remaining": {retry}, "X-Ratelimit-Reset": {reset},
		}, time.Unix(1e9, 0))
		if len(rs.policies) > maxItems || rs.retry > maxTime {
			t.Fatalf("%+v", rs)
		}
		now := time.Unix(1e9, 0)
		for i := range rs.policies {
			r, p := &rs.policies[i], policy{}
			if len(r.name) > maxName || r.reset > maxTime || r.window > maxTime || r.left != r.left || r.left > 1e15 {
				t.Fatalf("%+v", r)
			}
			p.read(nil, now, now, r)
			for range 3 {
				ticket := p.send(now)
				p.pending--
				p.read(&ticket, now, now, r)
				if at := p.ready(now); at.Sub(now) > maxTime || p.left != p.left {
					t.Fatalf("%+v: ready in %v", p, at.Sub(now))
				}
			}
		}
	})
}

func TestShape(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/orders/17": "/v1/orders/*", "/a/b": "/a/b", "": "", "/v2/users/3f2a-77/x": "/v2/users/*/x", "/V10/": "/V10/",
	} {
		if got := shape(path); got != want {
			t.Errorf("%q: got %q, want %q", path, got, want)
		}
	}
}

// Waiting returns how many checks wait for the next call.
func (c *Client) Waiting() int {
	c.checks.mu.Lock()
	defer c.checks.mu.Unlock()
	return len(c.checks.queue)
}

// Through sends the client's calls through rt.
func (c *Client) Through(rt http.RoundTripper) { c.http = rt }
