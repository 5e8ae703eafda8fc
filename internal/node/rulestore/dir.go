package rulestore

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Dir is a [Store] in a folder, for a single node. Each version is a file: the document below a
// first line with its author, time and reason. Close it after use.
type Dir struct {
	path string
	lock *os.File

	writing sync.Mutex // held while a version is written

	mu      sync.Mutex    // guards the fields below
	numbers []int64       // ascending
	newest  Version       // without its text
	orphans []Version     // numbers and hashes only
	changed chan struct{} // closed when a version is added
	node    *Node         // from the last beat; nil before the first
}

const (
	lockName  = "lock"
	tempName  = ".writing-"
	extension = ".yaml"
	mark      = "# weir "
)

// OpenDir opens a folder of versions and creates it if needed. Only one process at a time can open
// it. The newest version must be intact.
func OpenDir(path string) (_ *Dir, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	d := &Dir{path: path, changed: make(chan struct{})}
	if d.lock, err = lockFile(filepath.Join(path, lockName)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.lock.Close()
		}
	}()
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempName) { // left by a process that ended while it wrote
			if err := os.Remove(filepath.Join(path, e.Name())); err != nil {
				return nil, err
			}
		}
		name, is := strings.CutSuffix(e.Name(), extension)
		number, hash, orphan := strings.Cut(name, "-")
		v := Version{Hash: hash, Orphan: orphan}
		if v.Number, err = strconv.ParseInt(number, 10, 64); !is || err != nil || v.Number < 1 || d.file(v) != filepath.Join(path, e.Name()) {
			continue
		}
		if orphan {
			d.orphans = append(d.orphans, v)
		} else {
			d.numbers = append(d.numbers, v.Number)
		}
	}
	slices.Sort(d.numbers)
	if n := len(d.numbers); n > 0 {
		if d.newest, err = d.read(Version{Number: d.numbers[n-1]}, true); err != nil {
			return nil, err
		}
		d.newest.Text = nil
	}
	return d, nil
}

// Close lets another process open the folder.
func (d *Dir) Close() error { return d.lock.Close() }

func (d *Dir) file(v Version) string {
	name := strconv.FormatInt(v.Number, 10)
	if v.Orphan {
		name += "-" + v.Hash
	}
	return filepath.Join(d.path, name+extension)
}

func (d *Dir) head() Version {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.newest
}

// Head returns the newest version.
func (d *Dir) Head(context.Context) (Version, error) { return d.head(), nil }

// Get reads a version.
func (d *Dir) Get(_ context.Context, n int64) (Version, error) {
	return d.read(Version{Number: n}, true)
}

// Orphan reads an orphan.
func (d *Dir) Orphan(_ context.Context, n int64, hash string) (Version, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range d.orphans {
		if hash != "" && v.Number == n && strings.HasPrefix(v.Hash, hash) {
			return d.read(v, true)
		}
	}
	return Version{}, missing(n)
}

// List reads the first lines of versions.
func (d *Dir) List(_ context.Context, before int64, limit int) ([]Version, error) {
	d.mu.Lock()
	numbers, orphans := slices.Clone(d.numbers), slices.Clone(d.orphans)
	d.mu.Unlock()
	if limit < 1 {
		return nil, nil
	}
	var wanted []Version
	down := int64(0)
	for _, n := range slices.Backward(numbers) {
		if before > 0 && n >= before {
			continue
		}
		if len(wanted) == limit {
			down = wanted[limit-1].Number
			break
		}
		wanted = append(wanted, Version{Number: n})
	}
	for _, v := range orphans {
		if (before == 0 || v.Number < before) && v.Number >= down {
			wanted = append(wanted, v)
		}
	}
	sortVersions(wanted)
	all := wanted[:0]
	for _, v := range wanted {
		read, err := d.read(v, false)
		switch {
		case errors.Is(err, ErrNotFound):
			continue // it was removed meanwhile
		case errors.Is(err, ErrDamaged):
			read = v // the other versions are still good
			read.Message = err.Error()
		case err != nil:
			return nil, err
		}
		all = append(all, read)
	}
	return all, nil
}

