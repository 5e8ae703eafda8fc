package test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the weir command, built once for all tests.
var binary string

// perCore is the number of tests that run at the same time per core. Most tests wait for processes and clocks.
const perCore = 3

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(perCore*runtime.GOMAXPROCS(0))); err != nil { // -parallel on the command line takes precedence
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "weir")
	build := exec.Command("go", "build", "-race", "-o", binary, "../server/cmd/weir")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		os.Exit(1)
	}
	os.Setenv("WEIR_GRPC", "127.0.0.1:0")     // tests run nodes in parallel, on free ports
	os.Setenv("GORACE", "atexit_sleep_ms=10") // by default, the race detector makes each process sleep for a second at exit
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// node is a running `weir serve`.
type node struct {
	t                    testing.TB
	cmd                  *exec.Cmd
	HTTP, Admin, Gateway string // URLs
	GRPC                 string // address
	exited               chan error

	mu   sync.Mutex // guards log and wake
	log  []map[string]any
	wake chan struct{}   // closed and replaced at each line of the log
	text strings.Builder // the raw log; guarded by mu
	out  strings.Builder // stdout, complete once the node has exited
}

// serve starts a node on free loopback ports and waits until it serves. The node is stopped when the test ends.
func serve(t testing.TB, args ...string) *node {
	t.Helper()
	return start(t, args...).serves()
}

// serves waits until the node serves, and records its addresses.
func (n *node) serves() *node {
	n.t.Helper()
	line := n.await("serving", func(map[string]any) bool { return true })
	n.HTTP, _ = line["http"].(string)
	n.Admin, _ = line["admin"].(string)
	n.Gateway, _ = line["gateway"].(string)
	n.GRPC, _ = line["grpc"].(string)
	return n
}

// start starts a node like serve, but doesn't wait until it serves.
func start(t testing.TB, args ...string) *node {
	t.Helper()
	return startBinary(t, binary, args...)
}

// startBinary does the same with another version's binary.
func startBinary(t testing.TB, binary string, args ...string) *node {
	t.Helper()
	return runNode(t, exec.Command(binary, append([]string{"serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"}, args...)...))
}

// runNode starts a command that runs a node, in its own temporary folder.
func runNode(t testing.TB, cmd *exec.Cmd) *node {
	t.Helper()
	n := &node{t: t, cmd: cmd, exited: make(chan error, 1), wake: make(chan struct{})}
	n.cmd.Dir = t.TempDir()
	n.cmd.Stdout = &n.out
	stderr, err := n.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go n.read(stderr)
	t.Cleanup(func() {
		n.stop()
		<-n.exited
		if n.mu.Lock(); strings.Contains(n.text.String(), "DATA RACE") {
			t.Errorf("a data race in the node:\n%s", n.text.String())
		}
		n.mu.Unlock()
	})
	return n
}

func (n *node) read(r io.Reader) {
	for scan := bufio.NewScanner(r); scan.Scan(); {
		line := map[string]any{}
		if json.Unmarshal(scan.Bytes(), &line) != nil {
			line["msg"] = scan.Text() // not from slog, so probably a crash
		}
		n.mu.Lock()
		n.log = append(n.log, line)
		n.text.WriteString(scan.Text() + "\n")
		close(n.wake)
		n.wake = make(chan struct{})
		n.mu.Unlock()
	}
	err := n.cmd.Wait()
	n.exited <- err
	n.exited <- err // once for the test and once for the cleanup
}

// await waits up to 30 seconds for a log line with this message for which want returns true, and returns the line.
func (n *node) await(msg string, want func(map[string]any) bool) map[string]any {
	n.t.Helper()
	deadline := time.After(30 * time.Second)
	for seen := 0; ; {
		n.mu.Lock()
		lines, wake := n.log[seen:], n.wake
		seen = len(n.log)
		n.mu.Unlock()
		for _, l := range lines {
			if l["msg"] == msg && want(l) {
				return l
			}
		}
		select {
		case <-wake:
		case <-deadline:
			n.t.Fatalf("no line %q in %v", msg, n.log)
		}
	}
}

// said reports whether the log has a line with this message.
func (n *node) said(msg string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.log, func(l map[string]any) bool { return l["msg"] == msg })
}

func (n *node) stop() { _ = n.cmd.Process.Signal(syscall.SIGTERM) }

// call sends a request with only the given headers, each as "Name: value", and returns the response and its body.
func call(t testing.TB, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

// bearer returns the header for a token. For "" it returns a header that identifies no client.
func bearer(token string) string {
	if token == "" {
		return "X-Nobody: 1"
	}
	return "Authorization: Bearer " + token
}

// post sends JSON and returns the status and the body.
func post(t testing.TB, c *http.Client, url, body string) (int, string) {
	t.Helper()
	res, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, string(b)
}

func write(t testing.TB, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
