package rulefile

import (
	"errors"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
)

// locateErrors adds the problems that Compile found, with their places in the text. It leaves out those that may follow from
// known ones: problems in the same value, in a part of it, or in a value around it.
func (d *decoder) locateErrors(err error) {
	found, ok := errors.AsType[counter.Problems](err)
	if !ok {
		d.add(nowhere, "", "%v", err)
	}
	known := slices.Clone(d.misspelt)
	for _, p := range d.list {
		known = append(known, p.Path)
	}
	for _, p := range found {
		p.Path = d.listPath(p.Path)
		// A rule without numbers may lack those of a faulty tier.
		follows := func(from string) bool {
			return within(p.Path, from) || within(from, p.Path) || isRule(p.Path) && within(from, "tiers")
		}
		if slices.ContainsFunc(known, follows) {
			continue
		}
		at := p.Path
		if isRule(at) {
			at = d.ownNumbersPath(at) // faults in a rule's numbers are best shown at the numbers
		}
		d.add(d.find(at), p.Path, "%s", p.Text).Hint = d.hints[p.Path]
	}
}

// ownNumbersPath returns the path of a rule's own numbers, or the rule's path if it has none.
func (d *decoder) ownNumbersPath(rule string) string {
	for _, name := range []string{"limit", "limits", "params"} {
		if _, ok := d.places[join(rule, name)]; ok {
			return join(rule, name)
		}
	}
	return rule
}

// listPath replaces a list's name in a path by the name that the document uses: whitelist[0] for
// allow[0].
func (d *decoder) listPath(path string) string {
	list, rest, found := strings.Cut(path, "[")
	if name := d.listNames[List(list)]; found && name != "" {
		return name + "[" + rest
	}
	return path
}

// failAt adds a problem at a path.
func (d *decoder) failAt(path, format string, args ...any) *Problem {
	return d.add(d.find(path), path, format, args...)
}

// report returns a decoder to which problems with the parsed file can be added.
func (f *File) report() *decoder {
	d := *f.decoder
	d.problems = &problems{file: f.Name, ids: d.ids}
	return &d
}

// find returns the place of the value with a path, or of the nearest value around it.
func (d *decoder) find(path string) int {
	for ; path != ""; path = parent(path) {
		if at, ok := d.places[path]; ok {
			return at
		}
	}
	return d.src.begins[0]
}

// parent returns a path without its last step.
func parent(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }

// isRule reports whether a path is that of a whole rule.
func isRule(path string) bool {
	return strings.HasPrefix(path, "rules[") && strings.IndexByte(path, ']') == len(path)-1
}

// within reports whether a path is another one, or below it.
func within(path, other string) bool {
	rest, ok := strings.CutPrefix(path, other)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
