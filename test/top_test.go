package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// hot asks a node for the clients with the most requests.
func hot(t testing.TB, n *node, query string) (a top.Answer) {
	t.Helper()
	res, err := http.Get(n.Admin + "/v1/top?" + query)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 || json.Unmarshal(text, &a) != nil {
		t.Fatalf("%d, %v: %s", res.StatusCode, err, text)
	}
	return a
}

// zipf sends nodes checks whose keys follow Zipf's law, for at most three seconds, and returns the number of checks by
// key.
func zipf(t *testing.T, nodes []*node) map[string]int {
	counts := make([]map[string]int, len(nodes))
	ends := time.Now().Add(3 * time.Second)
	var sending sync.WaitGroup
	for i, n := range nodes {
		counts[i] = map[string]int{}
		sending.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			keys := rand.NewZipf(r, 1.2, 4, 100_000)
			for range 40 {
				var b bytes.Buffer
				b.WriteString(`{"checks": [`)
				batch := map[string]int{}
				for j := range 1000 {
					// The part of a key that stays visible when masked is its rank.
					key := fmt.Sprintf("sk%05d_SECRET_of_a_client_of_ours", keys.Uint64())
					batch[key[:7]]++
					fmt.Fprintf(&b, `%s{"key": %q, "path": "/v1/orders"}`, strings.Repeat(",", min(j, 1)), key)
				}
				b.WriteString("]}")
				if status, text := post(t, http.DefaultClient, n.HTTP+"/v1/checks", b.String()); status != 200 {
					t.Errorf("%d: %.300s", status, text)
					return
				}
				for key, n := range batch {
					counts[i][key] += n
				}
				if time.Now().After(ends) {
					return
				}
			}
		})
	}
	sending.Wait()
	all := map[string]int{}
	for _, c := range counts {
		for key, n := range c {
			all[key] += n
		}
	}
	return all
}

// told returns a client's number of requests according to an answer, and how far off that may be.
func told(c top.Client, a *top.Answer) (sum, off float64) {
	return c.Requests * a.WindowSeconds, (c.PlusMinus+a.MissingBelow)*a.WindowSeconds + 2 // rates are rounded
}

// TestTopAgreesWithAnExactCount compares the top 20 of a Zipf load on three nodes with exact counts. Counts and order
// may differ by the error that the answer states.
func TestTopAgreesWithAnExactCount(t *testing.T) {
	redis := redistest.New(t, redistest.Options{})
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: orders, limit: 50/second, burst: 200}]")
	var nodes []*node
	for range 3 {
		nodes = append(nodes, serve(t, "--store", "redis://"+redis.Addr, "--rules", rules))
	}
	reached(t, nodes...)
	// All requests must still be within the window when the node responds. If the machine is too busy for that, the
	// test tries again.
	for try := 1; ; try++ {
		began := time.Now()
		exact := zipf(t, nodes)
		var err error
		for err = errors.New("it took too long to send"); err != nil && time.Since(began) < 9*time.Second; {
			err = agrees(t, nodes, exact)
		}
		switch {
		case err == nil:
		case try == 5:
			t.Fatal(err)
		default:
			t.Log(err)
			until(t, func() error {
				if n := len(hot(t, nodes[0], "").Clients); n > 0 {
					return fmt.Errorf("%d clients are still in the window", n)
				}
				return nil
			})
			continue
		}
		break
	}

	redis.Kill()
	until(t, func() error {
		if alone := hot(t, nodes[0], ""); alone.Partial == "" || len(alone.Nodes) != 1 {
			return fmt.Errorf("without Redis: %+v", alone.Nodes)
		}
		return nil
	})
}

// agrees compares the nodes' answers with an exact count.
func agrees(t *testing.T, nodes []*node, exact map[string]int) error {
	ranks := slices.SortedFunc(maps.Keys(exact), func(a, b string) int { return exact[b] - exact[a] })[:20]
	got := hot(t, nodes[0], "k=40")
	if len(got.Nodes) != 3 || len(got.NodesMissing) > 0 || len(got.Clients) < 40 {
		return fmt.Errorf("%d clients of %+v, without %v", len(got.Clients), got.Nodes, got.NodesMissing)
	}
	for _, key := range ranks {
		i := slices.IndexFunc(got.Clients, func(c top.Client) bool { return c.Client[:7] == key })
		if i < 0 {
			return fmt.Errorf("%s isn't listed", key)
		}
		c := got.Clients[i]
		sum, off := told(c, &got)
		if math.Abs(float64(exact[key])-sum) > off {
			return fmt.Errorf("%s has sent %d, and is said to have sent %.0f ± %.0f", key, exact[key], sum, off)
		}
		// Clients that are listed earlier have sent at least as many requests, up to both clients' errors.
		for _, before := range got.Clients[:i] {
			_, more := told(before, &got)
			if n := exact[before.Client[:7]]; float64(n)+off+more < float64(exact[key]) {
				return fmt.Errorf("%s is before %s: it has sent %d, not %d", before.Client, key, n, exact[key])
			}
		}
		if strings.Contains(c.Client, "SECRET") {
			t.Errorf("a key: %s", c.Client)
		}
	}
	if r := got.Rules; len(r) != 1 || r[0].Rule != "orders" || r[0].LastHit == nil || r[0].LastRefusal == nil {
		return fmt.Errorf("%+v", got.Rules)
	}
	if refused := hot(t, nodes[1], "by=refused&k=1&rule=orders"); len(refused.Clients) != 1 || refused.Clients[0].Client[:7] != ranks[0] {
		return fmt.Errorf("by refusals: %+v", refused.Clients)
	}
	return nil
}

