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

// The Go examples of the README, as they stand there: the one that checks runs and decides, the one that serves compiles.
func TestReadmeExamplesRun(t *testing.T) {
	examples := fences(t, "../README.md", "go")
	if out, err := goRun(t, []string{"build", "-o", os.DevNull}, `package main

import (
	"log"
	"net/http"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
)

func main() {
	handler := http.NotFoundHandler()
`+examples[0]+"}\n"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	out, err := goRun(t, []string{"run"}, `package main

import (
	"context"
	"fmt"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
)

func main() {
`+examples[1]+"}\n")
	if err != nil || out != "true 99 0s\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// goRun builds or runs a program as part of the module. An overlay puts it there without writing into the tree.
func goRun(t *testing.T, command []string, program string) (string, error) {
	t.Helper()
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
	write(t, main, program)
	write(t, overlay, string(paths))
	cmd := exec.CommandContext(t.Context(), "go", append(command, "-overlay", overlay, "./readme")...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	return string(out), err
}
