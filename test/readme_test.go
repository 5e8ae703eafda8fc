package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/test/gateways"
)

// fences returns the code blocks of a language in a Markdown file.
func fences(t *testing.T, file, language string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return gateways.Blocks(string(text), language)
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

// The short Go examples in the README compile as they are, and the first one limits requests.
func TestReadmeExampleRuns(t *testing.T) {
	t.Parallel()
	examples := fences(t, "../README.md", "go")
	out, err := goRun(t, []string{"run"}, `package main

import (
	"fmt"
	"net/http"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

func serve(user func(*http.Request) string, handler http.Handler) {
`+examples[1]+`}

func main() {
`+examples[0]+`
	n := 1
	for limit.Allow("ada") {
		n++
	}
	fmt.Println(n >= 100 && n < 200, limit.Allow("bob"))
	_ = serve
}
`)
	if err != nil || out != "true true\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// The README's program works with the README's rules. In fewer than twenty lines, it has a limit on Redis, verified
// keys with a tier, and rules that follow their file.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	program := fences(t, "../README.md", "go")[2]
	if n := strings.Count(program, "\n"); n >= 20 {
		t.Errorf("the program has %d lines", n)
	}
	addr, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	redis := redistest.New(t, redistest.Options{})
	dir := t.TempDir()
	path := filepath.Join(dir, "program")
	program = strings.NewReplacer("127.0.0.1:6390", redis.Addr, "127.0.0.1:8000", addr).Replace(program)
	if out, err := goRun(t, []string{"build", "-o", path}, program); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rules := fences(t, "../README.md", "yaml")[0]
	file := write(t, filepath.Join(dir, "rules.yaml"), rules)
	cmd := exec.Command(path)
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	limitOf := func(key string) string {
		req, err := http.NewRequest("GET", "http://"+addr+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err.Error()
		}
		res.Body.Close()
		for _, policy := range strings.Split(res.Header.Get("RateLimit-Policy"), ", ") {
			if q, found := strings.CutPrefix(policy, `"quota";q=`); found {
				return q
			}
		}
		return res.Status
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	until := func(key, want string) {
		t.Helper()
		if err := redistest.Until(ctx, func(context.Context) error {
			if got := limitOf(key); !strings.HasPrefix(got, want) {
				return fmt.Errorf("the limit of %s is %s, not %s", key, got, want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	until("sk_prod_1", "1000;w=60")
	until("sk_prod_invented", "100;w=60")
	write(t, file, strings.ReplaceAll(rules, "free: 100/minute", "free: 150/minute"))
	until("sk_prod_invented", "150;w=60")
	until("sk_prod_1", "1000;w=60")
}

// goRun builds or runs a program as part of the module, through an overlay that leaves the work tree unchanged.
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
