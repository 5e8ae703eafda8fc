package rulefile

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata/broken")

// TestBroken reads invalid files. Each file begins with one line for each of its problems, in order: the position and a
// part of the message.
//
//	# want: 4:12 must be at least 1
//
// A problem with the file as a whole has no position. These lines are written by hand. Next to each file is its whole
// message, which -update rewrites.
func TestBroken(t *testing.T) {
	files, err := filepath.Glob("testdata/broken/*.yaml")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d broken files, %v", len(files), err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			src, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			f, err := Parse("rules.yaml", src)
			if f != nil || err == nil {
				t.Fatalf("accepted: %+v", f)
			}
			var found Problems
			if !errors.As(err, &found) {
				t.Fatalf("the error is %T", err)
			}
			checkWants(t, wants(src), found)
			checkGolden(t, strings.TrimSuffix(path, ".yaml")+".txt", err.Error()+"\n")
		})
	}
}

// wants returns the expected problems from the first lines of an invalid file.
func wants(src []byte) []string {
	var list []string
	for line := range strings.Lines(string(src)) {
		want, ok := strings.CutPrefix(line, "# want: ")
		if !ok {
			break
		}
		list = append(list, strings.TrimSpace(want))
	}
	return list
}

func checkWants(t *testing.T, want []string, found Problems) {
	t.Helper()
	if len(want) == 0 {
		t.Error("the file says nothing about what is wrong with it")
	}
	for i, p := range found {
		if i >= len(want) {
			t.Errorf("not wanted: %s", p)
			continue
		}
		place, text, _ := strings.Cut(want[i], " ")
		if p.Line == 0 {
			place, text = "", want[i]
		}
		if got := fmt.Sprintf("%d:%d", p.Line, p.Column); p.Line > 0 && got != place || !strings.Contains(p.String(), text) {
			t.Errorf("want %s\n got %s", want[i], p)
		}
	}
	for i := len(found); i < len(want); i++ {
		t.Errorf("not found: %s", want[i])
	}
}

func checkGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run go test ./rulefile -run %s -update, and read what it writes", err, t.Name())
	}
	if got == string(want) {
		return
	}
	t.Errorf("%s differs: if the change is meant, run go test ./rulefile -run %s -update", path, t.Name())
	old, now := strings.Split(string(want), "\n"), strings.Split(got, "\n")
	for i := range max(len(old), len(now)) {
		o, n := "", ""
		if i < len(old) {
			o = old[i]
		}
		if i < len(now) {
			n = now[i]
		}
		if o != n {
			t.Errorf("line %d\nwant %s\n got %s", i+1, o, n)
		}
	}
}

// TestStrictGlobalRules checks that strict global rules don't need on_partition.
func TestStrictGlobalRules(t *testing.T) {
	f, err := Parse("rules.yaml", []byte("rules:\n  - {id: a, by: [user], limit: 10/day, scope: global, strict: true}\n"))
	if err != nil || len(f.Rules.Rules) != 1 || !f.Rules.Rules[0].Strict {
		t.Errorf("%+v, %v", f, err)
	}
}
