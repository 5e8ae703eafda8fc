package weir

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// endpoint is a parsed pattern of net/http.ServeMux.
type endpoint struct {
	method  string   // "" is any
	segs    []string // "" is a wildcard
	subtree bool     // also everything below
}

const wildcard = ""

func parseEndpoint(s string) (endpoint, error) {
	var e endpoint
	path := s
	if method, rest, ok := strings.Cut(s, " "); ok {
		e.method, path = method, strings.TrimLeft(rest, " \t")
		if e.method == "" || strings.ToUpper(e.method) != e.method {
			return e, fmt.Errorf("the method must be in capitals, as in %q", "GET /v1/orders/{id}")
		}
	}
	if !strings.HasPrefix(path, "/") {
		return e, errors.New(`must be a path that begins with "/", after an optional method: "GET /v1/orders/{id}"`)
	}
	names := map[string]bool{}
	segs := strings.Split(path[1:], "/")
	for i, seg := range segs {
		last := i == len(segs)-1
		name, isWild := strings.CutPrefix(seg, "{")
		switch {
		case seg == "":
			if !last {
				return e, errors.New("has an empty segment: write single slashes")
			}
			e.subtree = true
			continue
		case !isWild || !strings.HasSuffix(seg, "}"):
			if strings.ContainsAny(seg, "{}") {
				return e, fmt.Errorf("the segment %q mixes text and a wildcard: a wildcard is a whole segment, as in /orders/{id}", seg)
			}
			literal := decoded(seg)
			if literal == "." || literal == ".." || strings.ContainsAny(literal, "/\\?#\x00") {
				return e, fmt.Errorf("the segment %q is not a plain path segment", seg)
			}
			e.segs = append(e.segs, literal)
			continue
		}
		name = strings.TrimSuffix(name, "}")
		rest := false
		if name == "$" {
			if !last {
				return e, errors.New("{$} must be the last segment")
			}
			continue
		}
		if name, rest = strings.CutSuffix(name, "..."); rest && !last {
			return e, fmt.Errorf("{%s...} must be the last segment", name)
		}
		if !identifier.MatchString(name) {
			return e, fmt.Errorf("the wildcard %q must hold a name, as in {id}", seg)
		}
		if names[name] {
			return e, fmt.Errorf("the wildcard {%s} appears twice", name)
		}
		names[name] = true
		if rest {
			e.subtree = true
			continue
		}
		if e.segs = append(e.segs, wildcard); len(names) > maxWildcards {
			return e, fmt.Errorf("has more than %d wildcards: write {rest...} for the last of them, or use endpoint_regex", maxWildcards)
		}
	}
	return e, nil
}

// maxWildcards bounds how often a trie is searched for one path: an empty segment may be a wildcard's or nobody's.
const maxWildcards = 10

// decoded is a pattern's segment as readings of a path spell it.
func decoded(seg string) string {
	for text := unescape(nil, []byte(seg), decodeText); ; {
		next := unescape(nil, text, decodeAll)
		if bytes.Equal(next, text) {
			return string(text)
		}
		text = next
	}
}

var identifier = regexp.MustCompile(`^[\pL_][\pL\p{Nd}_]*$`)

// matchesMethod: a rule for GET is a rule for HEAD, and a request that doesn't say is any.
func (e *endpoint) matchesMethod(method string) bool {
	if e.method == method || e.method == "" || method == "" {
		return true
	}
	return len(e.method) == len(method) && strings.EqualFold(e.method, method) ||
		e.method == "GET" && len(method) == 4 && strings.EqualFold(method, "HEAD")
}

// moreSpecific: e matches a strict subset of what f matches.
func (e *endpoint) moreSpecific(f *endpoint) bool { return e.within(f) && !f.within(e) }

func (e *endpoint) within(f *endpoint) bool {
	if f.method != "" && f.method != e.method && !(f.method == "GET" && e.method == "HEAD") {
		return false
	}
	if len(e.segs) < len(f.segs) || (len(e.segs) > len(f.segs) || e.subtree) && !f.subtree {
		return false
	}
	for i, seg := range f.segs {
		if seg != wildcard && seg != e.segs[i] {
			return false
		}
	}
	return true
}

// trie finds the rules whose endpoint matches a path, in time that depends on
// the path's depth and not on how many rules there are.
type trie struct {
	literal map[string]*trie
	wild    *trie
	exact   []int32 // rules that end here
	subtree []int32 // rules for here and below
}

