// Package watch reads files and follows their changes, whether a file is replaced by an editor's save, by a rename, or
// by the symlink swap of a Kubernetes ConfigMap.
package watch

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
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
	// settle is how long a file's content must stay the same before it counts as complete. An editor that saves in
	// place truncates the file first.
	settle = 20 * time.Millisecond
	// poll is the time between two looks at the file. They find changes without events, such as those on network file
	// systems, or behind a symlink into another folder.
	poll = 2 * time.Second
)

// File calls changed with the new content each time the file's content changes, until ctx is done. The first content is
// compared with last. If the file can't be read, File keeps the last content, and calls unreadable once each time that
// this begins. A value in now makes File look at once, and call unreadable again if needed. If the file has more than
// most bytes, changed gets one byte more than most. The folder may not exist yet. File returns an error only if it
// can't start to watch.
func File(ctx context.Context, path string, most int, last []byte, now <-chan struct{}, changed func([]byte), unreadable func(error)) error {
	read := func() ([]byte, error) { return Read(path, most) }
	// Watch the folder, not the file: a rename or swap replaces the file, and a watch on it would
	// follow the old one.
	return Dir(ctx, filepath.Dir(path), read, bytes.Equal, last, now, changed, unreadable)
}

// Dir is File for any content that the function read gets from a folder. It calls changed each time the result differs
// from the last one.
func Dir[T any](ctx context.Context, path string, read func() (T, error), same func(a, b T) bool, last T, now <-chan struct{}, changed func(T), unreadable func(error)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	defer w.Close()
	if err := w.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // polling finds a folder that is created later
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
			continue // it may have changed again in the meantime
		default:
			missing = false
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-now:
			missing = false
		case <-w.Errors: // events may be missing, so look now
		case <-w.Events:
		}
	}
}

// readStable reads until two successive reads return the same content.
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

// Read reads a regular file, or the regular file that a link leads to. It refuses anything else, because a pipe might
// never be written to, and a device might never end. If the file has more than most bytes, Read returns one byte more
// than most, so that the caller can tell.
func Read(path string, most int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe would otherwise wait for a writer
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

// Small is the largest size, in bytes, of a file of keys, certificates or tokens.
const Small = 4 << 20

// ReadSmall reads a regular file of keys, certificates or tokens. If the file is larger than Small, it returns an
// error.
func ReadSmall(path string) ([]byte, error) {
	text, err := Read(path, Small)
	if len(text) > Small {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("is larger than %d bytes", Small)}
	}
	return text, err
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	}
	return "a device or a socket"
}

// KeyPair reads a certificate and its key, in PEM.
func KeyPair(cert, key string) (tls.Certificate, error) {
	chain, err := ReadSmall(cert)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cert: %w", err)
	}
	secret, err := ReadSmall(key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("key: %w", err)
	}
	pair, err := tls.X509KeyPair(chain, secret)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cert: %s: %w", cert, err)
	}
	return pair, nil
}

// Authorities reads the certificates of certificate authorities, in PEM.
func Authorities(file string) (*x509.CertPool, error) {
	pem, err := ReadSmall(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}

// Bell wakes one goroutine, which receives from the channel. If the bell is rung several times before the goroutine
// receives, that counts as once.
type Bell chan struct{}

// NewBell creates a Bell.
func NewBell() Bell { return make(Bell, 1) }

// Ring wakes the goroutine. It doesn't block.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default: // it has already been rung
	}
}
