package rulestore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func good(Version) error { return nil }

// Load returns the version that was saved last, whatever its number. Only a few versions are kept.
func TestACopy(t *testing.T) {
	c := Copy{Path: filepath.Join(t.TempDir(), "data", "redis")}
	if v, err := c.Load(good); v.Number != 0 || err != nil {
		t.Errorf("a folder that doesn't exist: %v, %v", v, err)
	}
	var last Version
	for i, n := range []int64{1, 2, 100, 3, 4, 4, 5} {
		last = dated(Version{Number: n, Parent: n - 1, Author: "ann", Text: fmt.Appendf(nil, "text %d", i)})
		for range 2 {
			if err := c.Save(last); err != nil {
				t.Fatal(err)
			}
		}
		if v, err := c.Load(good); !v.Is(last) || string(v.Text) != string(last.Text) || err != nil {
			t.Errorf("after %s: %s, %v", last.Name(), v.Name(), err)
		}
	}
	entries, err := os.ReadDir(c.Path)
	if err != nil || len(entries) != copies {
		t.Errorf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
	if info, err := os.Stat(c.Path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info.Mode(), err)
	}
}

// If a file is damaged, or its rules can't be used, Load returns the copy before it and reports the problem.
func TestADamagedCopy(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"empty":     func(t *testing.T, path string) { put(t, path, nil) },
		"truncated": func(t *testing.T, path string) { put(t, path, get(t, path)[:60]) },
		"text": func(t *testing.T, path string) {
			put(t, path, []byte(strings.Replace(string(get(t, path)), "text 2", "text 3", 1)))
		},
		"hash": func(t *testing.T, path string) {
			put(t, path, []byte(strings.Replace(string(get(t, path)), `"hash":"`, `"hash":"0`, 1)))
		},
		"nonsense":  func(t *testing.T, path string) { put(t, path, []byte("nonsense\n")) },
		"huge line": func(t *testing.T, path string) { put(t, path, []byte(strings.Repeat("x", 1<<20))) },
		"a folder": func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := Copy{Path: t.TempDir()}
			for n := range int64(2) {
				if err := c.Save(dated(Version{Number: n + 1, Text: fmt.Appendf(nil, "text %d", n+1)})); err != nil {
					t.Fatal(err)
				}
			}
			damage(t, c.file(2))
			if v, err := c.Load(good); v.Number != 1 || err == nil || !strings.Contains(err.Error(), c.file(2)) {
				t.Errorf("%s is loaded, %v", v.Name(), err)
			}
			next := dated(Version{Number: 3, Text: []byte("text 3")})
			if err := c.Save(next); err != nil {
				t.Fatal(err)
			}
			if v, err := c.Load(good); !v.Is(next) || err != nil {
				t.Errorf("%s is loaded then, %v", v.Name(), err)
			}
		})
	}
	c := Copy{Path: t.TempDir()}
	for n := range int64(3) {
		if err := c.Save(dated(Version{Number: n + 1, Text: []byte("text")})); err != nil {
			t.Fatal(err)
		}
	}
	bad := func(v Version) error {
		if v.Number > 1 {
			return errors.New("of another Weir")
		}
		return nil
	}
	if v, err := c.Load(bad); v.Number != 1 || err == nil {
		t.Errorf("%s is loaded, %v", v.Name(), err)
	}
	if v, err := c.Load(func(Version) error { return errors.New("no") }); v.Number != 0 || err == nil {
		t.Errorf("%s is loaded, %v", v.Name(), err)
	}
}

// If a process dies while it writes, the copy is unchanged, and the temporary file is removed later.
func TestACopyAfterACrash(t *testing.T) {
	c := Copy{Path: t.TempDir()}
	v := dated(Version{Number: 1, Text: []byte("text")})
	if err := c.Save(v); err != nil {
		t.Fatal(err)
	}
	old, young := filepath.Join(c.Path, tempName+"1"), filepath.Join(c.Path, tempName+"2")
	put(t, old, get(t, c.file(1))[:50])
	put(t, young, nil)
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-2*abandoned)); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Load(good); !got.Is(v) || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if err := c.Save(dated(Version{Number: 2, Text: []byte("next")})); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("what was left behind: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("what another process may be writing: %v", err)
	}
}

// The newest version can be loaded from a folder of versions that can't be written anymore.
func TestACopyThatIsOnlyRead(t *testing.T) {
	d := openDir(t, t.TempDir())
	write(t, d, "one")
	want := write(t, d, "two")
	c := Copy{Path: string(d.folder), ReadOnly: true}
	if v, err := c.Load(good); !v.Is(want) || string(v.Text) != "two" || err != nil {
		t.Errorf("%s is loaded, %v", v.Name(), err)
	}
	if err := c.Save(dated(Version{Number: 9})); err != nil {
		t.Error(err)
	}
	if v, err := c.Load(good); !v.Is(want) || err != nil {
		t.Errorf("%s is loaded after a save, %v", v.Name(), err)
	}
}

func put(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