func (t *trie) add(e *endpoint, rule int32) {
	for _, seg := range e.segs {
		next := t.wild
		if seg != wildcard {
			next = t.literal[seg]
		}
		if next == nil {
			next = &trie{}
			switch {
			case seg == wildcard:
				t.wild = next
			case t.literal == nil:
				t.literal = map[string]*trie{seg: next}
			default:
				t.literal[seg] = next
			}
		}
		t = next
	}
	if e.subtree {
		t.subtree = append(t.subtree, rule)
	} else {
		t.exact = append(t.exact, rule)
	}
}

// find appends the rules that match the rest of a reading: its segments, with a slash behind each.
func (t *trie) find(rest []byte, found []int32) []int32 {
	for {
		if len(t.subtree) > 0 {
			found = append(found, t.subtree...)
		}
		if len(rest) > 0 && rest[0] == '/' {
			// An empty segment is nothing to most servers, and enough for a wildcard of others. Of several in a row, trying the
			// first is enough: whatever a later one leads to, this one does, too.
			if t.wild != nil {
				found = t.wild.find(rest[1:], found)
				slices.Sort(found) // several ways lead to a rule
				found = slices.Compact(found)
			}
			rest = bytes.TrimLeft(rest, "/")
		}
		if len(rest) == 0 {
			return append(found, t.exact...)
		}
		end := 0
		for rest[end] != '/' {
			end++
		}
		next := t.literal[string(rest[:end])]
		rest = rest[end+1:]
		switch {
		case t.wild == nil && next == nil:
			return found
		case t.wild == nil:
			t = next
		case next == nil:
			t = t.wild
		default:
			found = next.find(rest, found)
			t = t.wild
		}
	}
}

// prefixes finds which of many strings are a prefix of another, in time that
// depends on how many lengths they have.
type prefixes struct {
	at      map[string][]int32
	lengths []int
}

func (p *prefixes) add(prefix string, id int32) {
	if p.at == nil {
		p.at = map[string][]int32{}
	}
	p.at[prefix] = append(p.at[prefix], id)
	if i, ok := slices.BinarySearch(p.lengths, len(prefix)); !ok {
		p.lengths = slices.Insert(p.lengths, i, len(prefix))
	}
}

func findPrefixes[T string | []byte](p *prefixes, s T, found []int32) []int32 {
	for _, n := range p.lengths {
		if n > len(s) {
			break
		}
		if ids := p.at[string(s[:n])]; len(ids) > 0 {
			found = append(found, ids...)
		}
	}
	return found
}

// regexPrefix is the text that every match of an expression over readings
// begins with, and whether having that prefix is all that the expression asks for.
func regexPrefix(expr string) (prefix string, whole bool) {
	re, err := syntax.Parse(expr, syntax.Perl|syntax.FoldCase|syntax.DotNL)
	if err != nil {
		return "", false
	}
	subs := []*syntax.Regexp{re.Simplify()}
	if subs[0].Op == syntax.OpConcat {
		subs = subs[0].Sub
	}
	anchored := len(subs) > 0 && subs[0].Op == syntax.OpBeginText
	if anchored {
		subs = subs[1:]
		if len(subs) > 0 && subs[0].Op == syntax.OpLiteral {
			prefix = string(appendFolded(nil, []byte(string(subs[0].Rune))))
			subs = subs[1:]
		}
	}
	if len(subs) > 0 && subs[0].Op == syntax.OpStar && subs[0].Sub[0].Op == syntax.OpAnyChar {
		subs = subs[1:]
		if len(subs) > 0 && subs[0].Op == syntax.OpEndText {
			subs = subs[1:]
		}
	}
	return prefix, len(subs) == 0
}

// keyPatterns finds which of many patterns match a key: an exact key, a prefix
// (sk_prod_*), or a star elsewhere. Only the last kind costs time by its number.
type keyPatterns struct {
	exact    map[string][]int32
	prefixed prefixes
	globs    []glob
}

type glob struct {
	pattern string
	id      int32
}

func (k *keyPatterns) add(pattern string, id int32) {
	switch star := strings.IndexByte(pattern, '*'); {
	case star < 0:
		if k.exact == nil {
			k.exact = map[string][]int32{}
		}
		k.exact[pattern] = append(k.exact[pattern], id)
	case star == len(pattern)-1:
		k.prefixed.add(pattern[:star], id)
	default:
		k.globs = append(k.globs, glob{pattern, id})
	}
}

// find appends the ids of all patterns that match the key.
func (k *keyPatterns) find(key string, found []int32) []int32 {
	if len(k.exact) > 0 {
		found = append(found, k.exact[key]...)
	}
	found = findPrefixes(&k.prefixed, key, found)
	for _, g := range k.globs {
		if matchGlob(g.pattern, key) {
			found = append(found, g.id)
		}
	}
	return found
}

