//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package rulestore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lockFile locks a file. The kernel releases the lock when the process ends, even if the process is killed.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("%s is in use by another process: give each node a folder of its own, or let them share a Redis", filepath.Dir(path))
	}
	return nil, fmt.Errorf("locking %s: %w", path, err)
}

// syncDir syncs a folder to disk, so that the names of new files survive a crash.
func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
