package pattern

import (
	"math"
	"slices"
	"strings"
)

// Keys finds which of many patterns match a key. A pattern is an exact key, a prefix such as sk_prod_*, or a text with
// an asterisk elsewhere. Only the time for patterns of the last kind grows with their number.
type Keys struct {
	exact    map[string][]int32
	prefixed Prefixes
	globs    []glob
}

type glob struct {
	pattern string
	id      int32
}

// Add adds a pattern. If First or FirstWithin will be called, add patterns in ascending order of their ids.
func (k *Keys) Add(pattern string, id int32) {
	switch star := strings.IndexByte(pattern, '*'); {
	case star < 0:
		add(&k.exact, pattern, id)
	case star == len(pattern)-1:
		k.prefixed.Add(pattern[:star], id)
	default:
		k.globs = append(k.globs, glob{pattern, id})
	}
}

// Empty reports whether there are no patterns.
func (k *Keys) Empty() bool { return len(k.exact)+len(k.prefixed.lengths)+len(k.globs) == 0 }

// Find appends the ids of all patterns that match the key.
func (k *Keys) Find(key string, found []int32) []int32 {
	found = k.findSimple(key, found)
	for _, g := range k.globs {
		if MatchGlob(g.pattern, key) {
			found = append(found, g.id)
		}
	}
	return found
}

// findSimple is Find for exact keys and prefixes only.
func (k *Keys) findSimple(key string, found []int32) []int32 {
	return FindPrefixes(&k.prefixed, key, append(found, k.exact[key]...))
}

// Budget is the number of bytes of patterns and keys that a search may still look at. A search that exceeds its budget
// stops, and may not have found everything.
type Budget int

// Spend subtracts n bytes from the budget, and reports whether it allows them. A nil Budget is unlimited.
func (b *Budget) Spend(n int) bool {
	if b == nil {
		return true
	}
	*b -= Budget(n)
	return *b >= 0
}

// First returns the lowest id of a pattern that matches the key, or -1.
func (k *Keys) First(key string) int32 { return k.FirstWithin(key, math.MaxInt32, nil) }

// FirstWithin is like First, but returns only ids lower than below, and stops when the budget is used up. The key may
// itself be a pattern. The pattern's asterisk then counts as an ordinary character, which only another pattern's
// asterisk matches. So if a pattern matches another pattern, it matches all keys that the other one matches.
func (k *Keys) FirstWithin(key string, below int32, b *Budget) int32 {
	best := below
	b.Spend(2 + len(k.prefixed.lengths))
	var few [16]int32
	for _, id := range k.findSimple(key, few[:0]) {
		best = min(best, id)
	}
	for _, g := range k.globs {
		if g.id >= best || !b.Spend(2) {
			break
		}
		if head, _, _ := strings.Cut(g.pattern, "*"); strings.HasPrefix(key, head) && b.Spend(len(g.pattern)+len(key)) && MatchGlob(g.pattern, key) {
			best = g.id
		}
	}
	if best == below {
		return -1
	}
	return best
}

// MatchGlob reports whether a pattern matches a text. An asterisk stands for any characters, and every other character
// for itself.
func MatchGlob(pattern, s string) bool {
	head, tail, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == s
	}
	if !strings.HasPrefix(s, head) {
		return false
	}
	s = s[len(head):]
	for {
		part, rest, more := strings.Cut(tail, "*")
		if !more {
			return strings.HasSuffix(s, part)
		}
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s, tail = s[i+len(part):], rest
	}
}

// Prefixes finds which of many prefixes a text starts with. The time depends on how many different lengths the prefixes
// have.
type Prefixes struct {
	at      map[string][]int32
	lengths []int
}

// Add adds a prefix.
func (p *Prefixes) Add(prefix string, id int32) {
	add(&p.at, prefix, id)
	if i, ok := slices.BinarySearch(p.lengths, len(prefix)); !ok {
		p.lengths = slices.Insert(p.lengths, i, len(prefix))
	}
}

func add(ids *map[string][]int32, to string, id int32) {
	if *ids == nil {
		*ids = map[string][]int32{}
	}
	(*ids)[to] = append((*ids)[to], id)
}

// FindPrefixes appends the ids of all prefixes that s starts with.
func FindPrefixes[T string | []byte](p *Prefixes, s T, found []int32) []int32 {
	for _, n := range p.lengths {
		if n > len(s) {
			break
		}
		found = append(found, p.at[string(s[:n])]...)
	}
	return found
}
