package rulestore

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// folder is the path of a folder of versions. Each version is a file. Its first line has the author, the time and the
// reason, and the document follows.
type folder string

const (
	tempName  = ".writing-"
	extension = ".yaml"
	mark      = "# weir "
)

// file returns the path of a version's file. The file's name has the version's number and, for an orphan, its hash.
func (f folder) file(v Version) string { return filepath.Join(string(f), fileName(v)) }

func fileName(v Version) string {
	name := strconv.FormatInt(v.Number, 10)
	if v.Orphan {
		name += "-" + v.Hash
	}
	return name + extension
}

// files returns the versions that the names of files show: numbers, and hashes of orphans. They are sorted as in
// [Store.List].
func (f folder) files() (all []Version, err error) {
	entries, err := os.ReadDir(string(f))
	for _, e := range entries {
		name, _ := strings.CutSuffix(e.Name(), extension)
		number, hash, orphan := strings.Cut(name, "-")
		v := Version{Hash: hash, Orphan: orphan}
		if v.Number, _ = strconv.ParseInt(number, 10, 64); v.Number > 0 && fileName(v) == e.Name() {
			all = append(all, v)
		}
	}
	sortVersions(all)
	return all, err
}

// header is the JSON in a file's first line. In front of it are a mark and the hash of everything that follows.
type header struct {
	Version
	Number int64 `json:"number"`
}

// readFile reads a version. If whole is false, it reads only the first line and doesn't check the hash.
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
	v := h.Version
	if v.Number = h.Number; !whole {
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

func sumOf(said, text []byte) []byte {
	sum := sha256.Sum256(append(bytes.Clone(said), text...))
	return hex.AppendEncode(nil, sum[:])
}

func damaged(path, why string) error { return fmt.Errorf("%w: %s: %s", ErrDamaged, path, why) }

func writeFile(path string, v Version) error {
	said, err := json.Marshal(header{v, v.Number})
	if err != nil {
		return err
	}
	said = append(said, '\n')
	line := fmt.Appendf(nil, "%s%s %s", mark, sumOf(said, v.Text), said)
	return writeWhole(path, append(line, v.Text...))
}

// writeWhole writes a file durably. After a crash, the file is either complete or missing. Only this user may read it.
func writeWhole(path string, text []byte) error {
	dir := filepath.Dir(path)
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
		return errors.Join(err, os.Remove(path)) // the author learns that the write failed, so the version must not exist
	}
	return nil
}

// sweep removes temporary files of processes that ended while they were writing. It removes those that haven't changed
// for at least the given time.
func (f folder) sweep(idle time.Duration) error {
	entries, err := os.ReadDir(string(f))
	for _, e := range entries {
		info, stat := e.Info()
		if strings.HasPrefix(e.Name(), tempName) && stat == nil && time.Since(info.ModTime()) >= idle {
			err = errors.Join(err, remove(filepath.Join(string(f), e.Name())))
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
