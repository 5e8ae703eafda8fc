package test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/weirhq/weir/rulefile"
)

// All rule files in the docs pass weir rules lint --strict.
func TestRuleExamplesPassLint(t *testing.T) {
	seen := 0
	lint := func(file, text string) {
		seen++
		f, err := rulefile.Parse(file, []byte(text))
		if err != nil {
			t.Errorf("%s: %v\n%s", file, err, text)
			return
		}
		for _, w := range f.Warnings {
			t.Errorf("%s\n%s", w, text)
		}
	}
	for _, file := range append(pages(t), "README.md") {
		for _, block := range fences(t, "../"+file, "yaml") {
			if strings.Contains("\n"+block, "\nrules:\n") {
				lint(file, block)
			}
		}
	}
	files, err := filepath.Glob("../examples/*/rules.yaml")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, path := range append(files, "../server/internal/serve/starter.yaml") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lint(strings.TrimPrefix(path, "../"), string(text))
	}
	if seen < 30 {
		t.Errorf("only %d examples found", seen)
	}
}

// pages returns the paths of all documents below docs, relative to the project's folder.
func pages(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir("../docs", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			files = append(files, strings.TrimPrefix(path, "../"))
		}
		return err
	})
	if err != nil || len(files) < 20 {
		t.Fatal(files, err)
	}
	return files
}

// All links between documents point to existing files and headings.
func TestLinksWork(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	for _, file := range append(pages(t), "README.md", "CONTRIBUTING.md") {
		for _, m := range link.FindAllStringSubmatch(prose(t, file), -1) {
			target := file
			if strings.Contains(m[1], "://") {
				continue
			}
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(file), m[1])
			}
			if _, err := os.Stat("../" + target); err != nil {
				t.Errorf("%s links to %s", file, m[1])
				continue
			}
			if m[2] != "" && !slices.Contains(anchors(t, target), m[2]) {
				t.Errorf("%s links to %s#%s, and there is no such heading", file, m[1], m[2])
			}
		}
	}
}

// prose returns a document without its code blocks.
func prose(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../" + file)
	if err != nil {
		t.Fatal(err)
	}
	var kept strings.Builder
	inside := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
			inside = !inside
		} else if !inside {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// anchors returns the anchors of a document's headings.
func anchors(t *testing.T, file string) (names []string) {
	t.Helper()
	for line := range strings.Lines(prose(t, file)) {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			names = append(names, strings.Map(func(c rune) rune {
				switch {
				case c == ' ':
					return '-'
				case c == '-', c == '_', unicode.IsLetter(c), unicode.IsDigit(c):
					return unicode.ToLower(c)
				}
				return -1
			}, strings.TrimSpace(heading)))
		}
	}
	return names
}

// Prose is wrapped at 100 columns, except in tables, headings and lines with links.
func TestProseIsWrapped(t *testing.T) {
	for _, file := range pages(t) {
		for line := range strings.Lines(prose(t, file)) {
			line = strings.TrimRight(line, "\n")
			if utf8.RuneCountInString(line) > 100 && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "#") && !strings.Contains(line, "](") {
				t.Errorf("%s: more than 100 columns: %s", file, line)
			}
		}
	}
}

// The docs describe every flag of every command.
func TestFlagsAreInTheDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, part := range strings.Split(string(text), "\n## weir ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		sections[name] = body
	}
	sections["explain"] += sections["check"] // explain takes the same flags for a request as check
	flag := regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z0-9-]+)`)
	sections["keys"] += sections["check"] // some keys commands take these flags, too
	for _, command := range []string{
		"demo", "serve", "check", "explain", "regions", "bench", "version",
		"rules lint", "rules show", "rules apply", "rules diff", "rules history", "rules rollback",
		"keys override", "keys block", "keys allow", "keys show", "keys reset",
	} {
		out, err := exec.CommandContext(t.Context(), binary, append(strings.Fields(command), "--help")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		found := flag.FindAllStringSubmatch(string(out), -1)
		if len(found) < 2 {
			t.Errorf("weir %s --help: %s", command, out)
		}
		for _, m := range found {
			section := sections[strings.Fields(command)[0]]
			if m[1] != "--help" && !regexp.MustCompile("`"+m[1]+`\b`).MatchString(section) {
				t.Errorf("docs/reference/cli.md: weir %s: %s is missing", command, m[1])
			}
		}
	}
}
