package rulefile

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/weirhq/weir"
)

// FuzzParse checks that Parse returns soon for any text, either with a file that means the same every time, or with
// problems whose positions are in the text.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*.yaml", "testdata/broken/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, path := range files {
			src, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(src)
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		var file *File
		var err error
		soon(t, func() { file, err = Parse("rules.yaml", src) })
		if err != nil {
			checkProblems(t, src, err)
			return
		}
		checkPlaces(t, src)
		checkAlone(t, src, file)
		if again, err := weir.Compile(file.Rules); err != nil {
			t.Errorf("what was accepted doesn't compile: %v", err)
		} else if !reflect.DeepEqual(again.Rules(), file.Set.Rules()) {
			t.Error("compiles to something else")
		}
		for name, other := range map[string][]byte{
			"the second time":         src,
			"with carriage returns":   bytes.ReplaceAll(bytes.ReplaceAll(src, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n")),
			"with comments around it": slices.Concat([]byte("# before\n\n"), bytes.TrimPrefix(src, []byte(byteOrderMark)), []byte("\n# behind\n")),
		} {
			if len(other) > MaxSize {
				continue
			}
			twin, err := Parse("rules.yaml", other)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if !reflect.DeepEqual(file.Rules, twin.Rules) || len(file.Warnings) != len(twin.Warnings) {
				t.Errorf("%s it means something else:\n%+v\n%+v", name, file.Rules, twin.Rules)
			}
		}
	})
}

// checkAlone checks that the text of each rule, parsed by itself, means the same rule.
func checkAlone(t *testing.T, src []byte, file *File) {
	t.Helper()
	for i, r := range file.Rules.Rules[:min(len(file.Rules.Rules), 5)] {
		one, err := Find(src, r.ID, time.Now())
		if err != nil || !reflect.DeepEqual(one.Rule, r) {
			t.Fatalf("rule %d, %q: %v, %+v", i, r.ID, err, one)
		}
		read, err := readTree("rule", []byte(one.Text))
		if err != nil {
			t.Fatalf("%q alone is %q: %v", r.ID, one.Text, err)
		}
		if alone := read.rule(value{read.root, ""}); read.any() || alone.ID != r.ID || !reflect.DeepEqual(alone.Match, r.Match) || !reflect.DeepEqual(alone.By, r.By) {
			t.Fatalf("%q alone is %q", r.ID, one.Text)
		}
	}
}

// soon runs f, and ends the test if f takes too long, as with a text that is designed to be slow.
func soon(t *testing.T, f func()) {
	t.Helper()
	watchdog := time.AfterFunc(2*time.Minute, func() { panic("reading takes for ever") })
	defer watchdog.Stop()
	f()
}

// checkProblems checks that problems are sorted, and that each has a text and a valid position.
func checkProblems(t *testing.T, src []byte, err error) {
	t.Helper()
	ps, ok := err.(Problems)
	if !ok || len(ps) == 0 || len(ps) > maxCollected {
		t.Fatalf("%T of %d problems", err, len(ps))
	}
	if s := err.Error(); !utf8.ValidString(s) || strings.ContainsFunc(strings.ReplaceAll(s, "\n", ""), isControl) {
		t.Errorf("the message isn't fit to be printed: %q", s)
	}
	lines := strings.Split(string(bytes.TrimPrefix(src, []byte(byteOrderMark))), "\n")
	last := [2]int{}
	for _, p := range ps {
		if p.Text == "" || p.File != "rules.yaml" || p.Line > len(lines) || p.Line < 0 {
			t.Fatalf("%+v", p)
		}
		at := [2]int{p.Line, p.Column}
		if slices.Compare(at[:], last[:]) < 0 {
			t.Errorf("%v comes after %v", at, last)
		}
		last = at
		if p.Line > 0 && (p.Column < 1 || p.Column > len([]rune(lines[p.Line-1]))+1) {
			t.Errorf("line %d has no column %d: %s", p.Line, p.Column, p)
		}
		if p.Caret < 0 || p.Caret > utf8.RuneCountInString(p.Excerpt)+1 {
			t.Errorf("the caret is at %d of %q", p.Caret, p.Excerpt)
		}
	}
}

// checkPlaces checks that each text of the document is at the position that its node has.
func checkPlaces(t *testing.T, src []byte) {
	t.Helper()
	list := &problems{}
	text := readSource(src, list)
	var walk func(n *node)
	check := func(at int, s string) {
		if rest := strings.ReplaceAll(text.text[at:], "\t", " "); rest == "" || rest[0] != '"' && rest[0] != '\'' && !strings.HasPrefix(rest, s) {
			t.Errorf("%q is said to be at %v, where %q stands", s, at, rest)
		}
	}
	walk = func(n *node) {
		if n.kind == scalar {
			check(n.at, n.text)
		}
		for _, c := range n.children {
			if n.kind == mapping {
				check(c.at, c.name)
			}
			walk(c.value)
		}
	}
	walk(parseTree(text, list))
}
