package rulestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// Dir is a [Store] in a folder, for a single node. Close it after use.
type Dir struct {
	folder
	lock    *os.File
	writing sync.Mutex              // held while a version is written
	newest  atomic.Pointer[Version] // the newest version, without its text
	held    atomic.Int64            // number of the version in force on this node at the last beat
}

const lockName = "lock"

// OpenDir opens a folder of versions. If the folder doesn't exist, OpenDir creates it. Only one process at a time can
// have it open. The newest version must be intact.
func OpenDir(path string) (_ *Dir, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	d := &Dir{folder: folder(path)}
	if d.lock, err = lockFile(filepath.Join(path, lockName)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.lock.Close()
		}
	}()
	if err := d.sweep(0); err != nil {
		return nil, err
	}
	all, err := d.files()
	if err != nil {
		return nil, err
	}
	var newest Version
	for _, v := range all {
		if !v.Orphan {
			if newest, err = d.read(v, true); err != nil {
				return nil, err
			}
			break
		}
	}
	newest.Text = nil
	d.newest.Store(&newest)
	return d, nil
}

// Close closes the folder, so that another process can open it.
func (d *Dir) Close() error { return d.lock.Close() }

// Head returns the newest version.
func (d *Dir) Head(context.Context) (Version, error) { return *d.newest.Load(), nil }

// Get reads a version.
func (d *Dir) Get(_ context.Context, n int64) (Version, error) {
	return d.read(Version{Number: n}, true)
}

// Orphan reads an orphan.
func (d *Dir) Orphan(_ context.Context, n int64, hash string) (Version, error) {
	all, err := d.files()
	for _, v := range all {
		if v.Orphan && hash != "" && v.Number == n && strings.HasPrefix(v.Hash, hash) {
			return d.read(v, true)
		}
	}
	return Version{}, errors.Join(err, missing(n))
}

// List reads the first lines of versions: it returns versions without texts.
func (d *Dir) List(_ context.Context, before int64, limit int) (all []Version, err error) {
	names, err := d.files()
	if err != nil || limit < 1 {
		return nil, err
	}
	last := int64(0)
	for _, name := range names {
		if before > 0 && name.Number >= before {
			continue
		}
		if limit == 0 && name.Number < last {
			break
		}
		if !name.Orphan {
			limit, last = limit-1, name.Number
		}
		v, err := d.read(name, false)
		switch {
		case errors.Is(err, ErrNotFound):
			continue // the file was removed in the meantime
		case errors.Is(err, ErrDamaged):
			v = name // list it, too: the other versions are still good
			v.Message = err.Error()
		case err != nil:
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// read reads a version. If whole is false, it reads only the first line and doesn't check the hash.
func (d *Dir) read(want Version, whole bool) (Version, error) {
	v, err := readFile(d.file(want), whole)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Version{}, missing(want.Number)
	case err == nil && v.Number != want.Number:
		err = damaged(d.file(want), "its first line is of another version")
	}
	if errors.Is(err, ErrDamaged) {
		return v, fmt.Errorf("%w: put it back from a backup, or move it away to go on with the version before it", err)
	}
	v.Orphan = want.Orphan
	return v, err
}

// Append writes a version.
func (d *Dir) Append(_ context.Context, floor int64, v Version) (Version, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	head := *d.newest.Load()
	if head.Number != v.Parent || v.ParentHash != "" && v.ParentHash != head.Hash {
		return Version{}, conflict(v, head)
	}
	if held := d.held.Load(); held > head.Number {
		return Version{}, awaited(held)
	}
	all, err := d.files()
	if err != nil {
		return Version{}, err
	}
	v = dated(v)
	v.Number = max(head.Number, floor) + 1
	for _, o := range all { // an orphan's number isn't used again either
		if o.Orphan {
			v.Number = max(v.Number, o.Number+1)
		}
	}
	return v, d.write(v)
}

// PutBack writes a version or an orphan, unless it already exists.
func (d *Dir) PutBack(_ context.Context, v Version) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	v = dated(v)
	there, err := d.read(Version{Number: v.Number}, false)
	switch orphan := d.hasOrphan(v); {
	case err == nil && there.Is(v) || orphan && v.Orphan:
		return nil
	case v.Orphan:
	case err == nil || orphan:
		return taken(v)
	case !errors.Is(err, ErrNotFound):
		return err
	}
	return d.write(v)
}

func (d *Dir) hasOrphan(v Version) bool {
	_, err := os.Stat(d.file(Version{Number: v.Number, Hash: v.Hash, Orphan: true}))
	return err == nil
}

// write stores a version on disk before any node can learn of it. Callers hold the lock writing even during the I/O, so
// that no two versions get the same number.
func (d *Dir) write(v Version) error {
	if err := writeFile(d.file(v), v); err != nil {
		return err
	}
	if v.Text = nil; !v.Orphan && v.Number > d.newest.Load().Number {
		d.newest.Store(&v)
	}
	return nil
}

// Watch only waits until ctx is done, since no other process writes to the folder. [Follower.Publish] applies the
// versions that this process writes.
func (d *Dir) Watch(ctx context.Context, _ func(n int64)) { <-ctx.Done() }

// Beat records the version in force on this node.
func (d *Dir) Beat(_ context.Context, n Node, kept ...Version) (Pulse, error) {
	d.held.Store(n.RulesVersion)
	p := Pulse{Head: *d.newest.Load()}
	for _, v := range kept {
		there, err := d.read(Version{Number: v.Number}, false)
		switch {
		case err == nil && there.Is(v):
			p.Mine = InLine
		case d.hasOrphan(v):
			p.Mine = Orphaned
		default:
			p.Mine, p.Lost = Absent, append(p.Lost, v)
		}
	}
	return p, nil
}
