package pattern

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strings"
)

// Methods lists the methods that HTTP defines and that every server knows (RFC 9110 and, for PATCH, RFC 5789).
var Methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

// Endpoint is a parsed endpoint: a pattern in the syntax of net/http.ServeMux. The zero Endpoint is "/{$}".
type Endpoint struct {
	Method  string   // "" means any method
	Segs    []string // segments; "" is a wildcard
	Subtree bool     // the pattern also matches everything below
}

const wildcard = ""

// ParseEndpoint parses an endpoint such as "GET /v1/orders/{id}".
func ParseEndpoint(s string) (Endpoint, error) {
	var e Endpoint
	path := s
	if method, rest, ok := strings.Cut(s, " "); ok {
		e.Method, path = method, strings.TrimLeft(rest, " \t")
		if e.Method == "" || strings.ToUpper(e.Method) != e.Method {
			return e, fmt.Errorf("the method must be in capitals, as in %q", "GET /v1/orders/{id}")
		}
	}
	if !strings.HasPrefix(path, "/") {
		return e, errors.New(`must be a path that begins with "/", after an optional method: "GET /v1/orders/{id}"`)
	}
	names := map[string]bool{}
	segs := strings.Split(path[1:], "/")
	for i, seg := range segs {
		last, isWild := i == len(segs)-1, len(seg) > 1 && seg[0] == '{' && seg[len(seg)-1] == '}'
		name, rest := strings.CutSuffix(strings.TrimSuffix(strings.TrimPrefix(seg, "{"), "}"), "...")
		switch {
		case seg == "" && !last:
			return e, errors.New("has an empty segment: write single slashes")
		case seg == "{$}" && !last:
			return e, errors.New("{$} must be the last segment")
		case isWild && rest && !last:
			return e, fmt.Errorf("{%s...} must be the last segment", name)
		case seg == "{$}":
		case seg == "":
			e.Subtree = true
		case !isWild:
			if strings.ContainsAny(seg, "{}") {
				return e, fmt.Errorf("the segment %q mixes text and a wildcard: a wildcard is a whole segment, as in /orders/{id}", seg)
			}
			literal := decoded(seg)
			if literal == "." || literal == ".." || strings.ContainsAny(literal, "/\\?#\x00") {
				return e, fmt.Errorf("the segment %q is not a plain path segment", seg)
			}
			e.Segs = append(e.Segs, literal)
		case !identifier.MatchString(name):
			return e, fmt.Errorf("the wildcard %q must hold a name, as in {id}", seg)
		case names[name]:
			return e, fmt.Errorf("the wildcard {%s} appears twice", name)
		case rest:
			e.Subtree = true
		case len(names) == maxWildcards:
			return e, fmt.Errorf("has more than %d wildcards: write {rest...} for the last of them, or use endpoint_regex", maxWildcards)
		default:
			names[name] = true
			e.Segs = append(e.Segs, wildcard)
		}
	}
	return e, nil
}

// maxWildcards bounds how many ways Endpoints tries for one path: each wildcard may match an empty segment, or skip it.
const maxWildcards = 10

// decoded returns a segment of a pattern in the same spelling as in readings of a path.
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

// MatchesMethod reports whether the endpoint is for a method. GET includes HEAD, and the method "" matches every endpoint.
func (e *Endpoint) MatchesMethod(method string) bool {
	if e.Method == method || e.Method == "" || method == "" {
		return true
	}
	return len(e.Method) == len(method) && strings.EqualFold(e.Method, method) ||
		e.Method == "GET" && len(method) == 4 && strings.EqualFold(method, "HEAD")
}

// MoreSpecific reports whether e matches a strict subset of what f matches.
func (e *Endpoint) MoreSpecific(f *Endpoint) bool { return e.Within(f) && !f.Within(e) }

// Within reports whether f matches whatever e matches.
func (e *Endpoint) Within(f *Endpoint) bool {
	if f.Method != "" && f.Method != e.Method && !(f.Method == "GET" && e.Method == "HEAD") {
		return false
	}
	if len(e.Segs) < len(f.Segs) || (len(e.Segs) > len(f.Segs) || e.Subtree) && !f.Subtree {
		return false
	}
	for i, seg := range f.Segs {
		if seg != wildcard && seg != e.Segs[i] {
			return false
		}
	}
	return true
}

// Endpoints finds which of many endpoints match a path, in time that depends on the path's depth and not on how many endpoints
// there are. It ignores methods.
type Endpoints struct {
	segment string       // the segment that leads here, unless it is a wildcard
	literal []*Endpoints // the children whose segment isn't a wildcard, in a hash table with linear probing
	used    int          // how many elements of literal are set: at most half
	wild    *Endpoints   // the child for a wildcard
	exact   []int32      // ids of the endpoints that end here
	subtree []int32      // ids of the endpoints that match this path and everything below
}

