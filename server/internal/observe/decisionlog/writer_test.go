package decisionlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/private"
)

// stuck is a pipe that nothing reads from until it is released.
type stuck struct {
	bytes.Buffer
	release chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.release
	return s.Buffer.Write(p)
}

// A check never waits for a disk or a pipe: lines that can't be written are left out. A node that stops waits for only
// a moment.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &stuck{release: make(chan struct{})}
		b := newBed(t, start(out, "", Options{}), weir.Rules{Rules: []weir.Rule{orders}})
		for range 20 {
			for range 5000 {
				b.check(weir.Request{APIKey: "k", Method: "GET", Path: "/v1/orders/1"})
			}
			time.Sleep(time.Second)
		}
		before := time.Now()
		if err := b.log.Close(2 * time.Second); err == nil || time.Since(before) != 2*time.Second {
			t.Errorf("%v after %s", err, time.Since(before))
		}
		close(out.release)
		<-b.log.closed
		lines, leftOut := read(t, out.String())
		if refused := b.decisions("refused"); refused < 99_000 || uint64(len(lines))+leftOut["refused"] != refused || len(lines) > perReason {
			t.Errorf("%d lines and %d left out of %d", len(lines), leftOut["refused"], refused)
		}
	})
}

// narrow accepts as many bytes as it has room for, and then fails, like a full disk.
type narrow struct {
	bytes.Buffer
	room int
}

func (n *narrow) Write(p []byte) (int, error) {
	fits := min(n.room, len(p))
	n.room -= fits
	n.Buffer.Write(p[:fits])
	if fits < len(p) {
		return fits, errors.New("no space left on device")
	}
	return fits, nil
}

// A line that was cut off doesn't damage the next one, and counts as left out.
func TestTornLine(t *testing.T) {
	for room := range 700 { // from no room to two lines and more
		var told bytes.Buffer
		synctest.Test(t, func(t *testing.T) {
			out := &narrow{room: room}
			b := newBed(t, start(out, "", Options{Logger: slog.New(slog.NewTextHandler(&told, nil))}), weir.Rules{Rules: []weir.Rule{orders}})
			for i := range 7 {
				if i == 5 {
					out.room = 1 << 20
				}
				b.check(weir.Request{APIKey: "k", Method: "GET", Path: "/v1/orders/1"})
				synctest.Wait()
			}
			time.Sleep(time.Second)
			b.close()
			var whole []string
			for l := range strings.Lines(out.String()) {
				if json.Valid([]byte(l)) {
					whole = append(whole, l)
				}
			}
			lines, leftOut := read(t, strings.Join(whole, ""))
			if n := uint64(len(lines)) + leftOut["refused"]; n != 6 || strings.Count(out.String(), "\n") > len(whole)+1 {
				t.Errorf("room for %d: %d of 6 decisions:\n%s", room, n, out)
			}
		})
		if strings.Count(told.String(), "can't be written") != 1 || strings.Count(told.String(), "written again") != 1 {
			t.Fatalf("room for %d: %s", room, told.String())
		}
	}
}

// A torn line doesn't damage the next one after SIGHUP either, if the file wasn't moved.
func TestTornLineAndReopen(t *testing.T) {
	for _, moved := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "decisions")
		l, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		b := newBed(t, l, weir.Rules{Rules: []weir.Rule{orders}})
		if _, err := l.out.Write([]byte(`{"time":"2026`)); err != nil {
			t.Fatal(err)
		}
		l.torn = true
		if moved {
			if err := os.Rename(path, path+".1"); err != nil {
				t.Fatal(err)
			}
		}
		l.openAgain()
		private.Tell(b.limiter, t.Context(), &weir.Request{}, weir.Decision{Reason: weir.ReasonOverloaded})
		b.close()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		whole, found := strings.CutPrefix(string(text), "{\"time\":\"2026\n")
		if lines, _ := read(t, whole); found == moved || len(lines) != 1 {
			t.Errorf("moved: %v, log: %q", moved, text)
		}
	}
}

// A full disk is logged once and doesn't delay checks. Later, the log says how many decisions were left out.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.log")
	if err := os.Symlink("/dev/full", path); err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		l, err := Open(path, Options{Logger: slog.New(slog.NewTextHandler(&told, nil))})
		if err != nil {
			t.Fatal(err)
		}
		b := newBed(t, l, weir.Rules{Rules: []weir.Rule{orders}})
		for range 10 {
			for range 100 {
				b.check(weir.Request{APIKey: "k", Method: "GET", Path: "/v1/orders/1"})
			}
			time.Sleep(time.Second)
		}
		if l.Stats().Failures == 0 {
			t.Error("no write has failed")
		}
		if err := os.Remove(path); err != nil { // as an operator does to make room
			t.Fatal(err)
		}
		l.Reopen()
		synctest.Wait()
		b.close()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines, leftOut := read(t, string(text))
		if n := uint64(len(lines)) + leftOut["refused"]; n != b.decisions("refused") || n < 990 {
			t.Errorf("%d of %d decisions:\n%s", n, b.decisions("refused"), text)
		}
	})
	if strings.Count(told.String(), "can't be written") != 1 || !strings.Contains(told.String(), "no space left on device") {
		t.Errorf("told: %s", told.String())
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// After SIGHUP, the log writes a new file if the old one was moved, and appends if a file exists. If the file can't be
// opened, the old one stays in use.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	path, moved := filepath.Join(dir, "d.log"), filepath.Join(dir, "d.log.1")
	if err := os.WriteFile(path, []byte("{\"before\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		l, err := Open(path, Options{Logger: slog.New(slog.NewTextHandler(&told, nil))})
		if err != nil {
			t.Fatal(err)
		}
		b := newBed(t, l, weir.Rules{Rules: []weir.Rule{orders}})
		refuse := func() {
			b.check(weir.Request{APIKey: "k", Method: "GET", Path: "/v1/orders/1"})
			synctest.Wait()
		}
		refuse() // admitted
		refuse()
		if err := os.Rename(path, moved); err != nil {
			t.Fatal(err)
		}
		refuse()
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		l.Reopen()
		refuse()
		if !strings.Contains(told.String(), "the file that is open stays") {
			t.Errorf("told: %s", told.String())
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		l.Reopen()
		refuse()
		b.close()
	})
	for file, want := range map[string]int{moved: 4, path: 1} {
		if text, err := os.ReadFile(file); err != nil || bytes.Count(text, []byte("\n")) != want {
			t.Errorf("%s: %v\n%s", file, err, text)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "no", "such"), pipe} {
		if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// If a named pipe has no reader, that is logged, and the log goes on when the pipe has a reader again.
func TestAPipeWithoutAReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	told := make(chan string, 2)
	l, err := Open(path, Options{Logger: slog.New(slog.NewJSONHandler(teller(told), nil))})
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, l, weir.Rules{Rules: []weir.Rule{orders}})
	says := func(want string) {
		t.Helper()
		for {
			b.check(weir.Request{APIKey: "k", Method: "GET", Path: "/v1/orders/1"})
			select {
			case line := <-told:
				if !strings.Contains(line, want) {
					t.Fatalf("the log says %s, want %q", line, want)
				}
				return
			case <-time.After(time.Millisecond):
			}
		}
	}
	says("can't be written")
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	says("is written again")
	if err := l.Close(time.Minute); err != nil {
		t.Error(err)
	}
}

type teller chan string

func (t teller) Write(p []byte) (int, error) {
	t <- string(p)
	return len(p), nil
}
