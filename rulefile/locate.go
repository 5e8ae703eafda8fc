package rulefile

import (
	"errors"
	"strings"

	"github.com/weirhq/weir"
)

// hint keeps a guess for the case that Compile finds the value at a path to be wrong.
func (d *decoder) hint(path, text string) {
	d.hints[path] = text
}

// locateErrors notes what Compile found, where it was written. It leaves out
// what only follows from problems that are noted already.
func (d *decoder) locateErrors(err error) {
	var found weir.Problems
	if !errors.As(err, &found) {
		d.add(place{}, "", "%v", err)
		return
	}
	known := d.knownPaths()
	for _, p := range found {
		if known.explains(p.Path) {
			continue
		}
		at := d.find(p.Path)
		if isRule(p.Path) {
			// What is wrong with a rule's numbers is best seen at the numbers.
			for _, name := range []string{"limit", "limits", "params"} {
				if own, ok := d.places[join(p.Path, name)]; ok {
					at = own
				}
			}
		}
		d.add(at, p.Path, "%s", p.Text).Hint = d.hints[p.Path]
	}
}

// locateWarnings does the same for what Compile only warns of.
func (d *decoder) locateWarnings(found []weir.Problem) {
	d.warned.ids = d.ids
	for _, p := range found {
		d.warned.add(d.find(p.Path), p.Path, "%s", p.Text)
	}
}

// find is the place of the value that a path leads to, or of the nearest one around it.
func (d *decoder) find(path string) place {
	for ; path != ""; path = parent(path) {
		if at, ok := d.places[path]; ok {
			return at
		}
	}
	return place{1, 1}
}

// parent is a path without its last step.
func parent(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }

// isRule: the path leads to a rule as a whole.
func isRule(path string) bool {
	return strings.HasPrefix(path, "rules[") && strings.IndexByte(path, ']') == len(path)-1
}

// knownPaths are the paths of problems, and of everything around them.
type knownPaths struct {
	exact, around map[string]bool
}

func (d *decoder) knownPaths() knownPaths {
	k := knownPaths{map[string]bool{}, map[string]bool{}}
	note := func(path string) {
		k.exact[path] = true
		for ; path != ""; path = parent(path) {
			k.around[path] = true
		}
	}
	for _, p := range d.list {
		note(p.Path)
	}
	for _, path := range d.misspelt {
		note(path)
	}
	return k
}

// explains reports whether a problem at the path may be the consequence of one
// that is known: in the same value, in a part of it, or in what it is part of.
// A rule without numbers may be waiting for those of a tier.
func (k knownPaths) explains(path string) bool {
	if k.around[path] || isRule(path) && k.around["tiers"] {
		return true
	}
	for ; path != ""; path = parent(path) {
		if k.exact[path] {
			return true
		}
	}
	return false
}
