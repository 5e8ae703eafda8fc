package gateway

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
)

// wire starts an upstream that records the bytes it receives and answers 200.
func wire(t *testing.T) (url string, got <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var all bytes.Buffer
			r, err := http.ReadRequest(bufio.NewReader(io.TeeReader(conn, &all)))
			if err == nil {
				_, err = io.Copy(io.Discard, r.Body)
			}
			if err != nil {
				all.WriteString(err.Error())
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			conn.Close()
			c <- all.String()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return "http://" + l.Addr().String(), c
}

// chatOnly returns a rule that counts tokens of chats that carry an API key.
func chatOnly() weir.Rule {
	r := daily("tokens", 100_000)
	r.Match = weir.Match{Endpoint: "POST /v1/chat/completions", APIKeyPattern: "sk_*"}
	return r
}

// Requests that no rule meters reach the upstream byte for byte as they do without metering. Metered chats differ only
// in the option that asks for usage.
func TestUnmeteredRequestsAreUntouched(t *testing.T) {
	url, got := wire(t)
	streamed := `{"model":"m","stream":true,"messages":[]}`
	chunked := fmt.Sprintf("Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n%x\r\n%s\r\n0\r\nX-Sum: 7\r\n\r\n", len(streamed), streamed)
	counted := fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(streamed), streamed)
	sent := func(d *door, head, body string) string {
		t.Helper()
		if a := d.raw(t, head+" HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nContent-Type: application/json\r\nConnection: close\r\n"+body); a.StatusCode != 200 {
			t.Errorf("%s: %s %s", head, a.Status, a.body)
		}
		text := await(t, got, "the request")
		from, to := strings.Index(text, "X-Forwarded-Host"), strings.Index(text, "\r\n\r\n")
		if from < 0 || to < 0 {
			t.Fatalf("%q", text)
		}
		return text
	}
	bare := start(t, setup{upstream: url})
	metering := start(t, setup{upstream: url, limiter: limiterOf(t, weir.Options{}, plenty, chatOnly())})
	for _, head := range []string{
		"POST /v1/orders", "PUT /v1/chat/completions", "POST /v1/chat/completions", // the path that is metered, but without a key
		"POST /v1/embeddings",
	} {
		for _, body := range []string{counted, chunked} {
			want := sent(bare, head, body)
			if text := sent(metering, head, body); text != want {
				t.Errorf("%s\n%q\nand without rules that count amounts\n%q", head, text, want)
			}
		}
	}
	for name, body := range map[string]string{"counted": counted, "chunked": chunked} {
		want := sent(bare, "POST /v1/chat/completions", "X-Api-Key: sk_1\r\n"+body)
		edited := strings.Replace(streamed, "{", `{"stream_options":{"include_usage":true},`, 1)
		want = strings.Replace(want, "Accept-Encoding: gzip", "Accept-Encoding: identity", 1)
		want = strings.Replace(want, fmt.Sprintf("Content-Length: %d\r\n", len(streamed)), fmt.Sprintf("Content-Length: %d\r\n", len(edited)), 1)
		want = strings.Replace(want, fmt.Sprintf("%x\r\n%s", len(streamed), streamed), fmt.Sprintf("%x\r\n%s", len(edited), edited), 1)
		want = strings.Replace(want, "\r\n\r\n"+streamed, "\r\n\r\n"+edited, 1)
		if text := sent(metering, "POST /v1/chat/completions", "X-Api-Key: sk_1\r\n"+body); text != want {
			t.Errorf("%s: a chat arrives as\n%q\nwant\n%q", name, text, want)
		}
	}
	sealed := sent(metering, "POST /v1/chat/completions", "X-Api-Key: sk_1\r\nContent-Digest: sha-256=:x:\r\n"+counted)
	if !strings.HasSuffix(sealed, `"include_usage":true},`+streamed[1:]) || strings.Contains(sealed, "Content-Digest") {
		t.Errorf("a body with a digest arrives as %q", sealed)
	}
}

// metering starts a gateway with an upstream, and, unless s has a limiter, a rule that counts tokens.
func metering(t *testing.T, h http.HandlerFunc, s setup) (*door, *upstream) {
	t.Helper()
	up := startUpstream(t, h)
	s.upstream = up.URL
	if s.limiter == nil {
		s.limiter = limiterOf(t, weir.Options{}, daily("tokens", 1_000_000))
	}
	d := start(t, s)
	t.Cleanup(func() {
		d.Close()
		if n := d.gateway.room.held(); n != 0 {
			t.Errorf("%d bytes of heads are still held", n)
		}
	})
	return d, up
}

