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

// Copy is a folder in which a node keeps the rules of a store elsewhere, for a start without it. It
// is no store: the version that was saved last counts, whatever its number. Processes may share it.
type Copy struct {
	Path string
	// ReadOnly is for a folder, also that of a [Dir], that can only be read, if at all.
	ReadOnly bool
}

// copies is how many versions are kept: the last, and others in case its file is damaged, or this Weir can't read it.
const copies = 3

// files are the numbers of the files there are, in the order in which they were saved, the last first.
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

// Load returns the version that was saved last and is good. Its number is 0 if there is none. What is wrong
// with those after it, or with the folder, comes beside it.
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

// Save keeps a version, so that it survives this process and the machine's fall.
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

// abandoned is the age of a file that no process can still be writing.
const abandoned = time.Hour

// sweep removes what processes left behind that ended while they wrote.
func (c Copy) sweep() error {
	left, err := filepath.Glob(filepath.Join(c.Path, tempName+"*"))
	for _, path := range left {
		if info, stat := os.Stat(path); stat == nil && time.Since(info.ModTime()) > abandoned {
			err = errors.Join(err, remove(path))
		}
	}
	return err
}

// remove removes a file, unless another process has.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
