package test

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	modules "golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"
)

// The library adds few modules to the build lists of programs that import it.
func TestBuildLists(t *testing.T) {
	t.Parallel()
	env := publish(t)
	build := func(packages ...string) []string {
		dir := t.TempDir()
		program := "package main\n\nimport (\n"
		for _, p := range packages {
			program += fmt.Sprintf("\t_ %q\n", module+p)
		}
		write(t, filepath.Join(dir, "main.go"), program+")\n\nfunc main() {}\n")
		write(t, filepath.Join(dir, "go.mod"), "module scratch\n\ngo 1.26.0\n")
		in(t, dir, env, "go", "mod", "tidy")
		in(t, dir, env, "go", "build", "-o", os.DevNull, ".")
		return strings.Fields(in(t, dir, env, "go", "list", "-m", "-f", "{{.Path}}", "all"))
	}
	library := build("", "/memstore", "/httplimit")
	if len(library) > 6 {
		t.Errorf("a program with the library has %d modules in its build list, at most 6 are wanted: %s", len(library), strings.Join(library, " "))
	}

	// The Redis store adds only rueidis and its dependencies.
	dir := t.TempDir()
	version := required(t, "../redisstore", "github.com/redis/rueidis")
	write(t, filepath.Join(dir, "main.go"), "package main\n\nimport _ \"github.com/redis/rueidis\"\n\nfunc main() {}\n")
	write(t, filepath.Join(dir, "go.mod"), "module scratch\n\ngo 1.26.0\n\nrequire github.com/redis/rueidis "+version+"\n")
	in(t, dir, env, "go", "mod", "tidy")
	want := append(strings.Fields(in(t, dir, env, "go", "list", "-m", "-f", "{{.Path}}", "all")), library...)
	for _, m := range build("", "/memstore", "/httplimit", "/lease", "/redisstore") {
		if !slices.Contains(want, m) && !strings.HasPrefix(m, module+"/") {
			t.Errorf("with redisstore and lease a build list has %s, which neither the library nor rueidis needs", m)
		}
	}
}

// go install works once the modules are tagged.
func TestGoInstall(t *testing.T) {
	t.Parallel()
	env := append(publish(t), "GOBIN="+t.TempDir())
	in(t, t.TempDir(), env, "go", "install", module+"/server/cmd/weir@"+releaseVersion(t))
	got := in(t, t.TempDir(), nil, filepath.Join(strings.TrimPrefix(env[len(env)-1], "GOBIN="), "weir"), "version")
	if !strings.Contains(got, releaseVersion(t)) {
		t.Errorf("weir version says %q, %s has been installed", got, releaseVersion(t))
	}
}

// publish fills a module proxy with the modules of this work tree as if they were tagged, and returns the environment
// for a go command that uses it. Third-party modules come from the same source as this test's own.
func publish(t *testing.T) []string {
	t.Helper()
	proxy, version := t.TempDir(), releaseVersion(t)
	tracked := strings.Split(strings.TrimSuffix(in(t, "..", nil, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"), "\x00"), "\x00")
	var roots []string
	for _, file := range tracked {
		if path.Base(file) == "go.mod" {
			roots = append(roots, path.Dir(file))
		}
	}
	files := map[string][]modzip.File{}
	for _, file := range tracked {
		info, err := os.Stat("../" + file)
		if err != nil {
			continue // deleted but not committed
		}
		if info.Size() > 1<<20 {
			t.Errorf("%s has %d bytes: what is built doesn't belong in a module", file, info.Size())
		}
		root := path.Dir(file)
		for !slices.Contains(roots, root) {
			root = path.Dir(root)
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		files[root] = append(files[root], trackedFile{rel, "../" + file})
	}
	for root := range maps.Keys(files) {
		gomod := read(t, "../"+root+"/go.mod")
		name := modfile.ModulePath([]byte(gomod))
		if name != path.Join(module, root) {
			continue // its path says that it is never imported
		}
		dir := filepath.Join(proxy, name, "@v")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version+".mod"), gomod)
		write(t, filepath.Join(dir, version+".info"), fmt.Sprintf(`{"Version": %q}`, version))
		write(t, filepath.Join(dir, "list"), version+"\n")
		f, err := os.Create(filepath.Join(dir, version+".zip"))
		if err != nil {
			t.Fatal(err)
		}
		if err := modzip.Create(f, modules.Version{Path: name, Version: version}, files[root]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	had := strings.Fields(in(t, "..", nil, "go", "env", "GOMODCACHE", "GOPROXY"))
	return []string{
		"GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOMODCACHE=" + t.TempDir(), "GOTOOLCHAIN=local",
		"GOPROXY=file://" + proxy + ",file://" + had[0] + "/cache/download," + had[1],
		"GOSUMDB=off", // these versions have no checksums
	}
}

type trackedFile struct{ path, on string }

func (f trackedFile) Path() string                 { return f.path }
func (f trackedFile) Lstat() (fs.FileInfo, error)  { return os.Lstat(f.on) }
func (f trackedFile) Open() (io.ReadCloser, error) { return os.Open(f.on) }

// releaseVersion returns the version in which our modules require each other.
func releaseVersion(t *testing.T) string {
	t.Helper()
	return required(t, "../server", module)
}

func required(t *testing.T, folder, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^\s*(?:require )?` + regexp.QuoteMeta(name) + ` (v\S+)`).FindStringSubmatch(read(t, folder+"/go.mod"))
	if m == nil {
		t.Fatalf("%s/go.mod doesn't require %s", folder, name)
	}
	return m[1]
}

// in runs a command in a folder and returns its output.
func in(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}
