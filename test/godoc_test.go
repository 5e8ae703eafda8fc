package test

import (
	"os/exec"
	"strings"
	"testing"
)

// go doc's summary of the library fits on a screen, and the full text is short enough to read.
func TestTheLibraryFitsOnAScreen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		most int
	}{{[]string{"doc", "."}, 45}, {[]string{"doc", "-all", "."}, 577}} {
		cmd := exec.CommandContext(t.Context(), "go", c.args...)
		cmd.Dir = ".."
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if lines := strings.Count(string(out), "\n"); lines < 30 || lines > c.most {
			t.Errorf("go %s: %d lines, want 30 to %d", strings.Join(c.args, " "), lines, c.most)
		}
	}
}