// first is the lowest id whose pattern matches the key, or -1.
func (k *keyPatterns) first(key string) int32 {
	unbounded := compared(math.MinInt)
	return k.firstWithin(key, math.MaxInt32, &unbounded)
}

// firstWithin is first for ids below another one, and for as long as the search may go on.
func (k *keyPatterns) firstWithin(key string, below int32, c *compared) int32 {
	best := below
	simple := keyPatterns{exact: k.exact, prefixed: k.prefixed}
	c.add(2 + len(k.prefixed.lengths))
	var few [16]int32
	for _, id := range simple.find(key, few[:0]) {
		best = min(best, id)
	}
	for _, g := range k.globs { // in the order of their ids
		if g.id >= best || !c.add(2) {
			break
		}
		if head, _, _ := strings.Cut(g.pattern, "*"); strings.HasPrefix(key, head) && c.add(len(g.pattern)+len(key)) && matchGlob(g.pattern, key) {
			best = g.id
		}
	}
	if best == below {
		return -1
	}
	return best
}

// matchGlob: * stands for any characters, everything else for itself.
func matchGlob(pattern, s string) bool {
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

// accessList is an allow or a deny list.
type accessList struct {
	keys     keyPatterns
	nets     map[netip.Prefix]string // as inIPv6 has them
	lengths  []int                   // of nets
	patterns []string
}

// add takes an entry, and returns the range that it is, if it isn't a pattern of keys.
func (a *accessList) add(pattern string) (netip.Prefix, error) {
	pattern = strings.TrimSpace(pattern)
	a.patterns = append(a.patterns, pattern)
	net, err := netip.ParsePrefix(pattern)
	if err != nil {
		addr, err := netip.ParseAddr(pattern)
		if err != nil {
			if host, _, _ := strings.Cut(pattern, "/"); looksLikeAddress(host) {
				return net, fmt.Errorf("%q is neither a key nor an IP range: write ranges as 203.0.113.0/24 or 2001:db8::/32", pattern)
			}
			a.keys.add(pattern, int32(len(a.patterns)-1))
			return net, nil
		}
		net = netip.PrefixFrom(addr.Unmap().WithZone(""), addr.Unmap().BitLen())
	}
	if net.Addr().Is4In6() && net.Bits() >= 96 {
		net = netip.PrefixFrom(net.Addr().Unmap(), net.Bits()-96)
	}
	if a.nets == nil {
		a.nets = map[netip.Prefix]string{}
	}
	wide := inIPv6(net)
	a.nets[wide] = pattern
	if !slices.Contains(a.lengths, wide.Bits()) {
		a.lengths = append(a.lengths, wide.Bits())
	}
	return net, nil
}

// looksLikeAddress: what is meant for an address must not silently become a pattern that no key matches.
func looksLikeAddress(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return strings.Count(s, ".") >= 2 && strings.Trim(s, "0123456789.*") == "" || strings.Count(s, ":") >= 2 && strings.Trim(s, "0123456789abcdefABCDEF:.*") == ""
}

// inIPv6 is a range as one of IPv6 addresses, among which those of IPv4 have a place.
func inIPv6(n netip.Prefix) netip.Prefix {
	ip := n.Addr()
	return netip.PrefixFrom(netip.AddrFrom16(ip.As16()), n.Bits()+128-ip.BitLen()).Masked()
}

// match returns the pattern that matches the key or covers the address, or "".
func (a *accessList) match(key string, ip netip.Addr) string {
	if p := a.matchKey(key); p != "" || len(a.nets) == 0 || !ip.IsValid() {
		return p
	}
	return a.matchNet(inIPv6(netip.PrefixFrom(ip, ip.BitLen())))
}

// matchNet returns the pattern that covers a range, or "".
func (a *accessList) matchNet(net netip.Prefix) string {
	for _, n := range a.lengths {
		if n > net.Bits() || n < 96 && net.Addr().Is4In6() { // a range of IPv6 addresses is for those alone
			continue
		}
		wider, _ := net.Addr().Prefix(n)
		if pattern := a.nets[wider]; pattern != "" {
			return pattern
		}
	}
	return ""
}

// matchWithin is matchKey for as long as the search may go on.
func (a *accessList) matchWithin(key string, c *compared) string {
	if id := a.keys.firstWithin(key, math.MaxInt32, c); id >= 0 {
		return a.patterns[id]
	}
	return ""
}

// matchKey returns the pattern that matches the key, or "".
func (a *accessList) matchKey(key string) string {
	if key == "" {
		return ""
	}
	unbounded := compared(math.MinInt)
	return a.matchWithin(key, &unbounded)
}
