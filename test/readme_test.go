package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fences returns the code blocks of a language in a Markdown file.
func fences(t *testing.T, file, language string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, part := range strings.Split(string(text), "\n```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		blocks = append(blocks, block+"\n")
	}
	return blocks
}

func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n >= 200 {
		t.Errorf("README.md has %d lines", n)
	}
}

// The first Go example of the README, as it stands there, compiles, runs and decides.
func TestReadmeExampleRuns(t *testing.T) {
	program := `package main

import (
	"context"
	"fmt"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
)

func main() {
` + fences(t, "../README.md", "go")[0] + "}\n"

	// An overlay puts the program into the module without writing into its tree.
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	main, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
	paths, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, "readme", "main.go"): main}})
	if err != nil {
		t.Fatal(err)
	}
	for file, data := range map[string][]byte{main: []byte(program), overlay: paths} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-overlay", overlay, "./readme")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "true 99 0s\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
