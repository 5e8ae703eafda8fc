package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// make check fails if there is a known vulnerability or the scanner is broken, but not if there is no network.
func TestVulnerabilitiesFailTheCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		says   string
		status string
		want   string
		fails  bool
	}{
		{"No vulnerabilities found.", "0", "No vulnerabilities found.", false},
		{"Vulnerability #1: GO-2026-0001", "3", "GO-2026-0001", true},
		{"govulncheck: fetching vulnerabilities: Get https://vuln.go.dev/index/modules.json.gz: no such host", "1", "govulncheck skipped", false},
		{"govulncheck: loading packages: there are errors", "1", "loading packages", true},
	} {
		stub := filepath.Join(t.TempDir(), "go")
		text := "#!/bin/sh\necho \"$*\"\necho '" + c.says + "'\nexit " + c.status + "\n"
		if err := os.WriteFile(stub, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "make", "-C", "..", "vulns", "GO="+stub)
		out, err := cmd.CombinedOutput()
		if (err != nil) != c.fails || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v\n%s", c.says, err, out)
		}
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), "\ncheck: vulns\n") {
		t.Error("make check doesn't look for vulnerabilities")
	}
}

// make install puts the binary where PREFIX says, and explains how to proceed if it can't. It builds nothing, so root
// can run it.
func TestMakeInstall(t *testing.T) {
	t.Parallel()
	dir := makefileAlone(t)
	stub := filepath.Join(dir, "go")
	script(t, stub, "#!/bin/sh\necho go is called\nexit 1\n")
	install := func(prefix string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "make", "-C", dir, "install", "GO="+stub, "PREFIX="+prefix).CombinedOutput()
		return string(out), err
	}
	prefix := filepath.Join(dir, "usr")
	if out, err := install(prefix); err == nil || !strings.Contains(out, "make build first, without sudo") || strings.Contains(out, "go is called") {
		t.Fatalf("before anything is built: %v\n%s", err, out)
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	script(t, filepath.Join(dir, "bin", "weir"), "built")
	if out, err := install(prefix); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if info, err := os.Stat(filepath.Join(prefix, "bin", "weir")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("installed: %v, %v", info, err)
	}
	if out, err := install(stub); err == nil || !strings.Contains(out, "try make install PREFIX=") {
		t.Errorf("into a file: %v\n%s", err, out)
	}
}

// make build leaves out the console where it can't be built, and says so. If the console is broken, make build fails.
// make ui, which CI runs, fails in both cases.
func TestMakeBuildsWithTheConsoleIfItCan(t *testing.T) {
	t.Parallel()
	const node, old = "#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 1\n"
	const npm = `#!/bin/sh
echo npm "$@"
case "$1 $INSTALL $BUILD" in ci\ bad*|run*bad) exit 1;; esac
mkdir -p node_modules dist/app && touch node_modules/.package-lock.json
`
	for name, c := range map[string]struct {
		node, npm string
		args      []string
		want      string
		not       string
		built, ui bool // whether make build and make ui succeed
	}{
		"all is there":           {node, npm, nil, "npm run build", "without the console", true, true},
		"not wanted":             {node, npm, []string{"CONSOLE="}, "go build", "npm", true, true},
		"no Node":                {"", "", nil, "without the console, which would be at /console/ on the admin port: it needs Node (20.19 or later) and npm. make ui build adds it", "npm ci", true, false},
		"an old Node":            {old, npm, nil, "it needs Node (20.19 or later)", "npm ci", true, false},
		"no packages":            {node, npm, []string{"INSTALL=bad"}, "without the console, which would be at /console/ on the admin port: npm couldn't fetch its packages", "npm run", true, false},
		"sources that are wrong": {node, npm, []string{"BUILD=bad"}, "npm run build", "go build -trimpath -ldflags -X", false, false},
	} {
		dir := makefileAlone(t)
		tools := filepath.Join(dir, "tools")
		for _, d := range []string{"tools", "server/ui", "lib/wasm"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, file := range []string{"go.mod", "go.sum", "server/ui/package.json", "server/ui/package-lock.json", "lib/wasm/wasm_exec.js"} {
			write(t, filepath.Join(dir, file), "{}")
		}
		// The folder has the tools that make needs, but not the machine's Node.
		for _, tool := range []string{"sh", "cat", "cp", "expr", "find", "getconf", "git", "grep", "gzip", "id", "make", "mkdir", "mv", "rm", "sed", "touch", "uname"} {
			path, err := exec.LookPath(tool)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(tools, tool)); err != nil {
				t.Fatal(err)
			}
		}
		script(t, filepath.Join(tools, "go"), "#!/bin/sh\ncase \"$1\" in env) echo "+dir+";; list) echo ./core;; *) echo go \"$@\";; esac\n")
		if c.node != "" {
			script(t, filepath.Join(tools, "node"), "#!/bin/sh\necho called >>"+dir+"/node-was\n"+strings.TrimPrefix(c.node, "#!/bin/sh\n"))
			script(t, filepath.Join(tools, "npm"), c.npm)
		}
		run := func(args ...string) (string, error) {
			cmd := exec.CommandContext(t.Context(), "make", append(append([]string{"-C", dir, "SHELL=" + filepath.Join(tools, "sh")}, c.args...), args...)...)
			cmd.Env = []string{"PATH=" + tools, "HOME=" + dir}
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if out, err := run("help"); err != nil || !strings.Contains(out, "build: ") {
			t.Errorf("%s, help: %v\n%s", name, err, out)
		}
		if _, err := os.Stat(filepath.Join(dir, "node-was")); err == nil {
			t.Errorf("%s: help starts Node", name)
		}
		if out, err := run("build"); (err == nil) != c.built || !strings.Contains(out, c.want) || strings.Contains(out, c.not) {
			t.Errorf("%s, build: %v\n%s", name, err, out)
		}
		if out, err := run("ui"); (err == nil) != c.ui {
			t.Errorf("%s, ui: %v\n%s", name, err, out)
		}
		if !c.ui {
			continue
		}
		if out, err := run("build", "CONSOLE=yes"); err != nil || strings.Contains(out, "npm") {
			t.Errorf("%s, again: %v\n%s", name, err, out)
		}
		// Without Node, the binary gets the console of the last build, and make says so.
		for _, tool := range []string{"node", "npm"} {
			if err := os.Remove(filepath.Join(tools, tool)); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := run("build", "CONSOLE=yes"); err != nil || !strings.Contains(out, "the console is that of the last build: it needs Node") {
			t.Errorf("%s, without Node: %v\n%s", name, err, out)
		}
	}
}

// The playground is rebuilt after a change to any Go code that it contains.
func TestThePlaygroundFollowsTheCore(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.Dir}}/{{index $.GoFiles 0}}{{end}}{{end}}", "./server/ui/play")
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "GOOS=js", "GOARCH=wasm")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	files := append(strings.Fields(string(out)), filepath.Join(root, "go.mod"), filepath.Join(root, "server", "ui", "play.html"))
	if len(files) < 6 {
		t.Fatalf("the playground has no core: %q", files)
	}
	for _, file := range files {
		name, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		would, err := exec.CommandContext(t.Context(), "make", "-C", root, "-n", "-W", name, "ui").CombinedOutput()
		if err != nil || !strings.Contains(string(would), "./server/ui/play") {
			t.Errorf("after a change of %s: %v\n%s", name, err, would)
		}
	}
}

// makefileAlone returns a folder that contains only the Makefile.
func makefileAlone(t *testing.T) string {
	t.Helper()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "Makefile"), string(makefile))
	return dir
}

// script writes an executable file.
func script(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}
