package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weirhq/weir/rulefile"
)

// Every example of a rule file in the docs loads.
func TestRuleExamplesLoad(t *testing.T) {
	seen := 0
	for _, file := range []string{"../README.md", "../docs/rules.md"} {
		for i, block := range fences(t, file, "yaml") {
			if _, err := rulefile.Parse(file, []byte(block)); err != nil {
				t.Errorf("%s, example %d: %v", file, i+1, err)
			}
			seen++
		}
	}
	if seen < 10 {
		t.Errorf("only %d examples found", seen)
	}
}

// Links between documents lead somewhere.
func TestLinksLead(t *testing.T) {
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../docs/adr/*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	for _, file := range append(append(files, more...), "../README.md", "../CONTRIBUTING.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s links to %s", file, m[1])
			}
		}
	}
}

// Every flag of every command is in the docs.
func TestFlagsAreInTheDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, part := range strings.Split(string(text), "\n## weir ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		sections[name] = body
	}
	sections["explain"] += sections["check"] // it takes the request as that does
	flag := regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z0-9-]+)`)
	sections["keys"] += sections["check"] // so do some of these
	for _, command := range []string{
		"demo", "serve", "check", "explain", "bench", "version",
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
				t.Errorf("docs/cli.md: weir %s: %s is missing", command, m[1])
			}
		}
	}
}
