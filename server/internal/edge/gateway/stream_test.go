package gateway

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirhq/weir"
)

// The client receives each server-sent event before the upstream sends the next.
func TestServerSentEvents(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		seen := make(chan struct{})
		up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 5 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				http.NewResponseController(w).Flush()
				await(t, seen, "the event's arrival")
			}
		})
		d := start(t, setup{upstream: up.URL, tls: h2})
		res, err := d.client.Do(d.request(t, "GET", "/events", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if (res.ProtoMajor == 2) != h2 || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("X-RateLimit-Limit") == "" {
			t.Fatalf("HTTP/%d %v", res.ProtoMajor, res.Header)
		}
		lines := bufio.NewScanner(res.Body)
		for i := range 5 {
			if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) || !lines.Scan() {
				t.Fatalf("event %d: %q, %v", i, lines.Text(), lines.Err())
			}
			seen <- struct{}{}
		}
		if lines.Scan() || lines.Err() != nil {
			t.Errorf("after the last event: %q, %v", lines.Text(), lines.Err())
		}
	}
}

// The client receives the headers of a response before its body.
func TestAnswerHeadComesAtOnce(t *testing.T) {
	gotHead := make(chan struct{})
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "4")
		http.NewResponseController(w).Flush()
		await(t, gotHead, "the arrival of the head")
		io.WriteString(w, "body")
	})
	d := start(t, setup{upstream: up.URL})
	res, err := d.client.Do(d.request(t, "GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	close(gotHead)
	if a := read(t, res); a.body != "body" {
		t.Error(a.body)
	}
}

// The upstream receives each part of an upload before the client sends the next.
func TestUploadStreams(t *testing.T) {
	arrived := make(chan string)
	up := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 5)
		for {
			if _, err := io.ReadFull(r.Body, buf); err != nil {
				return
			}
			arrived <- string(buf)
		}
	})
	d := start(t, setup{upstream: up.URL})
	pr, pw := io.Pipe()
	done := make(chan int, 1)
	req := d.request(t, "POST", "/", pr)
	go func() {
		defer close(done)
		res, err := d.client.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		res.Body.Close()
		done <- res.StatusCode
	}()
	for i := range 5 {
		part := fmt.Sprintf("part%d", i)
		if _, err := io.WriteString(pw, part); err != nil {
			t.Fatal(err)
		}
		if got := await(t, arrived, "the part's arrival"); got != part {
			t.Errorf("%q arrived, want %q", got, part)
		}
	}
	pw.Close()
	if status := await(t, done, "the answer"); status != 200 {
		t.Error(status)
	}
}

// echo starts an upstream that responds with what it reads, while it is still reading.
func echo(t *testing.T) *upstream {
	t.Helper()
	return startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		control.Flush()
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Body.Read(buf)
			_, _ = w.Write(buf[:n])
			control.Flush()
			if err != nil {
				if err != io.EOF {
					t.Error(err)
				}
				return
			}
		}
	})
}

// A request and its response may stream at the same time, each waiting for the other.
func TestConversation(t *testing.T) {
	up := echo(t)
	for _, h2 := range []bool{false, true} {
		d := start(t, setup{upstream: up.URL, tls: h2})
		pr, pw := io.Pipe()
		res, err := d.client.Do(d.request(t, "POST", "/", pr))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.Close == h2 { // over HTTP/1, the next request's start couldn't be found reliably
			t.Errorf("HTTP/%d, connection kept: %t", res.ProtoMajor, !res.Close)
		}
		lines := bufio.NewScanner(res.Body)
		for _, word := range []string{"hello", "and", "goodbye"} {
			fmt.Fprintln(pw, word)
			if !lines.Scan() || lines.Text() != word {
				t.Fatalf("%q, %v", lines.Text(), lines.Err())
			}
		}
		pw.Close()
		if lines.Scan() || lines.Err() != nil {
			t.Errorf("%q, %v", lines.Text(), lines.Err())
		}
	}
}

// trailing is a body that sets its trailer when it ends.
type trailing struct {
	io.Reader
	set func()
}

func (b *trailing) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		b.set()
	}
	return n, err
}

