package test

import (
	"os"
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