// sortVersions sorts newest first, and puts orphans behind the version that has their number.
func sortVersions(all []Version) {
	slices.SortStableFunc(all, func(a, b Version) int {
		if a.Number != b.Number {
			return cmp.Compare(b.Number, a.Number)
		}
		if a.Orphan != b.Orphan {
			if a.Orphan {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.Hash, b.Hash)
	})
}

// header is the JSON in a file's first line. Before it come a mark and the hash of all that
// follows.
type header struct {
	about
	Number int64 `json:"number"`
}

// read reads a version. If whole is false, it reads the first line only and doesn't check the hash.
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

func readFile(path string, whole bool) (Version, error) {
	f, err := os.Open(path)
	if err != nil {
		return Version{}, err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	line, err := in.ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return Version{}, err
	}
	var h header
	rest, marked := bytes.CutPrefix(line, []byte(mark))
	sum, said, _ := bytes.Cut(rest, []byte(" "))
	if !marked || json.Unmarshal(said, &h) != nil || h.Number < 1 {
		return Version{}, damaged(path, "its first line isn't one that Weir wrote")
	}
	v := h.version(h.Number)
	if !whole {
		return v, nil
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return Version{}, err
	}
	if !bytes.Equal(sum, sumOf(said, text)) {
		return Version{}, damaged(path, "it isn't what was written")
	}
	return checked(v, text)
}

func sumOf(parts ...[]byte) []byte {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.AppendEncode(nil, h.Sum(nil))
}

func damaged(path, why string) error { return fmt.Errorf("%w: %s: %s", ErrDamaged, path, why) }

// Append writes a version.
func (d *Dir) Append(ctx context.Context, floor int64, v Version) (Version, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	head := d.head()
	if head.Number != v.Parent || v.ParentHash != "" && v.ParentHash != head.Hash {
		return Version{}, conflict(Version{Number: v.Parent, Hash: v.ParentHash}, head)
	}
	if nodes, _ := d.Nodes(ctx); len(nodes) > 0 && nodes[0].RulesVersion > head.Number {
		return Version{}, awaited(nodes[0].RulesVersion)
	}
	v = dated(v)
	v.Number = max(head.Number, floor)
	for _, o := range d.orphans {
		v.Number = max(v.Number, o.Number)
	}
	v.Number++
	return v, d.write(v)
}

// Restore puts a version back.
func (d *Dir) Restore(_ context.Context, v Version) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	v = dated(v)
	there, err := d.read(Version{Number: v.Number}, false)
	switch {
	case err == nil && there.Is(v):
		return nil
	case err == nil || d.hasOrphan(v):
		return taken(v)
	case !errors.Is(err, ErrNotFound):
		return err
	}
	return d.write(v)
}

// Keep keeps an orphan.
func (d *Dir) Keep(_ context.Context, v Version) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	v = dated(v)
	if there, err := d.read(Version{Number: v.Number}, false); err == nil && there.Is(v) || d.hasOrphan(v) {
		return nil
	}
	v.Orphan = true
	return d.write(v)
}

func (d *Dir) hasOrphan(v Version) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.orphans, v.Is)
}

// write stores a version before any node hears of it. The writing lock is held even during disk
// I/O, so that no two versions get one number.
func (d *Dir) write(v Version) error {
	if err := writeFile(d.path, d.file(v), v); err != nil {
		return err
	}
	v.Text = nil
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.Orphan {
		d.orphans = append(d.orphans, v)
		return nil
	}
	d.numbers = append(d.numbers, v.Number)
	slices.Sort(d.numbers)
	if v.Number > d.newest.Number {
		d.newest = v
	}
	close(d.changed)
	d.changed = make(chan struct{})
	return nil
}

func writeFile(dir, path string, v Version) error {
	said, err := json.Marshal(header{aboutOf(v), v.Number})
	if err != nil {
		return err
	}
	said = append(said, '\n')
	line := fmt.Appendf(nil, "%s%s %s", mark, sumOf(said, v.Text), said)
	return writeWhole(dir, path, append(line, v.Text...))
}

// writeWhole writes a file durably, and completely or not at all. Only this user may read it.
func writeWhole(dir, path string, text []byte) error {
	f, err := os.CreateTemp(dir, tempName) // creates it with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails harmlessly after the rename
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if err := syncDir(dir); err != nil {
		return errors.Join(err, os.Remove(path)) // its author is told that the write failed
	}
	return nil
}

// Watch reports what this process writes. No other process can write.
func (d *Dir) Watch(ctx context.Context, f func(n int64)) {
	last := d.head().Number
	for {
		d.mu.Lock()
		changed := d.changed
		d.mu.Unlock()
		if head := d.head().Number; head != last {
			last = head
			f(head)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Beat records this node. A folder that only this process writes loses nothing.
func (d *Dir) Beat(_ context.Context, n Node, _ ...Version) (Pulse, error) {
	n.Seen = time.Now()
	d.mu.Lock()
	d.node = &n
	d.mu.Unlock()
	p := Pulse{Head: d.head()}
	mine := Version{Number: n.RulesVersion, Hash: n.RulesHash}
	if p.Head.Is(mine) {
		p.Mine = InLine
	} else if there, err := d.read(mine, false); err == nil && there.Is(mine) {
		p.Mine = InLine
	} else if d.hasOrphan(mine) {
		p.Mine = Orphaned
	}
	return p, nil
}

// Nodes returns this node.
func (d *Dir) Nodes(context.Context) ([]Node, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.node == nil {
		return nil, nil
	}
	return []Node{*d.node}, nil
}
