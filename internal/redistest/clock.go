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

// Clock makes servers see a wrong time of day. Start the servers with its Options.
type Clock struct{ library, file string }

// NewClock makes a Clock that differs from the true time by off. It needs a C compiler.
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

// Options returns the options for a server that uses the clock.
func (c *Clock) Options() Options {
	return Options{
		Env: []string{"LD_PRELOAD=" + c.library, "SKEW_FILE=" + c.file},
		// Jemalloc's background thread computes when to wake up by this clock, but sleeps by the kernel's clock. If
		// this clock is behind, the thread wouldn't sleep at all.
		Config: []string{"jemalloc-bg-thread no"},
	}
}

// Set changes the difference between the clock and the true time.
func (c *Clock) Set(tb testing.TB, off time.Duration) {
	tb.Helper()
	f, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	// Write in place: servers have mapped the file.
	if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(off.Microseconds())), 0); err != nil {
		tb.Fatal(err)
	}
}
