//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package rulestore

import "os"

// lockFile locks nothing here: without flock, a lock would outlive a process that is killed.
func lockFile(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) }

// syncDir does nothing: folders can't be synced everywhere.
func syncDir(string) error { return nil }
