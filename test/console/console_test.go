// Package console tests the console and the playground in a real browser, with real nodes on a real Redis. The tests
// are in *.test.mjs, for Node's test runner with Playwright.
package console

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	// The tests mostly wait for heartbeats and pages, so more of them run in parallel than there are cores. -parallel
	// on the command line takes precedence.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestConsole(t *testing.T) {
	for file, target := range map[string]string{
		"../../server/ui/dist/app/index.html.gz": "ui", "node_modules/playwright-core": "test/console/node_modules/.package-lock.json",
	} {
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("%v: make %s", err, target)
		}
	}
	weir := filepath.Join(t.TempDir(), "weir")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", weir, "../../server/cmd/weir").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := filepath.Glob("*.test.mjs")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(file, ".test.mjs"), func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "node", "--test", "--test-reporter=spec", file)
			cmd.Env = append(os.Environ(), "WEIR="+weir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			} else {
				t.Logf("%s", out)
			}
		})
	}
}
