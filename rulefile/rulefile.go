package rulefile

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/lint"
)

// MaxSize is how many bytes a rule file may have.
const MaxSize = 4 << 20

// File is a parsed rule file.
type File struct {
	// Name is the file's name in messages.
	Name string
	// Rules is the document as it was written, without expired overrides.
	Rules weir.Rules
	// Set is the document compiled, ready for a [weir.Limiter].
	Set *weir.RuleSet
	// Warnings concern what is allowed but probably not meant, in the order of the file.
	Warnings []Problem
	// NextExpiry is when the next override expires, which changes what the text means. Zero means never.
	NextExpiry time.Time

	decoder *decoder // for the places of problems
}

// Load reads a rule file. If the file can be read but isn't a valid rule file, the error is [Problems].
func Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// One byte more than allowed shows that the file is too large.
	src, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, err
	}
	return Parse(path, src)
}

// Parse parses the text of a rule file. The name is only for messages. The error is [Problems]: everything
// that is wrong, in the order of the file.
func Parse(name string, src []byte) (*File, error) { return ParseAt(name, src, time.Now()) }

// ParseAt is Parse for another time, which determines the overrides that have expired.
func ParseAt(name string, src []byte, now time.Time) (*File, error) {
	r, err := read(name, src)
	if err != nil {
		return nil, err
	}
	return r.file(now)
}

// Layout returns what is wrong with the layout of a text: brackets, quotes, indentation. It is for other
// YAML files that couldn't be parsed, since YAML parsers say little about such faults.
func Layout(name string, src []byte) Problems {
	_, err := readTree(name, src)
	found, _ := errors.AsType[Problems](err)
	return found
}

// read parses and decodes a document. It returns an error if the text isn't YAML. Other problems are added
// to the decoder.
func read(name string, src []byte) (*decoder, error) {
	d, err := readTree(name, src)
	if err == nil {
		d.doc = d.document(d.root)
	}
	return d, err
}

// readTree parses a text into a tree.
func readTree(name string, src []byte) (*decoder, error) {
	list := &problems{file: name}
	if len(src) > MaxSize {
		list.add(nowhere, "", "is too large: a rule file has at most %d MiB", MaxSize>>20)
		return nil, list.sorted(&source{})
	}
	text := readSource(src, list)
	d := &decoder{problems: list, src: text, places: map[string]int{}, hints: map[string]string{}, listNames: map[List]string{}, expires: map[overrideID]time.Time{}}
	if !list.any() {
		d.root = parseTree(text, list)
	}
	if list.any() {
		return nil, list.sorted(text)
	}
	return d, nil
}

// file compiles the document, without overrides that have expired at now.
func (d *decoder) file(now time.Time) (*File, error) {
	doc, next := d.unexpired(now)
	var set *weir.RuleSet
	if d.withinBudget(&doc) {
		var err error
		if set, err = lint.Compile(doc); err != nil {
			d.locateErrors(err)
		}
	}
	if d.any() {
		return nil, d.sorted(d.src)
	}
	d.root = nil // only places are needed from now on
	f := &File{Name: d.problems.file, Rules: doc, Set: set, NextExpiry: next, decoder: d}
	warnings := f.report()
	warnings.warnOfTiers(&doc)
	for _, w := range lint.Warnings(doc, set) {
		warnings.failAt(d.listPath(w.Path), "%s", w.Text)
	}
	f.Warnings = warnings.sorted(d.src)
	return f, nil
}