func TestTrailers(t *testing.T) {
	got := make(chan http.Header, 1)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		got <- r.Trailer
		w.Header().Set("Trailer", "X-Sum, X-RateLimit-Limit")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "42")
		w.Header().Set("X-RateLimit-Limit", "7")
		w.Header().Set(http.TrailerPrefix+"X-Late", "43")
		w.Header().Set(http.TrailerPrefix+"RateLimit", "8")
	})
	for _, h2 := range []bool{false, true} {
		d := start(t, setup{upstream: up.URL, tls: h2})
		body := &trailing{Reader: strings.NewReader("hello")}
		req := d.request(t, "POST", "/", body)
		req.Trailer = http.Header{"X-Checksum": nil, "X-Forwarded-For": nil}
		body.set = func() {
			req.Trailer.Set("X-Checksum", "abc")
			req.Trailer.Set("X-Forwarded-For", "6.6.6.6")
		}
		a := d.do(t, req)
		if h := await(t, got, "the request"); h.Get("X-Checksum") != "abc" || len(h["X-Forwarded-For"]) != 0 {
			t.Errorf("HTTP/2 %t: the upstream got the trailer %v", h2, h)
		}
		if a.body != "body" || a.Trailer.Get("X-Sum") != "42" || a.Trailer.Get("X-Late") != "43" {
			t.Errorf("HTTP/2 %t: %q with trailer %v", h2, a.body, a.Trailer)
		}
		if a.Trailer.Get("X-RateLimit-Limit") != "" || a.Trailer.Get("RateLimit") != "" || len(a.Header.Values("X-RateLimit-Limit")) != 1 {
			t.Errorf("HTTP/2 %t: two limits: header %v, trailer %v", h2, a.Header, a.Trailer)
		}
	}
}

// The upstream decides whether it wants a body: the gateway forwards Expect: 100-continue.
func TestExpectContinue(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/unwanted" {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		_, _ = io.Copy(w, r.Body)
	})
	d := start(t, setup{upstream: up.URL})
	head := "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"

	conn := d.dial(t)
	fmt.Fprintf(conn, head, "/wanted")
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if line, err := in.ReadString('\n'); line != "\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	io.WriteString(conn, "hello")
	res, err := http.ReadResponse(in, nil)
	for err == nil && res.StatusCode == http.StatusContinue { // the upstream may send one, too
		res, err = http.ReadResponse(in, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if a := read(t, res); a.StatusCode != 200 || a.body != "hello" || a.Header.Get("X-RateLimit-Limit") == "" {
		t.Errorf("%s %q %v", a.Status, a.body, a.Header)
	}
	if a := d.raw(t, fmt.Sprintf(head, "/unwanted")); a.StatusCode != 413 {
		t.Error(a.Status)
	}
}

// The gateway leaves Content-Encoding and Accept-Encoding to the client and the upstream.
func TestEncodingIsLeftAlone(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		io.WriteString(w, "not really")
	})
	d := start(t, setup{upstream: up.URL})
	if a := d.get(t, "/"); a.body != "not really" || a.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("%q %v", a.body, a.Header)
	}
	if got, ok := up.last(t).Header["Accept-Encoding"]; ok {
		t.Errorf("the upstream was asked for %q", got)
	}
}

func TestHTTP2Client(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RequestURI) })
	d := start(t, setup{upstream: up.URL, tls: true, limiter: limiterOf(t, weir.Options{}, few("login", "/login", 1))})
	for i, want := range []int{200, 429} {
		a := d.get(t, "/a/..//login;x?q=%2F")
		if a.ProtoMajor != 2 || a.StatusCode != want || len(a.Header.Values("X-RateLimit-Limit")) != 1 {
			t.Errorf("%d: HTTP/%d %s %v", i, a.ProtoMajor, a.Status, a.Header)
		}
		if want == 200 && a.body != "/a/..//login;x?q=%2F" {
			t.Errorf("forwarded as %s", a.body)
		}
	}
}

// The upstream's certificate is from a private authority, and the upstream uses HTTP/2, over which Go spells paths
// differently.
func TestHTTPSUpstream(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%d %s", r.ProtoMajor, r.RequestURI)
	}))
	up.EnableHTTP2 = true
	up.Config.ErrorLog = log.New(io.Discard, "", 0)
	up.StartTLS()
	t.Cleanup(up.Close)
	roots := x509.NewCertPool()
	roots.AddCert(up.Certificate())
	d := start(t, setup{upstream: up.URL, opts: Options{TLS: &tls.Config{RootCAs: roots}}})
	for _, path := range []string{"//a/%2e/;x?y", "/a|b", "//a%7Cb"} {
		if a := d.rawPath(t, path); a.body != "2 "+path {
			t.Errorf("%s: %s %q", path, a.Status, a.body)
		}
	}
	stranger := start(t, setup{upstream: up.URL})
	if a := stranger.get(t, "/"); a.StatusCode != 502 || !strings.Contains(a.body, "UPSTREAM_UNAVAILABLE") {
		t.Errorf("with an unknown certificate: %s %q", a.Status, a.body)
	}
}
