package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/observe/tail"
)

// stream is what a client that watches a node has received so far.
type stream struct {
	mu        sync.Mutex // guards the fields below
	decisions []tail.Decision
	seen      uint64
	last      string // name of the last event
	ended     chan error
}

// watch reads a node's events until the stream ends.
func watch(t *testing.T, n *node, query string) *stream {
	t.Helper()
	res, err := http.Get(n.Admin + "/v1/events?" + query)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(res.Body)
		t.Fatalf("%s: %s", res.Status, text)
	}
	s := &stream{ended: make(chan error, 1)}
	go func() {
		s.ended <- tail.Read(res.Body, func(event string, data []byte) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.last = event
			switch event {
			case "decision":
				var d tail.Decision
				if err := json.Unmarshal(data, &d); err != nil {
					return err
				}
				s.decisions = append(s.decisions, d)
			case "pulse":
				var p tail.Pulse
				if err := json.Unmarshal(data, &p); err != nil {
					return err
				}
				s.seen += p.Seen
			}
			return nil
		})
	}()
	return s
}

func (s *stream) await(t *testing.T, seen uint64) (all []tail.Decision) {
	t.Helper()
	until(t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if all = s.decisions; s.seen != seen {
			return fmt.Errorf("%d decisions were seen, want %d", s.seen, seen)
		}
		return nil
	})
	return all
}

// A client that watches a node sees its decisions, and their number matches the metrics. A client that doesn't read
// doesn't affect others, and a node that shuts down doesn't wait for watching clients.
func TestWatchingANode(t *testing.T) {
	t.Parallel()
	store := "redis://" + redistest.New(t, redistest.Options{}).Addr
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules:\n  - {id: orders, match: {endpoint: \"/orders/{id}\"}, limit: 3/hour}\n  - {id: all, by: [ip], limit: 1000000/hour}\n")
	n := serve(t, "--rules", rules, "--store", store)
	reached(t, n)
	all, refused := watch(t, n, ""), watch(t, n, "outcome=refused&rule=orders&edge=check")
	asleep, err := http.Get(n.Admin + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer asleep.Body.Close()
	const flood = 3000
	for range 5 {
		post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "sk_prod_0123456789", "method": "GET", "path": "/orders/17", "ip": "203.0.113.7"}`)
	}
	got := refused.await(t, 2)
	if len(got) != 2 || got[0].Client != "sk_p…89" || got[0].Path != "/orders/{id}" || got[0].Limit != 3 || got[0].Reason != "limited" || got[0].RetryMS < 1 {
		t.Errorf("%+v", got)
	}
	batch := `{"checks": [` + strings.Repeat(`{"path": "/", "ip": "203.0.113.8"},`, 999) + `{"path": "/", "ip": "203.0.113.8"}]}`
	for range flood / 1000 {
		if status, text := post(t, http.DefaultClient, n.HTTP+"/v1/checks", batch); status != 200 {
			t.Fatalf("%d: %.300s", status, text)
		}
	}
	shown := all.await(t, flood+5)
	families, _ := scrape(t, n.Admin, asText, "")
	counted := 0.
	for _, v := range series(families["weir_decisions_total"]) {
		counted += v
	}
	if counted != flood+5 || len(shown) < 5+tail.PerSecond || len(shown) > flood/4 {
		t.Errorf("%d decisions are shown, and %v counted", len(shown), counted)
	}
	post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "sk_prod_0123456789", "path": "/orders/17"}`)
	got = refused.await(t, 3) // by now, the node knows the shared secret and uses the clients' final fingerprints
	byClient := watch(t, n, "client="+got[2].Fingerprint)
	post(t, http.DefaultClient, n.HTTP+"/v1/checks", `{"checks": [{"key": "sk_prod_0123456789", "path": "/"}, {"key": "sk_other", "path": "/"}]}`)
	if got := byClient.await(t, 1); len(got) != 1 || got[0].Client != "sk_p…89" {
		t.Errorf("%+v", got)
	}
	n.stop()
	for _, s := range []*stream{all, refused, byClient} {
		if err := <-s.ended; err != nil || s.last != "end" {
			t.Errorf("%v, and last %s", err, s.last)
		}
	}
	if err := <-n.exited; err != nil {
		t.Errorf("the node waited for those who watch: %v", err)
	}
}

// weir tail prints decisions, reports when it can't print all of them, and exits cleanly.
func TestTailOnTheCommandLine(t *testing.T) {
	t.Parallel()
	n := serve(t, "--rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules:\n  - {id: orders, limit: 3/hour}\n"))
	run := func(args ...string) (*exec.Cmd, *bufio.Scanner, *bufio.Scanner) {
		cmd := exec.CommandContext(t.Context(), binary, append([]string{"tail", "--admin", n.Admin}, args...)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		words, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, bufio.NewScanner(out), bufio.NewScanner(words)
	}
	ask := func() {
		post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "sk_prod_0123456789", "method": "GET", "path": "/orders/17"}`)
	}
	// tail may connect late, so the action is repeated until its line arrives.
	next := func(s *bufio.Scanner, what func()) string {
		t.Helper()
		line := make(chan string)
		go func() {
			s.Scan()
			line <- s.Text()
		}()
		var got string
		until(t, func() error {
			what()
			select {
			case got = <-line:
				return nil
			default:
				return fmt.Errorf("no line yet")
			}
		})
		return got
	}
	for range 4 {
		ask()
	}
	cmd, out, words := run("--outcome", "refused")
	if line := next(out, ask); !strings.Contains(line, "  refused  limited      orders            sk_p…89 ") || !strings.Contains(line, "  GET  check  0 of 3 left  retry in ") {
		t.Error(line)
	}
	batch := `{"checks": [` + strings.Repeat(`{"key": "sk_prod_0123456789", "path": "/"},`, 399) + `{"path": "/"}]}`
	go func() {
		for out.Scan() { // so that tail isn't blocked
		}
	}()
	if line := next(words, func() { post(t, http.DefaultClient, n.HTTP+"/v1/checks", batch) }); !strings.HasPrefix(line, "sampled: ") || !strings.HasSuffix(line, " decisions in the last second are shown") {
		t.Error(line)
	}
	_ = cmd.Process.Signal(os.Interrupt)
	rest := ""
	for words.Scan() {
		rest = words.Text()
	}
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(rest, "of ") {
		t.Errorf("Ctrl-C: %v, %q", err, rest)
	}

	cmd, out, words = run("--json")
	var d tail.Decision
	if line := next(out, ask); json.Unmarshal([]byte(line), &d) != nil || d.Rule != "orders" {
		t.Error(line)
	}
	go func() {
		for out.Scan() {
		}
	}()
	n.stop()
	for words.Scan() {
		rest = words.Text()
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 3 || rest != "weir: the node has ended the stream: the node is ending" {
		t.Errorf("%v: %s", err, rest)
	}
	for _, c := range []struct{ args, want string }{
		{"--outcome maybe", "outcome: must be allowed or refused"}, {"--client sk_prod_0123456789", "client: must be a fingerprint"},
	} {
		live := serve(t)
		text, err := exec.CommandContext(t.Context(), binary, append([]string{"tail", "--admin", live.Admin}, strings.Fields(c.args)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(text), c.want) {
			t.Errorf("weir tail %s: %v, %s", c.args, err, text)
		}
	}
}
