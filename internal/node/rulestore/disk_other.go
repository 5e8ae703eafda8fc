//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package rulestore

import "os"

// lockFile opens the file without locking it, because this system has no flock. Other locks would outlive a process
// that was killed.
func lockFile(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) }

// syncDir does nothing, because not every system can sync folders.
func syncDir(string) error { return nil }
