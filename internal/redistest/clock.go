package redistest

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

//go:embed clock/skew.c
var skew string

// Clock is a wrong time of day, for servers that are started with its Options.
type Clock struct{ library, file string }

// NewClock makes a Clock that is off by so much. It needs a C compiler.
func NewClock(tb testing.TB, off time.Duration) *Clock {
	tb.Helper()
	dir := tb.TempDir()
	c := &Clock{library: filepath.Join(dir, "skew.so"), file: filepath.Join(dir, "skew")}
	compiler := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", c.library, "-x", "c", "-")
	compiler.Stdin = strings.NewReader(skew)
	if out, err := compiler.CombinedOutput(); err != nil {
		tb.Fatalf("%v (make compiler installs one)\n%s", err, out)
	}
	c.Set(tb, off)
	return c
}

// Options are those of a server that goes by the clock.
func (c *Clock) Options() Options {
	return Options{
		Env: []string{"LD_PRELOAD=" + c.library, "SKEW_FILE=" + c.file},
		// Jemalloc's thread would sleep until a time that it takes from this clock, by the kernel's clock: not at all, if this
		// one is behind.
		Config: []string{"jemalloc-bg-thread no"},
	}
}

// Set makes the clock step: from now on it is off by so much.
func (c *Clock) Set(tb testing.TB, off time.Duration) {
	tb.Helper()
	f, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	// In place: servers have mapped the file.
	if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(off.Microseconds())), 0); err != nil {
		tb.Fatal(err)
	}
}
