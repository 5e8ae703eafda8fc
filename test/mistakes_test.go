package test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write the answers into testdata/mistakes instead of comparing")

// TestMistakes makes mistakes that people commonly make in rules, in weir.yaml and in flags. Each file in
// testdata/mistakes is one: the command, the files that it reads, and the output, which -update rewrites. The lines at
// the top are written by hand. They are parts of the output that say where the mistake is, what is wrong, and what to
// write instead.
//
//	place: --http
//	reason: must be an address and a port
//	write: 127.0.0.1:8080
//	$ weir serve --http 8080
func TestMistakes(t *testing.T) {
	files, err := filepath.Glob("testdata/mistakes/*.txtar")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d mistakes, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			last := &a.Files[len(a.Files)-1]
			if last.Name != "answer" {
				t.Fatalf("the last part is %s, and should be the answer", last.Name)
			}
			dir := t.TempDir()
			for _, f := range a.Files[:len(a.Files)-1] {
				write(t, filepath.Join(dir, f.Name), string(f.Data))
			}
			wants, args, env := readMistake(t, string(a.Comment))
			got := answerTo(t, dir, args, env)
			for _, kind := range []string{"place", "reason", "write"} {
				if want := wants[kind]; want == "" || !strings.Contains(got, want) {
					t.Errorf("the %s should be told: %q", kind, want)
				}
			}
			if *update {
				last.Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got != string(last.Data) {
				t.Errorf("the answer is\n%s\nand should be\n%s", got, last.Data)
			}
		})
	}
}

// readMistake parses the lines above the files of a mistake.
func readMistake(t *testing.T, text string) (wants map[string]string, args, env []string) {
	t.Helper()
	wants = map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if command, ok := strings.CutPrefix(line, "$ weir "); ok {
			args = strings.Fields(command)
		} else if variable, ok := strings.CutPrefix(line, "env "); ok {
			env = append(env, variable)
		} else if kind, want, ok := strings.Cut(line, ": "); ok {
			wants[kind] = want
		}
	}
	if len(args) == 0 {
		t.Fatal("there is no line $ weir …")
	}
	return wants, args, env
}

// answerTo runs a command that fails, and returns its exit code and its output.
func answerTo(t *testing.T, dir string, args, env []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("the command ends with %v\n%s", err, out)
	}
	return fmt.Sprintf("exit %d\n%s", exit.ExitCode(), out)
}
