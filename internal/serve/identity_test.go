package serve

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestTooManyKnownKeys aren't read into memory to find that out.
func TestTooManyKnownKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	_, err := openKnownKeys(path, slog.New(slog.DiscardHandler))
	if want := path + ": is too large: a file of known keys has at most 64 MiB"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
