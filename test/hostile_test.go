package test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// dial opens a connection to a port of a node, with a deadline well after all of the node's timeouts.
func dial(t *testing.T, url string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// Slow clients and clients that send too much get a clear error on every port of a node, and don't affect other
// clients.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintln(w, n, err)
	}))
	defer upstream.Close()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules:\n  - {id: all, by: [], limit: 1000000/hour}\n")
	n := serve(t, "--rules", rules, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)
	others := func() {
		t.Helper()
		for range 5 {
			if status, body := post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "k"}`); status != 200 {
				t.Errorf("meanwhile, a check: %d %s", status, body)
			}
			if status, body := post(t, http.DefaultClient, n.Admin+"/v1/explain", `{"key": "k"}`); status != 200 {
				t.Errorf("meanwhile, an explanation: %d %s", status, body)
			}
			if status, body := post(t, http.DefaultClient, n.Gateway+"/", "hello"); status != 200 || body != "5 <nil>\n" {
				t.Errorf("meanwhile, the gateway: %d %s", status, body)
			}
		}
	}

	// These clients send half a body or half of the headers, and then nothing. The node's timeouts run while the test
	// continues.
	var slow sync.WaitGroup
	for range 20 {
		for _, url := range []string{n.HTTP + " /v1/check", n.HTTP + " /v1/checks", n.Admin + " /v1/explain"} {
			base, path, _ := strings.Cut(url, " ")
			conn := dial(t, base)
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n\r\n{\"key\":", path)
			slow.Go(func() {
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Errorf("%s with half a body: %v", path, err)
					return
				}
				defer res.Body.Close()
				if body, err := io.ReadAll(res.Body); res.StatusCode != 408 || err != nil || !strings.Contains(string(body), `"REQUEST_TIMEOUT"`) {
					t.Errorf("%s with half a body: %s %s, %v", path, res.Status, body, err)
				}
			})
		}
		for _, base := range []string{n.HTTP, n.Admin, n.Gateway} {
			conn := dial(t, base)
			fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
			slow.Go(func() {
				if got, err := io.ReadAll(conn); err != nil || strings.HasPrefix(string(got), "HTTP/1.1 200") {
					t.Errorf("half of the headers: %q, %v", got, err)
				}
			})
		}
	}
	others()

	for _, base := range []string{n.HTTP, n.Admin, n.Gateway} {
		conn := dial(t, base)
		slow.Go(func() {
			_, _ = fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Huge: %s\r\n\r\n", strings.Repeat("x", 1<<20)) // the node may close the connection before the end
		})
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("1 MB of headers: %s", res.Status)
		}
	}
	others()

	large := strings.Repeat("x", 10<<20)
	for _, url := range []string{n.HTTP + "/v1/check", n.HTTP + "/v1/checks", n.HTTP + "/v1/take", n.HTTP + "/v1/refund", n.Admin + "/v1/explain"} {
		for _, length := range []int64{int64(len(large)), -1} { // with Content-Length, and chunked
			status, body := postLarge(t, url, large, length)
			if status != http.StatusRequestEntityTooLarge || !strings.Contains(body, `"BODY_TOO_LARGE"`) {
				t.Errorf("%s with 10 MB: %d %s", url, status, body)
			}
		}
	}
	if status, body := post(t, http.DefaultClient, n.Gateway+"/", large); status != 200 || body != fmt.Sprintln(len(large), nil) {
		t.Errorf("10 MB through the gateway: %d %s", status, body) // the gateway leaves the body's size to the upstream
	}
	for _, url := range []string{n.HTTP + "/v1/check", n.Admin + "/v1/explain"} {
		if status, body := post(t, http.DefaultClient, url, `{"kye": "k"}`); status != 400 || !strings.Contains(body, `there is no field \"kye\": did you mean \"key\"?`) {
			t.Errorf("%s with an unknown field: %d %s", url, status, body)
		}
	}
	others()
	slow.Wait()
	others()
}

// postLarge sends a body without waiting for the node to read it all, and returns the response.
func postLarge(t *testing.T, url, body string, length int64) (int, string) {
	t.Helper()
	base, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	conn := dial(t, base)
	defer conn.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if length >= 0 {
			_, _ = fmt.Fprintf(conn, "POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", path, length, body)
		} else {
			_, _ = fmt.Fprintf(conn, "POST /%s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", path, len(body), body)
		}
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Errorf("%s: %v", url, err)
		return 0, ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("%s: %v", url, err)
	}
	conn.Close()
	<-sent
	return res.StatusCode, string(text)
}
