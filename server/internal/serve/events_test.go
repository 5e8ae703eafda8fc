package serve

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/server/internal/edge/guard"
	"github.com/weirhq/weir/server/internal/observe/tail"
)

// pipes is a listener of unbuffered in-memory connections, whose deadlines follow the bubble's time.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// watchedNode is a node with its admin port, in a bubble.
type watchedNode struct {
	*node
	t      *testing.T
	server *httpServer
	guard  *guard.Guard
	conns  pipes
	end    context.CancelFunc
}

func openWatched(t *testing.T, tokens guard.Tokens) *watchedNode {
	t.Helper()
	n := inMemory(t, "rules: [{id: all, limit: 1000000/day}]")
	n.registry = prometheus.NewRegistry()
	n.tail.Clients = n.top
	ctx, end := context.WithCancel(t.Context())
	w := &watchedNode{node: n, t: t, guard: guard.New(guard.Options{Tokens: tokens}), conns: make(pipes), end: end}
	w.server = newHTTP(n.admin(ctx, w.guard), bodyTimeout, n.log)
	served := make(chan error)
	go func() { served <- w.server.Serve(w.conns) }()
	t.Cleanup(func() {
		end()
		close(w.conns)
		if err := w.server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-served
	})
	return w
}

// ask sends a request, and returns the connection and the response.
func (w *watchedNode) ask(path, token string) (net.Conn, *http.Response) {
	w.t.Helper()
	here, there := net.Pipe()
	w.conns <- there
	w.t.Cleanup(func() { here.Close() })
	if _, err := fmt.Fprintf(here, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", path, token); err != nil {
		w.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(here), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return here, res
}

// A stream goes on for as long as its client reads, beyond the port's deadlines, which are for ordinary responses.
func TestAStreamOutlivesThePortsDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWatched(t, nil)
		_, res := w.ask("/v1/events", "")
		if got := res.Header.Get("Content-Type"); res.StatusCode != 200 || got != "text/event-stream" {
			t.Fatalf("%s: %s", res.Status, got)
		}
		begun, enough := time.Now(), fmt.Errorf("enough")
		pulses, decisions, seen := 0, 0, uint64(0)
		err := tail.Read(res.Body, func(event string, data []byte) error {
			switch event {
			case "pulse":
				var p tail.Pulse
				if err := json.Unmarshal(data, &p); err != nil {
					return err
				}
				seen += p.Seen
				if pulses++; pulses > 60 {
					return enough
				}
				go w.checks(t, pulses, weir.Request{APIKey: "k"})
			case "decision":
				decisions++
			}
			return nil
		})
		if err != enough || seen != 60*61/2 || decisions != int(seen) || time.Since(begun) != 60*tail.Every {
			t.Errorf("%v after %s, with %d pulses, %d decisions, %d seen", err, time.Since(begun), pulses, decisions, seen)
		}
	})
}

// A viewer that doesn't read is dropped, and until then nothing waits for it.
func TestAViewerThatDoesntReadIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWatched(t, nil)
		w.ask("/v1/events", "")
		w.checks(t, 10_000, weir.Request{APIKey: "k"})
		time.Sleep(4 * time.Second)
		if !w.tail.Watched() {
			t.Error("it was dropped although it has only been slow")
		}
		w.checks(t, 10_000, weir.Request{APIKey: "k"})
		time.Sleep(3 * time.Second)
		if w.tail.Watched() {
			t.Error("it still watches")
		}
	})
}

// A node's stop doesn't wait for viewers.
func TestStreamsEndWithTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWatched(t, nil)
		_, res := w.ask("/v1/events?outcome=refused", "")
		go func() {
			time.Sleep(10 * time.Second)
			w.end()
		}()
		last := ""
		begun := time.Now()
		err := tail.Read(res.Body, func(event string, data []byte) error {
			last = event + " " + string(data)
			return nil
		})
		if err != nil || last != `end {"text":"the node is ending"}` || time.Since(begun) != 10*time.Second || w.tail.Watched() {
			t.Errorf("%v after %s, and last %s", err, time.Since(begun), last)
		}
	})
}

// A stream ends when its token is removed. A token may use only a part of the seats.
func TestStreamsEndWithTheirToken(t *testing.T) {
	load := func(secret string) guard.Tokens {
		sum := sha256.Sum256([]byte(secret))
		file := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(file, []byte("ada read "+hex.EncodeToString(sum[:])+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		tokens, err := guard.LoadTokens("", file)
		if err != nil {
			t.Fatal(err)
		}
		return tokens
	}
	old, next := load("secret-old"), load("secret-new")
	synctest.Test(t, func(t *testing.T) {
		w := openWatched(t, old)
		if _, res := w.ask("/v1/events", "secret-bad"); res.StatusCode != 401 {
			t.Errorf("a stranger gets %s", res.Status)
		}
		_, res := w.ask("/v1/events", "secret-old")
		for range tail.MaxOfOne - 1 {
			if _, more := w.ask("/v1/events", "secret-old"); more.StatusCode != 200 {
				t.Error(more.Status)
			}
		}
		_, more := w.ask("/v1/events", "secret-old") // one more would leave too few for others
		if text, err := io.ReadAll(more.Body); more.StatusCode != 503 || err != nil || !strings.Contains(string(text), "the token of ada") {
			t.Errorf("%s, %v: %s", more.Status, err, text)
		}
		pulses := 0
		if err := tail.Read(res.Body, func(event string, data []byte) error {
			if pulses++; pulses == 3 {
				w.guard.SetTokens(next)
			}
			if pulses == 4 && event != "end" {
				return fmt.Errorf("%s: %s", event, data)
			}
			return nil
		}); err != nil || pulses != 4 {
			t.Errorf("%v, %d events", err, pulses)
		}
	})
}

// The number of viewers is limited, and invalid filters are refused.
func TestLimitsOfWatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWatched(t, nil)
		for path, want := range map[string]int{
			"/v1/events?outcome=maybe": 400, "/v1/events?edge=gatway": 400, "/v1/events?client=sk_prod_1": 400, "/v1/events?clinet=1a2b3c4d": 400,
			"/v1/events?rule=a&rule=b": 400,
		} {
			if _, res := w.ask(path, ""); res.StatusCode != want {
				t.Errorf("%s: %s", path, res.Status)
			}
		}
		for range tail.MaxViewers {
			if _, res := w.ask("/v1/events?edge=check&rule=all&client=1a2b3c4d", ""); res.StatusCode != 200 {
				t.Error(res.Status)
			}
		}
		_, res := w.ask("/v1/events", "")
		text, err := io.ReadAll(res.Body)
		if res.StatusCode != 503 || err != nil || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s, %v: %s", res.Status, err, text)
		}
	})
}
