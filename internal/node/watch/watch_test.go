//go:build unix

package watch_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/node/watch"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPipesAndDevicesAreRefused checks that pipes, devices and directories are refused at once. A plain read of one
// would block forever or never end.
func TestPipesAndDevicesAreRefused(t *testing.T) {
	folder := t.TempDir()
	pipe, device, link := filepath.Join(folder, "pipe"), filepath.Join(folder, "device"), filepath.Join(folder, "link")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{device: "/dev/zero", link: pipe} {
		if err := os.Symlink(to, from); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{pipe: "is a pipe: ", link: "is a pipe: ", folder: "is a directory: ", device: "is a device or a socket: "} {
		want = "read " + path + ": " + want + "it must be a regular file, or a link to one"
		if text, err := watch.Read(path, 10); len(text) > 0 || err == nil || err.Error() != want {
			t.Errorf("got %q, %v, want %s", text, err, want)
		}
	}
}

// TestOnlyTheBoundIsRead checks that a file that is far too large is read only up to the bound plus one byte, also
// through the links of a Kubernetes mount.
func TestOnlyTheBoundIsRead(t *testing.T) {
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "..data"), 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(folder, "rules.yaml")
	if err := os.Symlink("..data/rules.yaml", link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(link, []byte("rules"), 0o600); err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]int{5: 5, 10: 10, 11: 11, 1 << 40: 11} {
		if err := os.Truncate(link, size); err != nil {
			t.Fatal(err)
		}
		if text, err := watch.Read(link, 10); len(text) != want || err != nil || !strings.HasPrefix(string(text), "rules") {
			t.Errorf("of %d bytes: %d read, %v", size, len(text), err)
		}
	}
}

// TestAPipeInPlaceOfAFile checks that a watch reports a pipe that replaces the file, goes on with the next file, and
// ends when it should.
func TestAPipeInPlaceOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	put := func(make func(path string) error) {
		t.Helper()
		if err := make(path + ".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	put(func(path string) error { return syscall.Mkfifo(path, 0o600) })
	ctx, cancel := context.WithCancel(t.Context())
	changed, unreadable, ended := make(chan string, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		ended <- watch.File(ctx, path, 10, nil, nil, func(text []byte) { changed <- string(text) }, func(err error) { unreadable <- err })
	}()
	soon := time.After(time.Minute)
	select {
	case err := <-unreadable:
		if !strings.Contains(err.Error(), "is a pipe") {
			t.Error(err)
		}
	case <-soon:
		t.Fatal("the pipe was not told of")
	}
	put(func(path string) error { return os.WriteFile(path, []byte("rules"), 0o600) })
	select {
	case text := <-changed:
		if text != "rules" {
			t.Errorf("changed to %q", text)
		}
	case <-soon:
		t.Fatal("the file that replaced the pipe was not read")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
