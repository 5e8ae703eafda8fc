package client

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// Sizes returns how many hosts the Transport remembers, and how many policies and paths of the host that has the most.
func (t *Transport) Sizes() (hosts, quotas, places int) {
	for _, h := range t.hosts {
		quotas, places = max(quotas, len(h.quotas)), max(places, len(h.places))
	}
	return len(t.hosts), quotas, places
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
		{[]string{"RateLimit-Policy", `"a";q=100;w=60, "b b\"";q=5000;w=3600;pk=:cHJv:`, "RateLimit", `"a";r=73;t=17`}, `[{a 100 1m0s 73 17s} {b b" 5000 1h0m0s -1 -1ns}] true -1ns`},
		{[]string{"RateLimit-Policy", `"a";q=100;qu="requests";w=60, "b";q=5;qu="tokens";w=60`, "RateLimit", `"b";r=3;t=17`}, `[{a 100 1m0s -1 -1ns} {b -1 -1ns 3 17s other}] true -1ns`},
		{[]string{"RateLimit-Policy", `"b";q=5;qu="concurrent-requests"`, "X-RateLimit-Remaining", "3"}, `[{b -1 -1ns -1 -1ns other}] true -1ns`},
		{[]string{"RateLimit", `"a";r=73;t=17, "b";r=0`}, `[{a -1 -1ns 73 17s} {b -1 -1ns 0 -1ns}] false -1ns`},
		{[]string{"RateLimit", "limit=100, remaining=50, reset=5", "RateLimit-Policy", "100;w=60"}, `[{ 100 1m0s 50 5s}] false -1ns`},
		{[]string{"RateLimit-Limit", "100, 100;w=60", "RateLimit-Remaining", "9", "RateLimit-Reset", "4"}, `[{ 100 -1ns 9 4s}] false -1ns`},
		{[]string{"X-RateLimit-Limit", "60", "X-RateLimit-Remaining", "7", "X-RateLimit-Reset", fmt.Sprint(now.Unix() + 9), "X-RateLimit-Resource", "core"}, `[{core 60 -1ns 7 9s}] false -1ns`},
		{[]string{"X-RateLimit-Remaining", "7", "X-RateLimit-Reset", fmt.Sprint(now.UnixMilli() + 250)}, `[{ -1 -1ns 7 250ms}] false -1ns`},
		{[]string{"X-RateLimit-Remaining", "7", "X-RateLimit-Reset", "1700000000.5", "X-RateLimit-Reset-After", "0.5"}, `[{ -1 -1ns 7 500ms}] false -1ns`},
		{[]string{"X-RateLimit-Limit-Requests", "60", "X-RateLimit-Remaining-Requests", "59", "X-RateLimit-Reset-Requests", "1m0.5s"}, `[{ 60 -1ns 59 1m0.5s}] false -1ns`},
		{[]string{"X-RateLimit-Remaining", "-1", "X-RateLimit-Policy", "degraded"}, `[] false -1ns`},
		{[]string{"Retry-After", "1e300"}, `[] false -1ns`},
		{[]string{"Retry-After", "99999999"}, `[] false 24h0m0s`},
		{[]string{"Retry-After", "-5"}, `[] false -1ns`},
		{[]string{"Retry-After", "NaN"}, `[] false -1ns`},
		{[]string{"Retry-After", now.Add(90 * time.Second).Format(http.TimeFormat)}, `[] false 1m30s`},
		{[]string{"RateLimit", `"a;r=73`}, `[] false -1ns`},
		{[]string{"RateLimit", `"a";r=-3;t=NaN`}, `[{a -1 -1ns -1 -1ns}] false -1ns`},
	} {
		h := http.Header{}
		for i := 0; i < len(c.headers); i += 2 {
			h.Add(c.headers[i], c.headers[i+1])
		}
		rs := readHeaders(h, now)
		if got := fmt.Sprint(rs.policies, rs.complete, rs.retry); got != c.want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.headers, got, c.want)
		}
	}
}

func FuzzReadHeaders(f *testing.F) {
	f.Add(`"a";q=100;w=60`, `"a";r=73;t=17`, "7", "12")
	f.Add(`"a";pk=:aGk=:, b;c`, "limit=1, remaining=2", "1e400", "1700000000000")
	f.Fuzz(func(t *testing.T, policy, limit, retry, reset string) {
		rs := readHeaders(http.Header{
			"Ratelimit-Policy": {policy, policy}, "Ratelimit": {limit}, "Retry-After": {retry},
			"X-Ratelimit-Remaining": {retry}, "X-Ratelimit-Reset": {reset},
		}, time.Unix(1e9, 0))
		if len(rs.policies) > maxPolicies || rs.retry > maxTime {
			t.Fatalf("%+v", rs)
		}
		q := quota{at: time.Unix(1e9, 0)}
		for i := range rs.policies {
			p := &rs.policies[i]
			if len(p.name) > maxName || p.reset > maxTime || p.window > maxTime || p.left != p.left || p.left > 1e15 {
				t.Fatalf("%+v", p)
			}
			q.read(q.at.Add(time.Second), nil, p)
			ticket := q.send(q.at.Add(time.Second))
			q.answer(q.at.Add(time.Second), &ticket)
			q.read(q.at.Add(time.Second), &ticket, p)
			if at := q.ready(q.at); at.Sub(q.at) > maxTime || q.level != q.level {
				t.Fatalf("%+v: ready in %v", p, at.Sub(q.at))
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
