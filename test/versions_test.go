package test

import (
	_ "embed"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// versionBefore is the commit of the previous version, which is the last release. Until there is a release, it is a
// commit whose fields in Redis have today's format, but whose scripts differ.
//
//go:embed testdata/version-before
var versionBefore string

// buildBefore builds the previous version from git.
func buildBefore(t *testing.T) string {
	t.Helper()
	commit, dir := strings.TrimSpace(versionBefore), t.TempDir()
	run := func(in string, args ...string) error {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir, cmd.Env = in, append(os.Environ(), "GIT_INDEX_FILE="+filepath.Join(dir, "index"))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	if err := run("..", "git", "read-tree", commit); err != nil { // redisstore's tests also test the formats in Redis
		t.Skipf("the version before this one can't be tested beside it, since its commit %s isn't here; in a shallow clone run `git fetch --unshallow`: %v", commit, err)
	}
	src, older := filepath.Join(dir, "src"), filepath.Join(dir, "weir")
	if err := run("..", "git", "checkout-index", "--all", "--prefix="+src+"/"); err != nil {
		t.Fatal(err)
	}
	// Without paths in the binary, unchanged packages come from the build cache.
	if err := run(src, "go", "build", "-trimpath", "-o", older, "./cmd/weir"); err != nil {
		t.Fatal(err)
	}
	return older
}

// versionRules has a limit of 1,000 for each algorithm, none of which refills during the test, and a bucket whose
// tokens are borrowed.
const versionRules = `
rules:
  - {id: bucket, match: {endpoint: /bucket}, limit: 1000/366d}
  - {id: strict, match: {endpoint: /strict}, limit: 1000/366d, strict: true}
  - {id: leaky, match: {endpoint: /leaky}, limit: 1000/366d, algorithm: leaky_bucket}
  - {id: window, match: {endpoint: /window}, limit: 1000/366d, algorithm: fixed_window}
  - {id: counter, match: {endpoint: /counter}, limit: 1000/366d, algorithm: sliding_window_counter}
  - {id: log, match: {endpoint: /log}, limit: 1000/366d, algorithm: sliding_window_log}
  - {id: moving, match: {endpoint: /moving}, limit: 1000/366d}
  - {id: quick, match: {endpoint: /quick}, limit: 100/second, burst: 20}
`

// TestTwoVersionsOnOneRedis replaces nodes of the previous version with nodes of this version, one by one and under
// load, and then downgrades one of them. All of them share one limit and accept each other's receipts.
func TestTwoVersionsOnOneRedis(t *testing.T) {
	t.Parallel()
	older := buildBefore(t)
	r := redistest.New(t, redistest.Options{})
	args := append(patient, "--store", "redis://"+r.Addr, "--seed-rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), versionRules))
	var nodes [2]*node
	var all []*node
	put := func(i int, binary string) {
		if n := nodes[i]; n != nil {
			n.stop()
			if err := <-n.exited; err != nil {
				t.Error(err)
			}
		}
		nodes[i] = startBinary(t, binary, args...).serves()
		all = append(all, nodes[i])
	}
	admitted := map[string]int{}
	var mu sync.Mutex
	load := func(path string, nodes []*node) (got int, took time.Duration) {
		began := time.Now()
		statuses := burst(t, nodes, 8, 400, fmt.Sprintf(`{"key": "one", "path": "/%s"}`, path))
		took = time.Since(began)
		if statuses[200]+statuses[429] != 400 {
			t.Errorf("%s: %v", path, statuses)
		}
		mu.Lock()
		defer mu.Unlock()
		admitted[path] += statuses[200]
		return statuses[200], took
	}
	slow := []string{"bucket", "strict", "leaky", "window", "counter", "log"}
	for step, change := range []struct {
		slot   int
		binary string
	}{{0, older}, {1, older}, {1, binary}, {0, binary}, {1, older}} {
		put(change.slot, change.binary)
		if step == 0 {
			continue
		}
		reached(t, nodes[:]...)
		var wg sync.WaitGroup
		for _, path := range slow {
			wg.Go(func() { load(path, nodes[:]) })
		}
		wg.Go(func() { load("moving", nodes[step%2:][:1]) })
		wg.Go(func() {
			got, took := load("quick", nodes[:])
			if most := 20 + 100*(took+100*time.Millisecond).Seconds(); float64(got) > most {
				t.Errorf("step %d: of a quick bucket %d were admitted in %v, want at most %.0f", step, got, took, most)
			}
		})
		wg.Wait()
		receipts(t, nodes[0], nodes[1])
		receipts(t, nodes[1], nodes[0])
	}
	for _, path := range append(slow, "moving") {
		// On a busy machine, leases may end before they are given back. That loses tokens but never creates any.
		leased := path != "strict" && path != "log"
		if got := admitted[path]; got > 1000 || got < 1000 && !leased {
			t.Errorf("%s: %d were admitted of a limit of 1,000", path, got)
		}
	}
	for _, n := range all {
		n.mu.Lock()
		for _, line := range n.log {
			if line["level"] == "ERROR" || strings.Contains(fmt.Sprint(line["msg"]), "made no sense") {
				t.Errorf("a node said %v", line)
			}
		}
		n.mu.Unlock()
	}
}

// receipts fails the test unless another node accepts a node's receipt for a refund, exactly once.
func receipts(t *testing.T, from, to *node) {
	t.Helper()
	taken := check(t, from, `{"key": "receipts", "path": "/bucket", "receipt": true}`)
	if taken.Receipt == "" {
		t.Fatalf("%+v", taken.CheckResponse)
	}
	for _, want := range []int{200, 409} {
		if status, text := post(t, http.DefaultClient, to.HTTP+"/v1/refund", fmt.Sprintf(`{"receipt": %q}`, taken.Receipt)); status != want {
			t.Errorf("refund: %d %s, want %d", status, text, want)
		}
	}
	if a := check(t, from, `{"key": "receipts", "path": "/bucket", "cost": 0}`); a.Remaining != 1000 {
		t.Errorf("%d are left after a refund, want 1,000", a.Remaining)
	}
}