// screen is weir top in a terminal.
type screen struct {
	t    *testing.T
	cmd  *exec.Cmd
	pty  *os.File
	mu   sync.Mutex // guards text
	text []byte
	over chan struct{}
}

func openScreen(t *testing.T, n *node, args ...string) *screen {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"top", "--admin", n.Admin, "--interval", "200ms"}, args...)...)
	cmd.Env = append(cmd.Environ(), "TERM=xterm-256color", "NO_COLOR=1")
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 20, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, cmd: cmd, pty: f, over: make(chan struct{})}
	go func() {
		defer close(s.over)
		buf := make([]byte, 4096)
		for {
			n, err := f.Read(buf)
			s.mu.Lock()
			s.text = append(s.text, buf[:n]...)
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = f.Close()
		<-s.over
	})
	return s
}

// shows waits for a frame that contains a text or, if want is false, doesn't contain it.
func (s *screen) shows(text string, want bool) string {
	s.t.Helper()
	last := ""
	until(s.t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		frames := strings.Split(string(s.text), "\x1b[?2026h")
		last = frames[len(frames)-1]
		if !strings.HasSuffix(last, "\x1b[?2026l") || strings.Contains(last, text) != want {
			return fmt.Errorf("%q: want it %v, in %q", text, want, last)
		}
		return nil
	})
	return last
}

func (s *screen) press(keys string) {
	s.t.Helper()
	if _, err := s.pty.Write([]byte(keys)); err != nil {
		s.t.Fatal(err)
	}
}

// ended waits until weir top exits, and checks that the terminal is restored.
func (s *screen) ended() {
	s.t.Helper()
	if err := s.cmd.Wait(); err != nil {
		s.t.Error(err)
	}
	<-s.over
	if !strings.HasSuffix(string(s.text), "\x1b[?7h\x1b[?25h\x1b[?1049l") {
		s.t.Errorf("the screen isn't left: %q", s.text[max(0, len(s.text)-80):])
	}
}

// TestTopOnATerminal runs weir top in a pseudoterminal.
func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	n := serve(t, "--rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules:\n  - {id: orders, limit: 2/minute}\n  - {id: quiet, match: {endpoint: /quiet}, limit: 9/minute}"))
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() {
		for ctx.Err() == nil {
			check(t, n, `{"key": "sk_prod_SECRET_0017", "path": "/v1/orders"}`)
			rediscall.Sleep(ctx, 100*time.Millisecond)
		}
	})
	until(t, func() error { // once the first time slot is over
		if len(hot(t, n, "").Clients) == 0 {
			return fmt.Errorf("no clients are listed yet")
		}
		return nil
	})
	fingerprint := hot(t, n, "").Clients[0].Fingerprint
	if text, err := exec.Command(binary, "keys", "allow", fingerprint, "--admin", n.Admin).CombinedOutput(); err == nil || !strings.Contains(string(text), "not its key") {
		t.Errorf("a fingerprint is taken for a key: %v: %s", err, text)
	}
	s := openScreen(t, n)
	first := s.shows("sk_p…17", true)
	if strings.Contains(first, "\x1b[3") || strings.Contains(first, "SECRET") || !strings.Contains(first, "LAST MINUTE") {
		t.Errorf("%q", first)
	}
	s.press("x")
	s.shows("by refusals", true)
	s.press("r")
	s.shows("by requests", true)
	s.press("p")
	s.shows("paused", true)
	s.press(" ")
	s.shows("paused", false)
	s.press("t")
	s.shows("none in ", true)
	s.press("t")
	s.shows("sk_p…17", true)
	if err := pty.Setsize(s.pty, &pty.Winsize{Rows: 6, Cols: 50}); err != nil {
		t.Fatal(err)
	}
	s.shows("LAST MINUTE", false)
	s.press("q")
	s.ended()

	one := openScreen(t, n, "--rule", "quiet")
	one.shows("No client in", true)
	one.press("q")
	one.ended()

	for _, leave := range []func(*screen){
		func(s *screen) { s.press("\x03") },
		func(s *screen) { _ = s.cmd.Process.Signal(syscall.SIGTERM) },
		func(s *screen) { _ = s.cmd.Process.Signal(syscall.SIGHUP) },
		func(s *screen) { _ = s.cmd.Process.Signal(syscall.SIGQUIT) },
		func(s *screen) { _ = s.cmd.Process.Signal(syscall.SIGABRT) },
	} {
		s := openScreen(t, n)
		s.shows("q leave", true)
		leave(s)
		s.ended()
	}
}