// repeat responds with the body of the request.
func repeat(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = w.Write(body)
}

// Bodies of any length arrive complete, with or without Content-Length, over HTTP/1 and HTTP/2, and connections are
// kept.
func TestMeteredBodiesAreWhole(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		d, _ := metering(t, repeat, setup{tls: h2})
		for _, size := range []int{0, 1, 4 << 10, 4<<10 + 1, maxHead - 1, maxHead, maxHead + 1, maxHead + 2, 3 * maxHead} {
			text := make([]byte, size)
			_, _ = io.ReadFull(&pattern{}, text)
			if text = []byte(hex.EncodeToString(text)[:size]); size > 1 {
				text[0], text[size-1] = '"', '"'
			} else {
				copy(text, "7")
			}
			for _, counted := range []bool{true, false} {
				var body io.Reader = bytes.NewReader(text)
				if !counted {
					body = io.MultiReader(body) // hides the length
				}
				req := d.request(t, "POST", "/v1/messages", body)
				req.Header.Set("Content-Type", "application/json")
				a := d.do(t, req)
				if a.StatusCode != 200 || a.body != string(text) {
					t.Errorf("HTTP/%d, %d bytes, counted %t: %s, %d bytes came back", a.ProtoMajor, size, counted, a.Status, len(a.body))
				}
			}
		}
		for range 100 {
			if a := d.ask(t, "/v1/chat/completions", chat); a.body != chat || a.Close {
				t.Fatalf("%s %q, connection kept: %t", a.Status, a.body, !a.Close)
			}
		}
	}
}

// If the gateway reads a body ahead, it answers Expect: 100-continue itself, once. The upstream's own 100 isn't
// forwarded.
func TestMeteredExpectContinue(t *testing.T) {
	d, up := metering(t, repeat, setup{})
	conn := d.dial(t)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(chat))
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if line, err := in.ReadString('\n'); line != "\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	io.WriteString(conn, chat)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a := read(t, res); a.StatusCode != 200 || a.body != chat || up.last(t).Header["Expect"] != nil {
		t.Errorf("%s %q; the upstream got %v", a.Status, a.body, up.last(t).Header)
	}
}

// A client that stalls while its body is read ahead gets 408. The request isn't counted, and the upstream doesn't see
// it.
func TestMeteredStall(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := limiterOf(t, weir.Options{}, requests, daily("tokens", 1000))
		d, up := metering(t, nil, setup{tls: h2, limiter: l, opts: Options{StallTimeout: stall}})
		var a answer
		begun := time.Now()
		if h2 {
			pr, pw := io.Pipe()
			req := d.request(t, "POST", "/", pr)
			req.Header.Set("Content-Type", "application/json")
			res, err := d.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			a = read(t, res)
			pw.Close()
		} else {
			a = d.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\nhel")
			if !a.Close {
				t.Error("the connection is kept")
			}
		}
		wantError(t, a, 408, "REQUEST_TIMEOUT")
		if took := time.Since(begun); took < stall || took > drainTimeout {
			t.Errorf("HTTP/2 %t: after %s", h2, took)
		}
		if got := left(t, l); len(up.requests()) != 0 || got["requests"] != "1000" {
			t.Errorf("HTTP/2 %t: the upstream saw %d requests, left are %v", h2, len(up.requests()), got)
		}
		if d.log.loud() {
			t.Error(d.log)
		}
	}
}

