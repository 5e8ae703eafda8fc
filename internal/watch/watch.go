// Package watch follows a file as people and machines change it: an editor's
// save, a rename over it, the symlink swap of a Kubernetes ConfigMap.
package watch

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long a file must stay the same before it is taken for whole: a plain save truncates first.
	settle = 20 * time.Millisecond
	// poll finds what no event told: network file systems, a symlink into another folder.
	poll = 2 * time.Second
)

// File calls changed with the new content each time a file's content differs
// from last, until ctx is done. A file that can't be read for a moment is left
// alone; unreadable is told once each time it begins. A value in now has it looked at at once, and one that can't be read
// told again. It returns an error only if watching can't begin.
func File(ctx context.Context, path string, last []byte, now <-chan struct{}, changed func([]byte), unreadable func(error)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	defer w.Close()
	// The folder, not the file: a rename or a swap replaces the file, and a watch on it would follow the old one.
	if err := w.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	missing := false
	for {
		text, err := readStable(ctx, path)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !missing {
				unreadable(err)
			}
			missing = true
		case !bytes.Equal(text, last):
			last, missing = text, false
			changed(text)
			continue // it may have changed again meanwhile
		default:
			missing = false
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-now:
			missing = false
		case <-w.Errors: // lost events; the next look at the file is all that matters
		case <-w.Events:
		}
	}
}

// readStable reads a file until two readings, a moment apart, agree.
func readStable(ctx context.Context, path string) ([]byte, error) {
	before, err := os.ReadFile(path)
	for err == nil {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(settle):
		}
		var after []byte
		if after, err = os.ReadFile(path); err == nil && bytes.Equal(before, after) {
			return after, nil
		}
		before = after
	}
	return nil, err
}
