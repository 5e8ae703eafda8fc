package rulestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"
)

// Copy is a folder in which a node keeps a copy of the store's rules, so that the node can start without the store. It
// isn't a store itself: the version that was saved last counts, whatever its number. Several processes may share the
// folder.
type Copy struct {
	Path string
	// ReadOnly is for a folder that must not be written to, such as that of a [Dir].
	ReadOnly bool
}

const (
	// copies is how many versions are kept: the last one, and earlier ones in case the last file is damaged or this
	// release can't read it.
	copies = 3
	// abandoned is the age of a temporary file that no process can still be writing.
	abandoned = time.Hour
)

// files returns the paths of the copies, newest first, and the number for the next copy.
func (c Copy) files() (paths []string, next int64, err error) {
	all, err := folder(c.Path).files()
	all = slices.DeleteFunc(all, func(v Version) bool { return v.Orphan })
	for _, v := range all {
		paths = append(paths, c.file(v.Number))
		next = max(next, v.Number)
	}
	return paths, next + 1, err
}

func (c Copy) file(n int64) string { return folder(c.Path).file(Version{Number: n}) }

// Load returns the newest version for which good returns nil. If there is none, it returns a version with number 0. The
// error says what is wrong with newer versions, or with the folder.
func (c Copy) Load(good func(Version) error) (Version, error) {
	paths, _, err := c.files()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return Version{}, nil
	}
	wrong := []error{err}
	for _, path := range paths {
		v, err := readFile(path, true)
		if err == nil {
			if err = good(v); err == nil {
				return v, errors.Join(wrong...)
			}
			err = fmt.Errorf("%s: %w", path, err)
		}
		wrong = append(wrong, err)
	}
	return Version{}, errors.Join(wrong...)
}

// Save stores a version so that it survives this process and a crash of the machine.
func (c Copy) Save(v Version) error {
	if c.ReadOnly {
		return nil
	}
	if err := os.MkdirAll(c.Path, 0o700); err != nil {
		return err
	}
	paths, next, err := c.files()
	if err != nil {
		return err
	}
	if len(paths) > 0 {
		if last, err := readFile(paths[0], true); err == nil && last.Is(v) {
			return nil
		}
	}
	if err := writeFile(c.file(next), v); err != nil {
		return err
	}
	for _, path := range paths[min(copies-1, len(paths)):] {
		err = errors.Join(err, remove(path))
	}
	return errors.Join(err, folder(c.Path).sweep(abandoned))
}
