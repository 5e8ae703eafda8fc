package gateway

import (
	"bufio"
	"context"
	"errors"
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
	"github.com/weirhq/weir/httplimit"
)

// stall is a short timeout, but long enough that a busy machine doesn't seem to stall.
const stall = 500 * time.Millisecond

// A client that stalls in the middle of its body doesn't hold the upstream forever.
func TestStalledUpload(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		ended := make(chan error, 1)
		up := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			ended <- err
		})
		d := start(t, setup{upstream: up.URL, tls: h2, opts: Options{StallTimeout: stall}})
		var a answer
		if h2 {
			pr, pw := io.Pipe()
			res, err := d.client.Do(d.request(t, "POST", "/", pr))
			if err != nil {
				t.Fatal(err)
			}
			a = read(t, res)
			pw.Close()
		} else {
			a = d.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhel")
		}
		wantError(t, a, 408, "REQUEST_TIMEOUT")
		if err := await(t, ended, "the end of the upstream's request"); err == nil {
			t.Error("the upstream took half a body for a whole one")
		}
		if d.log.loud() {
			t.Error(d.log)
		}
	}
}

// Nor does a client that stops reading its response.
func TestStalledDownload(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		ended := make(chan error, 1)
		up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			_, err := io.Copy(w, &pattern{})
			ended <- err
		})
		d := start(t, setup{upstream: up.URL, tls: h2, opts: Options{StallTimeout: stall}})
		if h2 {
			res, err := d.client.Do(d.request(t, "GET", "/", nil))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
		} else {
			io.WriteString(d.dial(t), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		}
		if err := await(t, ended, "the end of the upstream's request"); err == nil {
			t.Error("an endless answer ended")
		}
		if d.log.loud() {
			t.Error(d.log)
		}
	}
}

// If the upstream pauses, the client isn't taken to be stalled, however long the pause.
func TestPausesAreNotStalls(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			for i := range 3 {
				fmt.Fprintln(w, i)
				http.NewResponseController(w).Flush()
				select {
				case <-time.After(2 * stall): // the pause under test
				case <-r.Context().Done():
					t.Error("cut off")
				}
			}
		})
		d := start(t, setup{upstream: up.URL, tls: h2, opts: Options{StallTimeout: stall}})
		a := d.do(t, d.request(t, "POST", "/", strings.NewReader("hello")))
		if a.body != "0\n1\n2\n" {
			t.Errorf("HTTP/2 %t: %q", h2, a.body)
		}
	}
}

// If the upstream responds without reading the body, the client gets the response, and the gateway doesn't wait for the
// rest of the body.
func TestAnswerBeforeTheBody(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusUnauthorized)
	})
	d := start(t, setup{upstream: up.URL})
	const chunked, counted = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "Content-Length: 10\r\n\r\nhello"
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	for i, c := range []struct{ body, late string }{
		{chunked, ""}, {chunked, "0\r\n\r\n" + smuggled}, {counted, ""}, {counted, "world" + smuggled},
	} {
		conn := d.dial(t)
		io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+c.body)
		in := bufio.NewReader(conn)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if a := read(t, res); a.StatusCode != 401 || !a.Close {
			t.Errorf("%s, connection kept: %t", a.Status, !a.Close)
		}
		// Bytes that arrive late aren't taken for another request, and the gateway doesn't wait for bytes that never
		// arrive.
		_, _ = io.WriteString(conn, c.late)
		rest, err := io.ReadAll(in)
		var network net.Error
		if len(rest) != 0 || errors.As(err, &network) && network.Timeout() {
			t.Errorf("after the answer: %q, %v", rest, err)
		}
		if n := len(up.requests()); n != i+1 {
			t.Errorf("the upstream saw %d requests", n)
		}
	}
}

// A refused client that announces a body and doesn't send it gets its response, and the connection is closed.
func TestRefusedStall(t *testing.T) {
	for name, refusal := range map[string]httplimit.Template{"short": {}, "long": {Body: strings.Repeat("no ", 10_000)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, nil)
			d := start(t, setup{
				upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("api", "/", 1)),
				limit: httplimit.Options{Answers: httplimit.Answers{Refusal: refusal}},
			})
			d.get(t, "/")
			conn := d.dial(t)
			io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhel")
			in := bufio.NewReader(conn)
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if a := read(t, res); a.StatusCode != 429 {
				t.Error(a.Status)
			}
			if rest, err := io.ReadAll(in); err != nil || len(rest) != 0 {
				t.Errorf("after the answer: %q, %v", rest, err)
			}
		})
	}
}