// Add adds an endpoint.
func (t *Endpoints) Add(e *Endpoint, id int32) {
	for _, seg := range e.Segs {
		if seg != wildcard {
			t = t.addLiteral(seg)
			continue
		}
		if t.wild == nil {
			t.wild = &Endpoints{}
		}
		t = t.wild
	}
	if e.Subtree {
		t.subtree = append(t.subtree, id)
	} else {
		t.exact = append(t.exact, id)
	}
}

// addLiteral returns the child for a segment without a wildcard. If there is none, it adds one.
func (t *Endpoints) addLiteral(seg string) *Endpoints {
	if 2*t.used >= len(t.literal) {
		old := t.literal
		t.literal = make([]*Endpoints, 2*len(old)+2)
		for _, next := range old {
			if next != nil {
				*t.place([]byte(next.segment), hashOf(next.segment)) = next
			}
		}
	}
	place := t.place([]byte(seg), hashOf(seg))
	if *place == nil {
		*place = &Endpoints{segment: seg}
		t.used++
	}
	return *place
}

// place returns the element of t.literal for a segment. The element is nil if no endpoint has the segment.
func (t *Endpoints) place(seg []byte, hash uint64) **Endpoints {
	const golden = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
	i, _ := bits.Mul64(hash*golden, uint64(len(t.literal)))
	for {
		if next := t.literal[i]; next == nil || next.segment == string(seg) {
			return &t.literal[i]
		}
		if i++; i == uint64(len(t.literal)) {
			i = 0
		}
	}
}

// addToHash adds a byte to the hash of a segment. A simple hash is enough: clients can't choose which segments are in a table.
func addToHash(hash uint64, c byte) uint64 { return bits.RotateLeft64(hash, 5) ^ uint64(c) }

func hashOf(seg string) (hash uint64) {
	for i := range len(seg) {
		hash = addToHash(hash, seg[i])
	}
	return hash
}

// Find appends the ids of the endpoints that match a reading of a path. An id may be appended several times.
func (t *Endpoints) Find(path []byte, found []int32) []int32 { return t.find(path, 1, found) }

// find is Find for a node of the tree and the rest of the path, which starts at from and consists of segments, each
// followed by a slash.
func (t *Endpoints) find(path []byte, from int, found []int32) []int32 {
	for {
		if len(t.subtree) > 0 {
			found = append(found, t.subtree...)
		}
		if from < len(path) && path[from] == '/' {
			// Most servers ignore an empty segment, but in some servers an empty segment matches a wildcard. If there
			// are several empty segments in a row, it is enough to try the first one, because that finds every endpoint
			// that the others would find.
			if t.wild != nil {
				found = t.wild.find(path, from+1, found)
				slices.Sort(found)
				found = slices.Compact(found)
			}
			for from < len(path) && path[from] == '/' {
				from++
			}
		}
		if from == len(path) {
			//lint:ignore S1011 copying a few numbers one by one is faster
			for _, id := range t.exact {
				found = append(found, id)
			}
			return found
		}
		end, hash := from, uint64(0)
		for ; path[end] != '/'; end++ {
			hash = addToHash(hash, path[end])
		}
		var next *Endpoints
		if len(t.literal) > 0 {
			next = *t.place(path[from:end], hash)
		}
		from = end + 1
		switch {
		case t.wild == nil && next == nil:
			return found
		case t.wild == nil:
			t = next
		case next == nil:
			t = t.wild
		default:
			found = next.find(path, from, found)
			t = t.wild
		}
	}
}

// Ranks returns the rank of each endpoint. Of two endpoints, the more specific one comes first. If neither is more
// specific, the one that is listed first comes first. A nil endpoint stands for one that matches every path.
func Ranks(endpoints []*Endpoint) []int {
	endpoints = slices.Clone(endpoints)
	for i, e := range endpoints {
		if e == nil {
			endpoints[i] = &Endpoint{Subtree: true}
		}
	}
	above := make([]int, len(endpoints)) // for each endpoint, how many more specific endpoints have no rank yet
	for i, e := range endpoints {
		for _, o := range endpoints {
			if o.MoreSpecific(e) {
				above[i]++
			}
		}
	}
	ranks := make([]int, len(endpoints))
	for rank := range ranks {
		first := slices.Index(above, 0)
		above[first], ranks[first] = -1, rank
		for i, e := range endpoints {
			if above[i] > 0 && endpoints[first].MoreSpecific(e) {
				above[i]--
			}
		}
	}
	return ranks
}
