package rulestore

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// lineLength is how many of the versions before it a version names. If a store has lost more than these, a node that
// has just started can't tell it from another store.
const lineLength = 100

// Next is a version that is based on this one. Its writer adds the text, and whose it is.
func (v Version) Next() Version {
	if v.Number == 0 {
		return Version{}
	}
	line := append(v.line(), v.Name())
	return Version{Parent: v.Number, ParentHash: v.Hash, Line: strings.Join(line[max(0, len(line)-lineLength):], " ")}
}

// line are the names of the versions that led to it. Of one that was written before versions had a line, the parent is known.
func (v Version) line() []string {
	if v.Line == "" && v.Parent > 0 {
		return []string{Version{Number: v.Parent, Hash: v.ParentHash}.Name()}
	}
	return strings.Fields(v.Line)
}

// descent is what is known of whether a version led to another.
type descent uint8

const (
	stranger descent = iota // it didn't
	ancestor                // it did
	unknown                 // it is older than all that are known to have led to it
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