// Clients that send their headers a byte at a time, or a megabyte of them, are disconnected, without an effect on
// others.
func TestSlowAndHugeHeaders(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL})
	if s := d.Config; s.ReadHeaderTimeout != 5*time.Second || s.IdleTimeout != 120*time.Second || s.MaxHeaderBytes != 16<<10 || s.WriteTimeout != 0 || s.ReadTimeout != 0 {
		t.Errorf("%+v", s)
	}
	var wg sync.WaitGroup
	for i := range 100 {
		conn := d.dial(t)
		head := "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: a"
		if _, err := io.WriteString(conn, head[:i%len(head)]); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			got, err := io.ReadAll(conn) // until the server closes the connection
			if err != nil || strings.HasPrefix(string(got), "HTTP/1.1 200") {
				t.Errorf("a slow client got %q, %v", got, err)
			}
		})
	}
	for range 5 {
		conn := d.dial(t)
		wg.Go(func() {
			io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-Huge: ")
			_, _ = io.CopyN(conn, letters{}, 1<<20) // the server may close the connection first
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
	for range 20 {
		if a := d.get(t, "/"); a.StatusCode != 200 {
			t.Errorf("meanwhile: %s", a.Status)
		}
	}
	wg.Wait()
	if n := len(up.requests()); n != 20 {
		t.Errorf("the upstream saw %d requests", n)
	}
}

type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// A client that sends a byte just before each timeout doesn't hold the upstream forever, either.
func TestDrippedUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up, down := net.Pipe() // the client's end of the body, and the gateway's end
		defer down.Close()
		r := httptest.NewRequest("POST", "/", down)
		ctx, cancel := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		begin := time.Now()
		b := newRequestBody(r, &client{ResponseWriter: w, control: http.NewResponseController(w), patience: time.Minute}, cancel)
		context.AfterFunc(ctx, func() { up.Close() }) // as the server's read deadline would do
		var sent int
		var wg sync.WaitGroup
		wg.Go(func() {
			defer up.Close()
			for range 1000 {
				if _, err := up.Write([]byte("x")); err != nil {
					return
				}
				sent++
				time.Sleep(10 * time.Second)
			}
		})
		_, err := io.Copy(io.Discard, b)
		stalled, _ := b.fault()
		if took := time.Since(begin); err != nil || !stalled || took.Round(time.Second) != time.Minute {
			t.Errorf("%d bytes in %s: stalled %t, %v", sent, took, stalled, err)
		}
		wg.Wait()
	})
}

// An upload that makes progress may take any time, and so may an upstream that reads it slowly.
func TestSlowUploadThatProgresses(t *testing.T) {
	for name, c := range map[string]struct {
		bytes     int           // in each part
		send, use time.Duration // the client's pause after each part, and the upstream's
		parts     int
	}{
		"a slow client":   {20_000, 30 * time.Second, 0, 1000},
		"a slow upstream": {1, 0, time.Hour, 1000},
		"pauses":          {30_000, 59 * time.Second, 0, 100},
	} {
		synctest.Test(t, func(t *testing.T) {
			up, down := net.Pipe()
			defer down.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := httptest.NewRecorder()
			b := newRequestBody(httptest.NewRequest("POST", "/", down), &client{ResponseWriter: w, control: http.NewResponseController(w), patience: time.Minute}, cancel)
			go func() {
				defer up.Close()
				for range c.parts {
					time.Sleep(c.send)
					if _, err := up.Write(make([]byte, c.bytes)); err != nil {
						t.Error(name, err)
						return
					}
				}
			}()
			buf, total := make([]byte, 64<<10), 0
			for {
				n, err := b.Read(buf)
				total += n
				if err == io.EOF {
					break
				}
				if err != nil || ctx.Err() != nil {
					t.Fatalf("%s: after %d bytes: %v", name, total, err)
				}
				time.Sleep(c.use)
			}
			if total != c.parts*c.bytes {
				t.Errorf("%s: %d bytes arrived", name, total)
			}
		})
	}
}

// A body that drips on a real connection ends the upstream's request.
func TestDripEndsTheUpstreamsRequest(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	up := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		ended <- err
	})
	d := start(t, setup{upstream: up.URL, opts: Options{StallTimeout: stall}})
	conn := d.dial(t)
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := conn.Write([]byte("x")); err != nil {
				return
			}
			time.Sleep(stall / 10) // the drip under test
		}
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, read(t, res), 408, "REQUEST_TIMEOUT")
	if err := await(t, ended, "the end of the upstream's request"); err == nil {
		t.Error("the upstream took half a body for a whole one")
	}
	conn.Close()
	<-done
}
