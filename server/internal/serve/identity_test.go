package serve

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestTooManyKnownKeys checks that a file of known keys that is too large is rejected without reading all of it.
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

// A pipe without a writer in place of a key or a certificate is an error, and doesn't block the start.
func TestKeysInAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	jwt := func(j JWT) error {
		_, _, err := (&Identity{JWT: &j}).load(t.Context(), slog.New(slog.DiscardHandler))
		return err
	}
	_, cert := (&Config{TLSCert: pipe, TLSKey: pipe}).tls("http")
	for name, err := range map[string]error{
		"identity.jwt.secret_file":     jwt(JWT{SecretFile: pipe}),
		"identity.jwt.public_key_file": jwt(JWT{PublicKeyFile: pipe}),
		"--tls-cert":                   cert,
	} {
		if err == nil || !strings.HasPrefix(err.Error(), name+": read "+pipe+": is a pipe") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 1<<40); err != nil {
		t.Fatal(err)
	}
	if err := jwt(JWT{SecretFile: large}); err == nil || !strings.Contains(err.Error(), "is larger than") {
		t.Errorf("a large file: %v", err)
	}
}
