package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"

	"github.com/weirhq/weir/internal/loopback"
)

// nowhere returns the URL of an upstream that is down.
func nowhere(t *testing.T) string {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return "http://" + l.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", loopback.Host()+":0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// wantError checks an error response that the gateway itself wrote.
func wantError(t *testing.T, a answer, status int, code string) {
	t.Helper()
	var body struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Errorf("%s %q: %v", a.Status, a.body, err)
	}
	if a.StatusCode != status || body.Error.Code != code || body.Error.Message == "" ||
		a.Header.Get("Content-Type") != "application/json" || a.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%s %v %q, want %d %s", a.Status, a.Header, a.body, status, code)
	}
}

// byStatus returns a rule that admits one request per client, and counts only responses with the given statuses.
func byStatus(statuses ...int) weir.Rule {
	r := few("counted", "/", 1)
	r.Statuses = statuses
	return r
}

// If the upstream is down, requests don't use up the quota of rules that count by status.
func TestUpstreamDown(t *testing.T) {
	for _, rule := range []weir.Rule{byStatus(200), byStatus(401, 403)} {
		d := start(t, setup{upstream: nowhere(t), limiter: limiterOf(t, weir.Options{}, rule)})
		for range 3 {
			a := d.get(t, "/login")
			wantError(t, a, 502, "UPSTREAM_UNAVAILABLE")
			if got := a.Header.Values("X-RateLimit-Limit"); len(got) != 1 || strings.Contains(a.body, "127.") {
				t.Errorf("X-RateLimit-Limit %q, body %q", got, a.body)
			}
		}
		if a := d.do(t, d.request(t, "HEAD", "/", nil)); a.StatusCode != 502 || a.body != "" {
			t.Errorf("HEAD: %s %q", a.Status, a.body)
		}
		if a := d.do(t, d.request(t, "POST", "/", strings.NewReader("hello"))); a.StatusCode != 502 {
			t.Errorf("POST: %s", a.Status)
		}
		if !d.log.loud() {
			t.Error("nothing was logged")
		}
	}
	d := start(t, setup{upstream: nowhere(t), limiter: limiterOf(t, weir.Options{}, few("all", "/", 1))})
	if a, b := d.get(t, "/"), d.get(t, "/"); a.StatusCode != 502 || b.StatusCode != 429 {
		t.Errorf("a rule that counts every request: %s, then %s", a.Status, b.Status)
	}
}

func TestStatusesOfTheUpstreamCount(t *testing.T) {
	status := 200
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, byStatus(401, 403))})
	for _, want := range []int{200, 200, 401, 429} {
		if want != 429 {
			status = want
		}
		if a := d.get(t, "/login"); a.StatusCode != want {
			t.Errorf("%s, want %d", a.Status, want)
		}
	}
}

func TestUpstreamThatFails(t *testing.T) {
	for name, say := range map[string]string{
		"hangs up":       "",
		"talks rubbish":  "220 mail.example ESMTP\r\n",
		"sends half":     "HTTP/1.1 200 OK\r\nContent-Le",
		"switches alone": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n",
		"status 000":     "HTTP/1.1 000 No\r\nContent-Length: 0\r\n\r\n",
		"status 099":     "HTTP/1.1 099 No\r\nContent-Length: 0\r\n\r\n",
		"status 600":     "HTTP/1.1 600 No\r\nContent-Length: 0\r\n\r\n",
		"status 999":     "HTTP/1.1 999 No\r\nContent-Length: 0\r\n\r\n",
		"status -99":     "HTTP/1.1 -99 No\r\nContent-Length: 0\r\n\r\n",
		"status 1000":    "HTTP/1.1 1000 No\r\nContent-Length: 0\r\n\r\n",
		"099 after 103":  "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 099 No\r\nContent-Length: 0\r\n\r\n",
		"1xx for ever":   strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 10_000),
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = io.WriteString(conn, say)
					conn.Close()
				}
			}()
			defer func() {
				l.Close()
				<-done
			}()
			d := start(t, setup{upstream: "http://" + l.Addr().String(), limiter: limiterOf(t, weir.Options{}, byStatus(200))})
			wantError(t, d.get(t, "/"), 502, "UPSTREAM_UNAVAILABLE")
			if a := d.get(t, "/"); a.StatusCode != 429 {
				t.Errorf("a request that the upstream received but didn't answer wasn't counted: %s", a.Status)
			}
		})
	}
}

