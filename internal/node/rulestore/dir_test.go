package rulestore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func another(t *testing.T, path string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), holder+"="+path)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestAFolderBelongsToOneProcess(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	if got := another(t, path); !strings.HasPrefix(got, path+" is in use by another process: give each node") {
		t.Errorf("another process got %q", got)
	}
	if _, err := OpenDir(path); err == nil {
		t.Error("the folder was opened twice")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got := another(t, path); got != "opened" {
		t.Errorf("after the folder was closed, another process got %q", got)
	}
}

func TestAFolderIsOpenedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "rules")
	d := openDir(t, path)
	write(t, d, "one")
	write(t, d, "two")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openDir(t, path)
	if v := write(t, d, "three"); v.Number != 3 || v.Parent != 2 {
		t.Errorf("opened again, a version is number %d after %d", v.Number, v.Parent)
	}
	if v, err := d.Get(t.Context(), 1); err != nil || string(v.Text) != "one" {
		t.Errorf("version 1 is %q, %v", v.Text, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) != 4 { // three versions and the lock
		t.Errorf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
}

// If a process dies after writing a temporary file and before renaming it, the versions are unchanged.
func TestACrashLeavesTheOldVersion(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	write(t, d, "one")
	whole, err := os.ReadFile(d.file(Version{Number: 1}))
	if err := errors.Join(err, d.Close()); err != nil {
		t.Fatal(err)
	}
	next := bytes.Replace(whole, []byte(`"number":1`), []byte(`"number":2`), 1)
	for i, left := range [][]byte{nil, next[:20], next} {
		if err := os.WriteFile(filepath.Join(path, fmt.Sprint(tempName, i)), left, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d = openDir(t, path)
	if head, _ := d.Head(t.Context()); head.Number != 1 {
		t.Errorf("the newest is %v", head)
	}
	if left, _ := filepath.Glob(filepath.Join(path, tempName+"*")); left != nil {
		t.Errorf("still there: %v", left)
	}
	if v := write(t, d, "two"); v.Number != 2 {
		t.Errorf("the next is %d", v.Number)
	}
}

func TestADamagedFileIsNamed(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"text":       func(b []byte) []byte { return append(b, ' ') },
		"first line": func(b []byte) []byte { b[len(mark)+70] ^= 1; return b },
		"sum":        func(b []byte) []byte { b[len(mark)+3] ^= 1; return b },
		"empty":      func([]byte) []byte { return nil },
		"number":     func(b []byte) []byte { return bytes.Replace(b, []byte(`"number":2`), []byte(`"number":3`), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			d := openDir(t, path)
			write(t, d, "one")
			write(t, d, "two")
			file := d.file(Version{Number: 2})
			whole, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, damage(whole), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = d.Get(t.Context(), 2)
			_, again := OpenDir(path)
			if again == nil || !strings.Contains(again.Error(), "in use") {
				t.Errorf("opened while it is open: %v", again)
			}
			_ = d.Close()
			_, opened := OpenDir(path)
			for _, err := range []error{err, opened} {
				if err == nil || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), file+": ") || !strings.Contains(err.Error(), "move it away") {
					t.Errorf("got %v", err)
				}
			}
			if err := os.Rename(file, file+".damaged"); err != nil {
				t.Fatal(err)
			}
			if head, err := openDir(t, path).Head(t.Context()); head.Number != 1 || err != nil {
				t.Errorf("without it the newest is %v, %v", head, err)
			}
		})
	}
}

// If an old version is damaged or removed, the rest of the history stays.
func TestADamagedFileOfLongAgo(t *testing.T) {
	d := openDir(t, t.TempDir())
	for _, text := range []string{"one", "two", "three", "four"} {
		write(t, d, text)
	}
	damaged := d.file(Version{Number: 2})
	if err := os.WriteFile(damaged, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.file(Version{Number: 3})); err != nil {
		t.Fatal(err)
	}
	all, err := d.List(t.Context(), 0, 10)
	if err != nil || len(all) != 3 || all[0].Number != 4 || all[1].Number != 2 || all[2].Number != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if !strings.Contains(all[1].Message, damaged+": ") || all[0].Hash == "" || all[2].Hash == "" {
		t.Errorf("%+v", all)
	}
}

// If writing to the folder fails, Append returns an error and nothing changes.
func TestAFailedWriteChangesNothing(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	write(t, d, "one")
	if err := os.Mkdir(d.file(Version{Number: 2}), 0o700); err != nil { // a file can't be renamed over a folder
		t.Fatal(err)
	}
	if _, err := d.Append(t.Context(), 0, Version{Parent: 1}); err == nil {
		t.Error("the version was written")
	}
	if err := os.Remove(d.file(Version{Number: 2})); err != nil {
		t.Fatal(err)
	}
	if v := write(t, d, "two"); v.Number != 2 {
		t.Errorf("the next is %d", v.Number)
	}
	if left, _ := filepath.Glob(filepath.Join(path, tempName+"*")); left != nil {
		t.Errorf("still there: %v", left)
	}
}
