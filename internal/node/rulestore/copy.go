package rulestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Copy is a folder in which a node keeps the rules of a store elsewhere, to start without that
// store. It isn't a store itself: the version that was saved last counts, whatever its number.
// Several processes may share it.
type Copy struct {
	Path string
	// ReadOnly is for a folder that must not be written, such as that of a [Dir].
	ReadOnly bool
}

// copies is how many versions are kept: the last one, and earlier ones in case its file is damaged
// or this release can't read it.
const copies = 3

func (c Copy) files() ([]int64, error) {
	entries, err := os.ReadDir(c.Path)
	var all []int64
	for _, e := range entries {
		number, is := strings.CutSuffix(e.Name(), extension)
		if n, err := strconv.ParseInt(number, 10, 64); is && err == nil && n > 0 && c.file(n) == filepath.Join(c.Path, e.Name()) {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	slices.Reverse(all)
	return all, err
}

func (c Copy) file(n int64) string {
	return filepath.Join(c.Path, strconv.FormatInt(n, 10)+extension)
}

// Load returns the newest version that good accepts, or one with number 0. The error has what is
// wrong with newer versions, or with the folder.
func (c Copy) Load(good func(Version) error) (Version, error) {
	all, err := c.files()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return Version{}, nil
	}
	wrong := []error{err}
	for _, n := range all {
		v, err := readFile(c.file(n), true)
		if err == nil {
			if err = good(v); err == nil {
				return v, errors.Join(wrong...)
			}
			err = fmt.Errorf("%s: %w", c.file(n), err)
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
	all, err := c.files()
	if err != nil {
		return err
	}
	next := int64(1)
	if len(all) > 0 {
		if last, err := readFile(c.file(all[0]), true); err == nil && last.Is(v) {
			return nil
		}
		next = all[0] + 1
	}
	if err := writeFile(c.Path, c.file(next), v); err != nil {
		return err
	}
	for i, n := range all {
		if i >= copies-1 {
			err = errors.Join(err, remove(c.file(n)))
		}
	}
	return errors.Join(err, c.sweep())
}

// abandoned is the age at which no process can still be writing a file.
const abandoned = time.Hour

// sweep removes files of processes that ended while they wrote.
func (c Copy) sweep() error {
	left, err := filepath.Glob(filepath.Join(c.Path, tempName+"*"))
	for _, path := range left {
		if info, stat := os.Stat(path); stat == nil && time.Since(info.ModTime()) > abandoned {
			err = errors.Join(err, remove(path))
		}
	}
	return err
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