// A response that the upstream breaks off must not look complete to the client.
func TestUpstreamThatBreaksOff(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	d := start(t, setup{upstream: up.URL})
	res, err := d.client.Do(d.request(t, "GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err == nil || string(b) != "half" {
		t.Errorf("%q, %v", b, err)
	}
	if !d.log.loud() {
		t.Error("nothing was logged")
	}
}

func TestSlowUpstream(t *testing.T) {
	over := make(chan struct{})
	up := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	})
	defer close(over)
	d := start(t, setup{
		upstream: up.URL, opts: Options{ResponseTimeout: stall},
		limiter: limiterOf(t, weir.Options{}, byStatus(200)),
	})
	wantError(t, d.get(t, "/"), 504, "UPSTREAM_TIMEOUT")
	if a := d.get(t, "/"); a.StatusCode != 429 {
		t.Errorf("a request that the upstream received but didn't answer wasn't counted: %s", a.Status)
	}
	if len(up.requests()) != 1 || !d.log.loud() {
		t.Errorf("%d requests upstream, log %s", len(up.requests()), d.log)
	}
}

// An upstream that accepts connections but never finishes the TLS handshake gets 504.
func TestSlowHandshake(t *testing.T) {
	l := listen(t)
	defer l.Close()
	d := start(t, setup{upstream: "https://" + l.Addr().String(), opts: Options{DialTimeout: 50 * time.Millisecond}})
	wantError(t, d.get(t, "/"), 504, "UPSTREAM_TIMEOUT")
}

// Logs contain no keys, tokens or cookies of clients.
func TestLogsHoldNoSecrets(t *testing.T) {
	d := start(t, setup{upstream: nowhere(t)})
	req := d.request(t, "GET", "/orders?api_key=hunter2&token=hunter2", nil)
	req.Header.Set("X-API-Key", "hunter2")
	req.Header.Set("Authorization", "Bearer hunter2")
	req.Header.Set("Cookie", "session=hunter2")
	wantError(t, d.do(t, req), 502, "UPSTREAM_UNAVAILABLE")
	if text := d.log.String(); strings.Contains(text, "hunter2") || !strings.Contains(text, "refused") || !strings.Contains(text, "status=502") {
		t.Errorf("logged: %s", text)
	}
}

// If a client hangs up, its request to the upstream is canceled, and nothing is logged.
func TestClientHangsUp(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, late := range []bool{false, true} { // before the response, or in the middle of it
			begun, ended := make(chan struct{}), make(chan struct{})
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
				if late {
					io.WriteString(w, "half")
					http.NewResponseController(w).Flush()
				}
				close(begun)
				<-r.Context().Done()
				close(ended)
			})
			handled := make(chan struct{}, 1)
			d := start(t, setup{upstream: up.URL, tls: h2, handled: handled})
			ctx, hangUp := context.WithCancel(t.Context())
			req := d.request(t, "GET", "/", nil).WithContext(ctx)
			got := make(chan error, 1)
			go func() {
				res, err := d.client.Do(req)
				if err == nil {
					_, err = io.ReadAll(res.Body)
					res.Body.Close()
				}
				got <- err
			}()
			await(t, begun, "the request")
			hangUp()
			await(t, ended, "the end of the upstream's request")
			await(t, handled, "the end of the gateway's")
			if err := <-got; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if d.log.loud() {
				t.Errorf("HTTP/2 %t, late %t: logged: %s", h2, late, d.log)
			}
		}
	}
}

