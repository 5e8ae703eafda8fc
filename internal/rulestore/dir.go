package rulestore

import (
	"bufio"
	"bytes"
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

// Dir is a [Store] in a folder, for a node alone: a file for each version, which is the document
// under a first line that says who wrote it, and when and why. Close it.
type Dir struct {
	path string
	lock *os.File

	writing sync.Mutex // held while a version is written

	mu      sync.Mutex    // guards what follows
	numbers []int64       // rising
	changed chan struct{} // closed when numbers are added
	node    *Node         // that beats; nil: none yet
}

const (
	lockName  = "lock"
	tempName  = ".writing-"
	extension = ".yaml"
	mark      = "# weir "
)

// OpenDir opens a folder of versions, and makes it if it isn't there. One process at
// a time may have it. The newest version has to be whole.
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
		if strings.HasPrefix(e.Name(), tempName) { // of a process that ended while it wrote
			if err := os.Remove(filepath.Join(path, e.Name())); err != nil {
				return nil, err
			}
		}
		number, is := strings.CutSuffix(e.Name(), extension)
		if n, err := strconv.ParseInt(number, 10, 64); is && err == nil && n > 0 && d.file(n) == filepath.Join(path, e.Name()) {
			d.numbers = append(d.numbers, n)
		}
	}
	slices.Sort(d.numbers)
	if head := d.head(); head > 0 {
		if _, err := d.read(head, true); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Close lets another process have the folder.
func (d *Dir) Close() error { return d.lock.Close() }

func (d *Dir) file(n int64) string { return filepath.Join(d.path, strconv.FormatInt(n, 10)+extension) }

func (d *Dir) head() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.numbers) == 0 {
		return 0
	}
	return d.numbers[len(d.numbers)-1]
}

// Head is the number of the newest version.
func (d *Dir) Head(context.Context) (int64, error) { return d.head(), nil }

// Get reads a version.
func (d *Dir) Get(_ context.Context, n int64) (Version, error) { return d.read(n, true) }

// List reads the first lines of versions.
func (d *Dir) List(_ context.Context, before int64, limit int) ([]Version, error) {
	d.mu.Lock()
	numbers := slices.Clone(d.numbers)
	d.mu.Unlock()
	var all []Version
	for _, n := range slices.Backward(numbers) {
		if before > 0 && n >= before {
			continue
		}
		if len(all) >= limit {
			break
		}
		v, err := d.read(n, false)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// header is a file's first line, behind its mark and the sum of all that follows.
type header struct {
	about
	Number int64 `json:"number"`
}

// read reads a version, with its text or, unchecked, without.
func (d *Dir) read(n int64, whole bool) (Version, error) {
	f, err := os.Open(d.file(n))
	if errors.Is(err, fs.ErrNotExist) {
		return Version{}, missing(n)
	}
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
	if !marked || json.Unmarshal(said, &h) != nil || h.Number != n {
		return Version{}, d.damaged(n, "its first line isn't one that Weir wrote")
	}
	v := h.version(n)
	if !whole {
		return v, nil
	}
	if v.Text, err = io.ReadAll(in); err != nil {
		return Version{}, err
	}
	if !bytes.Equal(sum, sumOf(said, v.Text)) {
		return Version{}, d.damaged(n, "it isn't what was written")
	}
	return v, nil
}

func sumOf(parts ...[]byte) []byte {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.AppendEncode(nil, h.Sum(nil))
}

func (d *Dir) damaged(n int64, why string) error {
	return fmt.Errorf("%s is damaged: %s: put it back from a backup, or move it away to go on with the version before it", d.file(n), why)
}

// Append writes a version.
func (d *Dir) Append(ctx context.Context, floor int64, v Version) (Version, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	head := d.head()
	if head != v.Parent {
		return Version{}, conflict(v.Parent, head)
	}
	if nodes, _ := d.Nodes(ctx); len(nodes) > 0 && nodes[0].RulesVersion > head {
		return Version{}, awaited(nodes[0].RulesVersion)
	}
	v = dated(v)
	v.Number = max(head, floor) + 1
	return v, d.write(v)
}

// Restore puts a version back.
func (d *Dir) Restore(_ context.Context, v Version) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if head := d.head(); v.Number <= head {
		return notAbove(v.Number, head)
	}
	return d.write(dated(v))
}

// write makes a version last before anyone hears of it. The lock on writing is held, also across
// the disk's work: it is what keeps two versions from being the same one.
func (d *Dir) write(v Version) error {
	said, err := json.Marshal(header{aboutOf(v), v.Number})
	if err != nil {
		return err
	}
	said = append(said, '\n')
	line := fmt.Appendf(nil, "%s%s %s", mark, sumOf(said, v.Text), said)
	f, err := os.CreateTemp(d.path, tempName) // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // which it has no more when all went well
	_, err = f.Write(append(line, v.Text...))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), d.file(v.Number)); err != nil {
		return err
	}
	if err := syncDir(d.path); err != nil {
		return errors.Join(err, os.Remove(d.file(v.Number))) // who wrote it is told that it failed
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.numbers = append(d.numbers, v.Number)
	close(d.changed)
	d.changed = make(chan struct{})
	return nil
}

// Watch tells of what this process writes: nobody else does.
func (d *Dir) Watch(ctx context.Context, f func(n int64)) {
	last := d.head()
	for {
		d.mu.Lock()
		changed := d.changed
		d.mu.Unlock()
		if head := d.head(); head != last {
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

// Beat remembers this node.
func (d *Dir) Beat(_ context.Context, n Node) (int64, error) {
	n.Seen = time.Now()
	d.mu.Lock()
	d.node = &n
	d.mu.Unlock()
	return d.head(), nil
}

// Nodes is this node alone.
func (d *Dir) Nodes(context.Context) ([]Node, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.node == nil {
		return nil, nil
	}
	return []Node{*d.node}, nil
}
