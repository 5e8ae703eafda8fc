package rulestore

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// lineLength is how many of its ancestors a version names. If a store has lost more than these, a
// node that has just started can't tell the store from another one.
const lineLength = 100

// Next returns a version that is based on this one. Its writer adds the text, the author and the
// reason.
func (v Version) Next() Version {
	if v.Number == 0 {
		return Version{}
	}
	line := append(v.line(), v.Name())
	return Version{Parent: v.Number, ParentHash: v.Hash, Line: strings.Join(line[max(0, len(line)-lineLength):], " ")}
}

// line returns the names of a version's ancestors. Versions written before lines existed know only
// their parent.
func (v Version) line() []string {
	if v.Line == "" && v.Parent > 0 {
		return []string{Version{Number: v.Parent, Hash: v.ParentHash}.Name()}
	}
	return strings.Fields(v.Line)
}

// descent says whether one version led to another, as far as known.
type descent uint8

const (
	stranger descent = iota // it didn't
	ancestor                // it did
	unknown                 // it is older than all known ancestors
)

// after tells whether an older version led to this one.
func (v Version) after(old Version) descent {
	line := v.line()
	i, found := slices.BinarySearchFunc(line, old.Number, func(name string, n int64) int {
		number, _, _ := strings.Cut(name, "-")
		m, _ := strconv.ParseInt(number, 10, 64)
		return cmp.Compare(m, n)
	})
	switch {
	case found && (line[i] == old.Name() || old.Hash == "" || !strings.Contains(line[i], "-")):
		return ancestor
	case i == 0 && !found && len(line) > 0:
		return unknown
	}
	return stranger
}