// A client that hangs up before the response has still used one attempt.
func TestHangUpsCount(t *testing.T) {
	begun := make(chan struct{}, 1)
	up := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
	})
	handled := make(chan struct{}, 2)
	d := start(t, setup{upstream: up.URL, handled: handled, limiter: limiterOf(t, weir.Options{}, byStatus(401, 403))})
	ctx, hangUp := context.WithCancel(t.Context())
	req := d.request(t, "POST", "/login", nil).WithContext(ctx)
	got := make(chan error, 1)
	go func() {
		res, err := d.client.Do(req)
		if err == nil {
			res.Body.Close()
		}
		got <- err
	}()
	await(t, begun, "the request")
	hangUp()
	await(t, handled, "the end of the gateway's request")
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if a := d.get(t, "/login"); a.StatusCode != 429 {
		t.Error(a.Status)
	}
}

// A client that hangs up in the middle of an upload isn't logged as a failure of the upstream.
func TestClientHangsUpWhileUploading(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan error, 1)
	up := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 5))
		close(begun)
		_, err := io.Copy(io.Discard, r.Body)
		ended <- err
	})
	handled := make(chan struct{}, 1)
	d := start(t, setup{upstream: up.URL, handled: handled})
	conn := d.dial(t)
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhello")
	await(t, begun, "the request")
	conn.Close()
	if err := await(t, ended, "the end of the upstream's request"); err == nil {
		t.Error("the upstream took half a body for a whole one")
	}
	await(t, handled, "the end of the gateway's")
	if d.log.loud() {
		t.Error(d.log)
	}
}

// A malformed request body gets 400, because it is the client's fault.
func TestBrokenBody(t *testing.T) {
	up := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	d := start(t, setup{upstream: up.URL})
	a := d.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nrubbish\r\n")
	wantError(t, a, 400, "BAD_REQUEST")
	if !a.Close || d.log.loud() {
		t.Errorf("connection kept: %t, log %s", !a.Close, d.log)
	}
}

// A login whose body breaks off, stalls or ends early counts as an attempt, because the upstream has seen its headers.
func TestBrokenBodiesCount(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rest   string
		status int
	}{
		"an invalid chunk":  {"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nrubbish\r\n", 400},
		"a body that stops": {"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 408},
		"too short":         {"Content-Length: 10\r\n\r\nhello", 408},
	} {
		up := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		rule := byStatus(401, 403)
		rule.Limits[0].Count = 3
		d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, rule), opts: Options{StallTimeout: stall}})
		for range 3 {
			if a := d.raw(t, "POST /login HTTP/1.1\r\nHost: x\r\n"+c.rest); a.StatusCode != c.status {
				t.Errorf("%s: %s, want %d", name, a.Status, c.status)
			}
		}
		if a := d.get(t, "/login"); a.StatusCode != 429 {
			t.Errorf("%s: the fourth guess got %s", name, a.Status)
		}
		if n := len(up.requests()); n > 3 {
			t.Errorf("%s: the upstream saw %d guesses", name, n)
		}
	}
}

// If no connection to the upstream was made, the attempt is given back. The upstream is down, or has a bad certificate.
func TestUnsentRequestsAreGivenBack(t *testing.T) {
	stranger := httptest.NewTLSServer(nil)
	t.Cleanup(stranger.Close)
	stranger.Config.ErrorLog = log.New(io.Discard, "", 0)
	for _, upstream := range []string{nowhere(t), stranger.URL} {
		d := start(t, setup{upstream: upstream, limiter: limiterOf(t, weir.Options{}, byStatus(401, 403))})
		for range 3 {
			wantError(t, d.do(t, d.request(t, "POST", "/login", strings.NewReader("hello"))), 502, "UPSTREAM_UNAVAILABLE")
		}
	}
}