// A body that arrives slowly but steadily may take longer than the stall timeout, and longer than the gateway would
// read the rest of a refused one.
func TestMeteredSlowBody(t *testing.T) {
	t.Parallel()
	d, _ := metering(t, repeat, setup{opts: Options{StallTimeout: 2 * stall}}) // 4 times the pause between parts, because the machine may be busy
	conn := d.dial(t)
	part := strings.Repeat(" ", minBodyRate)
	const parts = 10
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", parts*len(part))
	for range parts {
		time.Sleep(stall / 2) // slow on purpose
		io.WriteString(conn, part)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a := read(t, res); a.StatusCode != 200 || len(a.body) != parts*len(part) {
		t.Errorf("%s, %d bytes", a.Status, len(a.body))
	}
}

// A client whose body was read ahead, and whose request waits in a queue for longer than the stall timeout, isn't taken
// for a stalled client.
func TestMeteredBodyInAQueue(t *testing.T) {
	t.Parallel()
	queue := weir.Rule{ID: "queue", By: []string{"ip"}, Algorithm: weir.LeakyQueue, MaxDelay: time.Minute, Limits: []weir.Limit{{Count: 2, Window: 4 * stall}}}
	for _, h2 := range []bool{false, true} {
		l := limiterOf(t, weir.Options{}, queue, daily("tokens", 1_000_000))
		d, _ := metering(t, repeat, setup{tls: h2, limiter: l, opts: Options{StallTimeout: stall}})
		body := chat[:len(chat)-1] + strings.Repeat(" ", 100_000) + "}"
		for range 2 { // the second request waits twice as long as the stall timeout
			if a := d.ask(t, "/v1/chat/completions", body); a.StatusCode != 200 || a.body != body {
				t.Errorf("HTTP/2 %t: %s, %d bytes", h2, a.Status, len(a.body))
			}
		}
	}
}

// Once the response has begun, the client may pause for any time in a body whose beginning was read ahead.
func TestMeteredConversation(t *testing.T) {
	t.Parallel()
	up := echo(t)
	for _, h2 := range []bool{false, true} {
		d := start(t, setup{upstream: up.URL, tls: h2, limiter: limiterOf(t, weir.Options{}, daily("tokens", 1000)), opts: Options{StallTimeout: stall}})
		pr, pw := io.Pipe()
		first := `"` + strings.Repeat(" ", maxHead+1)
		done := make(chan error, 1)
		go func() {
			_, err := io.WriteString(pw, first)
			done <- err
		}()
		req := d.request(t, "POST", "/", pr)
		req.Header.Set("Content-Type", "application/json")
		res, err := d.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, res.Body, int64(len(first)-1)); err != nil { // without the last byte, which the gateway holds back
			t.Fatalf("HTTP/2 %t: %v", h2, err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(2 * stall) // the pause under test
		go func() {
			_, _ = io.WriteString(pw, `more"`)
			pw.Close()
		}()
		if a := read(t, res); a.body != ` more"` {
			t.Errorf("HTTP/2 %t: %q came back", h2, a.body)
		}
	}
}

// A malformed body gets the same response whether or not it is read ahead.
func TestMeteredBodyThatBreaks(t *testing.T) {
	for name, text := range map[string]string{
		"a bad chunk":        "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\nrubbish\r\n",
		"a bad chunk, later": "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n", maxHead+10, strings.Repeat(" ", maxHead+10)) + "rubbish\r\n",
	} {
		ended := make(chan error, 1)
		d, _ := metering(t, func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			ended <- err
		}, setup{})
		wantError(t, d.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+text), 400, "BAD_REQUEST")
		if err := await(t, ended, "the end of the upstream's request"); err == nil {
			t.Errorf("%s: the upstream took half a body for a whole one", name)
		}
		if d.log.loud() {
			t.Error(d.log)
		}
	}
	// If a client hangs up in the middle of its body, the upstream doesn't get what looks like a complete request,
	// either.
	handled := make(chan struct{}, 1)
	d, _ := metering(t, func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			t.Error("half a body is whole")
		}
	}, setup{handled: handled})
	conn := d.dial(t)
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\nhel")
	conn.Close()
	await(t, handled, "the end at the gateway")
}

// A refused request whose body is longer than the gateway reads ahead gets its response without reading the rest, and
// the connection is closed.
func TestMeteredRefusal(t *testing.T) {
	t.Parallel()
	l := limiterOf(t, weir.Options{}, daily("tokens", 1000), few("api", "/", 1))
	d, up := metering(t, nil, setup{limiter: l})
	d.get(t, "/")
	conn := d.dial(t)
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", 2*maxHead, strings.Repeat(" ", maxHead+1))
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a := read(t, res); a.StatusCode != 429 {
		t.Error(a.Status)
	}
	rest, err := io.ReadAll(in)
	var network net.Error
	if len(rest) != 0 || errors.As(err, &network) && network.Timeout() {
		t.Errorf("after the answer: %q, %v", rest, err)
	}
	if n := len(up.requests()); n != 1 {
		t.Errorf("the upstream saw %d requests", n)
	}
}

// The buffer of a body that was read ahead is released once the upstream has it, however long the response takes.
func TestHeadsAreReleasedOnceSent(t *testing.T) {
	arrived, end := make(chan struct{}), make(chan struct{})
	d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		http.NewResponseController(w).Flush()
		close(arrived)
		<-end
	}, setup{})
	req := d.request(t, "POST", "/", strings.NewReader(chat))
	res, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	await(t, arrived, "the request's arrival")
	if n := d.gateway.room.held(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	close(end)
	read(t, res)
}
