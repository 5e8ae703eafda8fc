//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package rulestore

import "os"

// lockFile locks nothing on this system: without flock, a lock would outlive a killed process.
func lockFile(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) }

// syncDir does nothing on this system: not every system can sync folders.
func syncDir(string) error { return nil }
