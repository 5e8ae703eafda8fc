package test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// command runs a weir command against a node's admin port and returns its output.
func command(t testing.TB, n *node, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), binary, append(args, "--admin", n.Admin)...).CombinedOutput()
	if err != nil {
		t.Fatalf("weir %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// blocked waits until all nodes refuse the stolen key, or, if want is false, until all accept it.
func blocked(t testing.TB, want bool, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		until(t, func() error {
			if status, code, _ := asks(t, n.HTTP+"/v1/check", stolen); (status == 403) != want {
				return fmt.Errorf("the stolen key gets %d %s", status, code)
			}
			return nil
		})
	}
}

// Blocking a key works with a rule file and with a rule store, with and without Redis, and all nodes follow it,
// whatever rules they have.
func TestABlockAlwaysWorks(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	dir := t.TempDir()
	rules := write(t, filepath.Join(dir, "rules.yaml"), `rules:
  - {id: all, limit: 1000/minute, override: {sk_stolen: 100000/minute}}
whitelist: [sk_stolen]
`)
	store := []string{"--store", "redis://" + r.Addr}
	file := append(store, "--rules", rules, "--data", filepath.Join(dir, "file"))
	n := serve(t, file...)
	other := serve(t, append(store, "--data", filepath.Join(dir, "other"))...)
	reached(t, n, other)

	if out := command(t, n, "keys", "block", "sk_stolen", "-m", "on a paste site"); !strings.Contains(out, rules) || !strings.Contains(out, "emergency list") {
		t.Errorf("it says %s", out)
	}
	wantStatus(t, n, stolen, 403) // at once
	blocked(t, true, other)
	for _, n := range []*node{n, other} {
		if out := command(t, n, "keys", "blocks"); !strings.Contains(out, "sk_stolen") || !strings.Contains(out, "on a paste site") {
			t.Errorf("blocks: %s", out)
		}
		if out := command(t, n, "explain", "sk_stolen"); !strings.Contains(out, "on the emergency list") {
			t.Errorf("explain: %s", out)
		}
	}
	if out := command(t, n, "rules", "lint", rules); !strings.Contains(out, "blocked by the emergency list") {
		t.Errorf("lint: %s", out)
	}

	// The block survives crashes of the node and of Redis.
	crash(n)
	r.Kill()
	n = serve(t, file...)
	wantStatus(t, n, stolen, 403)
	// While Redis is down, blocking and unblocking a key take effect on the node that got the command. The other node
	// follows when Redis is back.
	if out := command(t, other, "keys", "block", "sk_late"); !strings.Contains(out, "Redis can't be reached") {
		t.Errorf("it says %s", out)
	}
	wantStatus(t, other, `{"key": "sk_late", "path": "/"}`, 403)
	command(t, n, "keys", "block", "sk_stolen", "--remove")
	blocked(t, false, n)
	wantStatus(t, other, stolen, 403)
	if err := r.RestartEmpty(); err != nil {
		t.Fatal(err)
	}
	blocked(t, false, other)
	until(t, func() error {
		if status, _, _ := asks(t, n.HTTP+"/v1/check", `{"key": "sk_late", "path": "/"}`); status != 403 {
			return fmt.Errorf("sk_late gets %d", status)
		}
		return nil
	})
}
