// Package watch follows a file as people and machines change it: an editor's
// save, a rename over it, the symlink swap of a Kubernetes ConfigMap.
package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
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
// told again. Of a file that has more than most bytes, changed gets one more than that. The folder may come later. It returns an
// error only if watching can't begin.
func File(ctx context.Context, path string, most int, last []byte, now <-chan struct{}, changed func([]byte), unreadable func(error)) error {
	read := func() ([]byte, error) { return Read(path, most) }
	// The folder, not the file: a rename or a swap replaces the file, and a watch on it would follow the old one.
	return Dir(ctx, filepath.Dir(path), read, bytes.Equal, last, now, changed, unreadable)
}

// Dir is File for something that is read from a folder in some way: changed is called each time that what was read
// isn't the same as last.
func Dir[T any](ctx context.Context, path string, read func() (T, error), same func(a, b T) bool, last T, now <-chan struct{}, changed func(T), unreadable func(error)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	defer w.Close()
	if err := w.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // one that comes later is found by polling
		return fmt.Errorf("watching %s: %w", path, err)
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	missing := false
	for {
		found, err := readStable(ctx, read, same)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !missing {
				unreadable(err)
			}
			missing = true
		case !same(found, last):
			last, missing = found, false
			changed(found)
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
		case <-w.Errors: // lost events; the next look is all that matters
		case <-w.Events:
		}
	}
}

// readStable reads until two readings, a moment apart, agree.
func readStable[T any](ctx context.Context, read func() (T, error), same func(a, b T) bool) (found T, err error) {
	before, err := read()
	for err == nil {
		select {
		case <-ctx.Done():
			return found, ctx.Err()
		case <-time.After(settle):
		}
		var after T
		if after, err = read(); err == nil && same(before, after) {
			return after, nil
		}
		before = after
	}
	return found, err
}

// Read reads a regular file, or what a link leads to. All else is refused: nobody may ever write to a pipe, and a device
// may never end. Of a file that has more than most bytes it returns one more than that, so that the reader can tell.
func Read(path string, most int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // to open a pipe would wait for a writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("is " + kind(info.Mode()) + ": it must be a regular file, or a link to one")}
	}
	return io.ReadAll(io.LimitReader(f, int64(most)+1))
}

// Small is how large a file of keys, certificates or tokens may be, in bytes.
const Small = 4 << 20

// ReadSmall reads a regular file of keys, certificates or tokens, as Read does. One that is too large is an error.
func ReadSmall(path string) ([]byte, error) {
	text, err := Read(path, Small)
	if len(text) > Small {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("is larger than %d bytes", Small)}
	}
	return text, err
}

// kind names what isn't a regular file.
func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	}
	return "a device or a socket"
}
