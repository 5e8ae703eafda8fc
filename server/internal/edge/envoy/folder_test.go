package envoy_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// TestFolder checks that files may be in subfolders, and that the folder may be a link, as in envoyproxy/ratelimit. A
// file that envoyproxy/ratelimit would read but Weir doesn't is logged.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	for name, domain := range map[string]string{
		"top.yaml": "top", "team/a.yml": "a", "team/deeper/b.yaml": "b", // read
		"team/.c.yaml": "c", ".git/d.yaml": "d", "..data/e.yaml": "e", "team/f.conf": "f", // not read
	} {
		path := filepath.Join(dir, "real", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("domain: "+domain), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := envoy.New(weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{}), envoy.Options{Configured: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if _, err := s.Open(link, false); err != nil {
		t.Fatal(err)
	}
	if n := s.Source().Domains; n != 3 {
		t.Errorf("%d domains, want 3", n)
	}
	if want := "envoy configuration applied\" folder=" + link + " files=3 domains=3 limits=0"; !strings.Contains(log.String(), want) {
		t.Errorf("no %s in %s", want, &log)
	}
	file := filepath.Join(link, "top.yaml")
	for path, want := range map[string]string{
		file:                        "stat " + file + ": not a directory: name the folder that the file is in",
		filepath.Join(link, "none"): "stat " + filepath.Join(link, "none") + ": no such file or directory",
	} {
		if _, err := s.Open(path, false); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	if text := log.String(); !strings.Contains(text, filepath.Join(link, "team", "f.conf")) || strings.Contains(text, "data") {
		t.Error(text)
	}
	if _, err := s.Open(filepath.Join(dir, "none"), false); err == nil {
		t.Error("a folder that isn't there is opened")
	}
}
