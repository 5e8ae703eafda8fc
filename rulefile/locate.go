package rulefile

import (
	"errors"
	"strings"

	"github.com/weirhq/weir/counter"
)

// locateErrors adds the problems that Compile found, with their places in the text. It leaves out
// those that follow from problems that are known already.
func (d *decoder) locateErrors(err error) {
	var found counter.Problems
	if !errors.As(err, &found) {
		d.add(nowhere, "", "%v", err)
		return
	}
	explained := d.explained()
	for _, p := range found {
		p.Path = d.listPath(p.Path)
		if explained(p.Path) {
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

// locateWarnings adds warnings with their places in the text, like locateErrors.
func (d *decoder) locateWarnings(found []counter.Problem) {
	d.warned.ids = d.ids
	for _, p := range found {
		p.Path = d.listPath(p.Path)
		d.warned.add(d.find(p.Path), p.Path, "%s", p.Text)
	}
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

// explained returns a function that reports whether a problem at a path may follow from a known
// one: in the same value, in a part of it, or in a value around it. A rule without numbers may lack
// those of a faulty tier.
func (d *decoder) explained() func(path string) bool {
	exact, around := map[string]bool{}, map[string]bool{} // paths of problems, and of everything around them
	note := func(path string) {
		exact[path] = true
		for ; path != ""; path = parent(path) {
			around[path] = true
		}
	}
	for _, p := range d.list {
		note(p.Path)
	}
	for _, path := range d.misspelt {
		note(path)
	}
	return func(path string) bool {
		if around[path] || isRule(path) && around["tiers"] {
			return true
		}
		for ; path != ""; path = parent(path) {
			if exact[path] {
				return true
			}
		}
		return false
	}
}
