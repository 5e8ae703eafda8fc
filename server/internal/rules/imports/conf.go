package imports

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"

	"github.com/weirhq/weir/internal/node/watch"
)

// Limits on a configuration. They are far above what people write.
const (
	MaxConf      = 16 << 20 // bytes of all files together
	maxConfFiles = 1000
	maxConfDepth = 32 // how deeply blocks and includes may be nested
)

// directive is a directive in nginx's configuration. An include is replaced by the directives of the included file.
type directive struct {
	name  string
	args  []string
	block []directive // nil if the directive has no block
	file  string
	line  int
}

func (d *directive) where() string { return fmt.Sprintf("%s:%d", filepath.Base(d.file), d.line) }

// arg returns the i-th argument, or "" if there is none.
func (d *directive) arg(i int) string {
	if i < len(d.args) {
		return d.args[i]
	}
	return ""
}

// confReader reads a configuration and all files that it includes.
type confReader struct {
	root  string // the folder to which paths of includes are relative
	stack []string
	bytes int
	files int
	lost  []Note // includes that couldn't be read
}

// confError returns an error about a problem in a file. The error never quotes the file, because it may contain
// secrets.
func confError(file string, line int, text string) error {
	return fmt.Errorf("%s:%d: %s", file, line, text)
}

// read parses a file. If text is nil, it reads the text from the file.
func (r *confReader) read(path string, text []byte, depth int) ([]directive, error) {
	if text == nil {
		var err error
		if text, err = watch.Read(path, MaxConf); err != nil {
			return nil, err
		}
	}
	if r.bytes += len(text); r.bytes > MaxConf {
		return nil, fmt.Errorf("%s: %w: with what it includes, a configuration has at most %d MiB", path, errTooLarge, MaxConf>>20)
	}
	if r.files++; r.files > maxConfFiles {
		return nil, fmt.Errorf("%s: %w: a configuration includes at most %d files", path, errTooLarge, maxConfFiles)
	}
	if at := strings.IndexByte(string(text), 0); at >= 0 {
		return nil, confError(path, 1+strings.Count(string(text[:at]), "\n"), "is no text file")
	}
	r.stack = append(r.stack, path)
	defer func() { r.stack = r.stack[:len(r.stack)-1] }()
	tokens := crossplane.Lex(strings.NewReader(string(text)))
	defer func() {
		for range tokens { // read all remaining tokens, so that the lexer's goroutine ends
		}
	}()
	return r.block(tokens, path, depth, true)
}

// block parses directives up to the end of a block or of the file.
func (r *confReader) block(tokens <-chan crossplane.NgxToken, path string, depth int, top bool) (list []directive, err error) {
	if depth > maxConfDepth {
		return nil, confError(path, 1, fmt.Sprintf("blocks and includes are nested more than %d deep", maxConfDepth))
	}
	list = []directive{} // not nil, even if the block is empty
	var d *directive
	line := 1
	for t := range tokens {
		line = t.Line
		special := !t.IsQuoted && (t.Value == "{" || t.Value == "}" || t.Value == ";")
		switch {
		case t.Error != nil:
			return nil, confError(path, t.Line, "is not nginx's syntax: is a brace, a quote or a semicolon missing?")
		case !t.IsQuoted && strings.HasPrefix(t.Value, "#"):
		case d == nil && special && t.Value == "}" && !top:
			return list, nil
		case d == nil && special:
			return nil, confError(path, t.Line, "has a brace or a semicolon with nothing before it")
		case d == nil:
			d = &directive{name: t.Value, file: path, line: t.Line}
		case !special:
			d.args = append(d.args, t.Value)
		case t.Value == "}":
			return nil, confError(path, t.Line, "has a directive that no semicolon ends")
		default:
			if t.Value == "{" {
				if d.block, err = r.block(tokens, path, depth+1, false); err != nil {
					return nil, err
				}
			}
			if d.name == "include" && d.block == nil {
				more, err := r.include(d, depth)
				if err != nil {
					return nil, err
				}
				list = append(list, more...)
			} else {
				list = append(list, *d)
			}
			d = nil
		}
	}
	if d != nil || !top {
		return nil, confError(path, line, "ends too early: is a brace, a quote or a semicolon missing?")
	}
	return list, nil
}

// include parses the files that a directive includes. Like nginx, it does so in the order of their names. For each file
// that can't be read, it adds a note.
func (r *confReader) include(d *directive, depth int) (list []directive, err error) {
	pattern := d.arg(0)
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(r.root, pattern)
	}
	names, err := filepath.Glob(pattern)
	if err != nil || d.arg(0) == "" {
		return nil, confError(d.file, d.line, "include: must be a file, or a pattern of files")
	}
	lost := func(name, why string) {
		r.lost = append(r.lost, Note{Where: d.where(), Differs: true, Text: fmt.Sprintf("includes %s, which %s: limits in it are missing here", clip(name), why)})
	}
	if len(names) == 0 && !strings.ContainsAny(pattern, "*?[") {
		lost(d.arg(0), "isn't there")
	}
	for _, name := range names {
		if slices.Contains(r.stack, name) {
			return nil, confError(d.file, d.line, "includes itself, by way of "+filepath.Base(name))
		}
		more, err := r.read(name, nil, depth+1)
		if _, unreadable := errors.AsType[*fs.PathError](err); unreadable {
			lost(name, "can't be read")
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}
