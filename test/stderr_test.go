package test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// piped starts a node and reads its log from a pipe until the node serves.
func piped(t *testing.T, args ...string) (n *node, r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	n = &node{t: t, exited: make(chan error, 1)}
	n.cmd = exec.Command(binary, append([]string{"serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"}, args...)...)
	n.cmd.Dir, n.cmd.Stderr = t.TempDir(), w
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { n.exited <- n.cmd.Wait() }()
	t.Cleanup(func() { _ = n.cmd.Process.Kill() })
	for scan := bufio.NewScanner(r); n.HTTP == "" && scan.Scan(); {
		var l struct{ Msg, HTTP, Admin, Gateway string }
		if json.Unmarshal(scan.Bytes(), &l) == nil && l.Msg == "serving" {
			n.HTTP, n.Admin, n.Gateway = l.HTTP, l.Admin, l.Gateway
		}
	}
	return n, r, w
}

// unread starts a node whose log isn't read once it serves, and fills the log's pipe.
func unread(t *testing.T, args ...string) *node {
	t.Helper()
	n, _, w := piped(t, args...)
	fd := int(w.Fd())
	err := syscall.SetNonblock(fd, true)
	for err == nil {
		_, err = syscall.Write(fd, []byte("x"))
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	if err := syscall.SetNonblock(fd, false); err != nil { // the node shares this descriptor
		t.Fatal(err)
	}
	return n
}

// If nothing reads a node's log, the node still works: checks while Redis is lost, the reconnection to Redis, the
// gateway, the admin API and the shutdown.
func TestAnUnreadLog(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	n := unread(t, "--store", "redis://"+r.Addr, "--gateway", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--pprof", "--decision-log", "stderr", "--drain-notice", "0s")
	c := &http.Client{Timeout: 20 * time.Second}
	defer c.CloseIdleConnections()
	up := func(want string) {
		t.Helper()
		until(t, func() error {
			if status, text := post(t, c, n.HTTP+"/v1/check", `{"key": "sk_1", "path": "/", "ip": "203.0.113.7"}`); status != 200 && status != 429 {
				return fmt.Errorf("a check: %d %s", status, text)
			}
			if got := ready(t, n.Admin+"/readyz").Store.Status; got != want {
				return fmt.Errorf("the store is %s, want %s", got, want)
			}
			return nil
		})
	}
	up("up")
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	up("degraded")
	r.Kill()
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	up("up")
	for url, want := range map[string]int{n.Gateway + "/": 502, n.Admin + "/debug/pprof/goroutine": 200} {
		res, err := c.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		if res.Body.Close(); res.StatusCode != want {
			t.Errorf("%s: %s", url, res.Status)
		}
	}
	if status, text := admin(t, n, "PUT", "/v1/denylist?force=true", `{"entries": ["`+strings.Repeat("x", 100)+`"]}`); status != 200 {
		t.Errorf("a change: %d %s", status, text)
	}
	ends(t, n)
}

// If the process that reads a node's log exits, the node goes on without it.
func TestALogWhoseReaderHasEnded(t *testing.T) {
	t.Parallel()
	n, r, w := piped(t, "--drain-notice", "0s")
	if err := errors.Join(w.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	if status, text := admin(t, n, "PUT", "/v1/denylist?force=true", `{"entries": ["sk_a"]}`); status != 200 { // this change is logged
		t.Errorf("a change: %d %s", status, text)
	}
	ends(t, n)
}

// ends stops a node, which must drain and exit without an error.
func ends(t *testing.T, n *node) {
	t.Helper()
	n.stop()
	select {
	case err := <-n.exited:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute): // far longer than draining and the last log lines take
		t.Error("the node doesn't exit")
	}
}
