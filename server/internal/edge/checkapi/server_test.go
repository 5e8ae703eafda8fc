package checkapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// serve runs a handler in a real server, and returns its address.
func serve(t *testing.T, h http.Handler) (addr string) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// Of 500 concurrent requests against a bucket of 100, exactly 100 pass.
func TestBurstOverHTTP(t *testing.T) {
	h := newAPI(t, weir.Rule{ID: "burst", Limits: []weir.Limit{{Count: 1, Window: time.Hour, Burst: 100}}})
	addr := serve(t, h)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 500}}
	defer client.CloseIdleConnections()

	var wg sync.WaitGroup
	var mu sync.Mutex
	count := map[int]int{}
	start := make(chan struct{})
	for range 500 {
		wg.Go(func() {
			<-start
			resp, err := client.Post("http://"+addr+"/v1/check", "application/json", strings.NewReader(`{"key":"k"}`))
			if err != nil {
				t.Error(err)
				return
			}
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			count[resp.StatusCode]++
			if retry := resp.Header.Get("Retry-After"); err != nil || (retry != "") != (resp.StatusCode == 429) {
				t.Errorf("%d with Retry-After %q, %v", resp.StatusCode, retry, err)
			}
		})
	}
	close(start)
	wg.Wait()
	if count[200] != 100 || count[429] != 400 {
		t.Errorf("%v, want 100 of 200 and 400 of 429", count)
	}
}

// exchange sends raw bytes, piece by piece, and returns the response.
func exchange(t *testing.T, addr string, send func(io.Writer)) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := make(chan struct{})
	go func() { defer close(sent); send(c) }()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	c.Close() // ends send, if it still writes
	<-sent
	return resp, string(body)
}

// pipes is a listener of in-memory connections, so that a whole server runs in virtual time.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A client that stalls in the middle of its body gets an error after the server's read timeout, and nothing is charged.
func TestSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newAPI(t, weir.Rule{ID: "r", Limits: perHour(10)})
		srv := &http.Server{Handler: h, ReadTimeout: 5 * time.Second}
		listener := make(pipes)
		go func() { _ = srv.Serve(listener) }()
		defer srv.Close()
		client, server := net.Pipe()
		defer client.Close()
		listener <- server

		start := time.Now()
		fmt.Fprintf(client, "POST /v1/check HTTP/1.1\r\nHost: weir\r\nContent-Length: 40\r\n\r\n{\"key\":\"k\"}")
		resp, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(body), jsonerror.RequestTimeout) || !resp.Close {
			t.Error(resp.Status, resp.Header, string(body), err)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("answered after %s", took)
		}
		if d := decision(t, post(h, "/v1/check", `{"key":"k","cost":0}`)); d.Remaining != 10 {
			t.Errorf("%+v", d)
		}
	})
}

// A client that hangs up in the middle of its body gets an error, if it still reads.
func TestShortBody(t *testing.T) {
	addr := serve(t, newAPI(t))
	resp, body := exchange(t, addr, func(w io.Writer) {
		fmt.Fprintf(w, "POST /v1/check HTTP/1.1\r\nHost: weir\r\nContent-Length: 40\r\n\r\n{\"key\":\"k\"}")
		if err := w.(*net.TCPConn).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "the body ended before its announced length") {
		t.Error(resp.Status, body)
	}
}

// A client that sends its body byte by byte, but in time, is served.
func TestPatientClient(t *testing.T) {
	addr := serve(t, newAPI(t, weir.Rule{ID: "r", Limits: perHour(10)}))
	resp, body := exchange(t, addr, func(w io.Writer) {
		for _, b := range []byte("POST /v1/check HTTP/1.1\r\nHost: weir\r\nContent-Length: 11\r\n\r\n{\"key\":\"k\"}") {
			if _, err := w.Write([]byte{b}); err != nil {
				t.Error(err)
			}
		}
	})
	if resp.StatusCode != 200 || !strings.Contains(body, `"remaining":9`) {
		t.Error(resp.Status, body)
	}
}

// The server doesn't wait for a body whose Content-Length is too large.
func TestAnnouncedHugeBody(t *testing.T) {
	addr := serve(t, newAPI(t))
	for path, n := range map[string]int64{"/v1/check": checkapi.MaxBody + 1, "/v1/checks": checkapi.MaxBatchBody + 1, "/v1/take": 1 << 62} {
		resp, body := exchange(t, addr, func(w io.Writer) {
			fmt.Fprintf(w, "POST %s HTTP/1.1\r\nHost: weir\r\nContent-Length: %d\r\n\r\n{", path, n)
		})
		if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close || !strings.Contains(body, jsonerror.BodyTooLarge) {
			t.Error(path, resp.Status, resp.Header, body)
		}
	}
}

// The server stops reading an endless body once it is too large.
func TestEndlessBody(t *testing.T) {
	addr := serve(t, newAPI(t))
	chunk := "1000\r\n" + strings.Repeat("[", 0x1000) + "\r\n"
	for _, path := range checkapi.Paths {
		resp, body := exchange(t, addr, func(w io.Writer) {
			fmt.Fprintf(w, "POST %s HTTP/1.1\r\nHost: weir\r\nTransfer-Encoding: chunked\r\n\r\n", path)
			for {
				if _, err := io.WriteString(w, chunk); err != nil {
					return
				}
			}
		})
		if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close || !strings.Contains(body, jsonerror.BodyTooLarge) {
			t.Error(path, resp.Status, resp.Header, body)
		}
	}
}

// A chunked body is accepted like any other.
func TestChunkedBody(t *testing.T) {
	addr := serve(t, newAPI(t, weir.Rule{ID: "r", Limits: perHour(10)}))
	resp, body := exchange(t, addr, func(w io.Writer) {
		fmt.Fprintf(w, "POST /v1/check HTTP/1.1\r\nHost: weir\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"key\r\n6\r\n\":\"k\"}\r\n0\r\n\r\n")
	})
	if resp.StatusCode != 200 || !strings.Contains(body, `"remaining":9`) {
		t.Error(resp.Status, body)
	}
}

// A response has a Content-Length, and the connection is kept.
func TestKeepAlive(t *testing.T) {
	addr := serve(t, newAPI(t, weir.Rule{ID: "r", Limits: perHour(1)}))
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	many := batchOf(strings.TrimSuffix(strings.Repeat(`{"key":"k"},`, 200), ","))
	for _, x := range []struct {
		path, body string
		status     int
	}{{"check", `{"key":"k"}`, 200}, {"check", `{"key":"k"}`, 429}, {"check", `{`, 400}, {"checks", many, 200}, {"check", `{}`, 200}} {
		fmt.Fprintf(c, "POST /v1/%s HTTP/1.1\r\nHost: weir\r\nContent-Length: %d\r\n\r\n%s", x.path, len(x.body), x.body)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != x.status || resp.ContentLength != int64(len(body)) || resp.Close {
			t.Errorf("%s: %s, length %d of %d, close %v, %v", x.path, resp.Status, resp.ContentLength, len(body), resp.Close, err)
		}
	}
}
