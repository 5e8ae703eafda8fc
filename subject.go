package weir

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/weirhq/weir/internal/pattern"
)

// dimension is one of the values that a rule counts by.
type dimension struct {
	kind     dimensionKind
	name     string // user, or of an attribute header:X-Tenant; without the number of segments
	segments uint8  // of a path: how many count
}

type dimensionKind uint8

const (
	byAPIKey dimensionKind = iota
	byUser
	byOrg
	byIP
	byMethod
	byEndpoint
	byTier
	byPath
	byAttr
)

var dimensionNames = []string{"api_key", "user", "org", "ip", "method", "endpoint", "tier", "path"}

// A client chooses its paths. What it can make counters of is bounded by these.
const (
	fewSegments = 2 // of a path that doesn't say how many count
	maxSegments = 8
	maxPrefix   = 128 // bytes; what is longer shares a counter
)

// dimensionsListed is private.Dimensions.
func dimensionsListed() []string {
	return append(slices.Clone(dimensionNames), "path:N", "header:NAME", "claim:NAME", "attr:NAME")
}

func parseDimension(s string) (dimension, error) {
	kind, name, _ := strings.Cut(s, ":")
	switch i := slices.Index(dimensionNames, s); {
	case s == "path":
		return dimension{byPath, s, fewSegments}, nil
	case i >= 0:
		return dimension{kind: dimensionKind(i), name: s}, nil
	case kind == "path" && len(name) == 1 && name[0] >= '1' && name[0] <= '0'+maxSegments:
		return dimension{byPath, kind, name[0] - '0'}, nil
	case kind == "path":
		return dimension{}, fmt.Errorf("must be path:1 to path:%d, for that many segments of the path, got %q", maxSegments, s)
	case name != "" && (kind == "header" || kind == "claim" || kind == "attr"):
		return dimension{kind: byAttr, name: s}, nil
	}
	return dimension{}, fmt.Errorf("must be one of %s, got %q", strings.Join(dimensionsListed(), ", "), s)
}

// subject appends the client that the rule counts: a bit for each value that was missing and
// replaced by the IP, in as many bytes as that takes, then the values, all but the last with their
// length. No two subjects of a rule have the same bytes, whatever the values hold. It reports false
// when the rule can't count the request.
func (rs *RuleSet) subject(r *rule, req *Request, m *match) bool {
	mark := len(m.subjects)
	m.subjects = append(m.subjects, 0)
	for range (len(r.by) - 1) / 8 {
		m.subjects = append(m.subjects, 0)
	}
	if r.keyOnly && req.APIKey != "" { // most rules, and what the loop below would do
		m.subjects = append(m.subjects, req.APIKey...)
		return true
	}
	for i, d := range r.by {
		last := i == len(r.by)-1
		switch d.kind {
		case byIP:
			m.appendIP(req, r.networks.or(rs.networks), last)
			continue
		case byPath: // apart, so that no check makes a string of it
			if p := m.prefix(d.segments); len(p) > 0 {
				appendValue(m, p, last)
				continue
			}
		default:
			if v := rs.value(r, d, req, m); v != "" {
				appendValue(m, v, last)
				continue
			}
		}
		if r.Missing != MissingIP {
			return false
		}
		m.subjects[mark+i/8] |= 1 << (i % 8)
		m.appendIP(req, r.networks.or(rs.networks), last)
	}
	return true
}

// dimensions are what the rule counts by.
func (r *Rule) dimensions() []string {
	if r.By == nil {
		return dimensionNames[byAPIKey : byAPIKey+1]
	}
	return r.By
}

// readSubject is private.ReadSubject.
func (r *Rule) readSubject(subject []byte) (values [][2]string) {
	by := r.dimensions()
	marks := max(1, (len(by)+7)/8)
	if r.Descriptor != nil || len(subject) < marks {
		return nil
	}
	rest, values := subject[marks:], make([][2]string, len(by))
	for i, name := range by {
		n := uint64(len(rest))
		if i < len(by)-1 {
			size := 0
			if n, size = binary.Uvarint(rest); size <= 0 || n > uint64(len(rest)-size) {
				return nil
			}
			rest = rest[size:]
		}
		if subject[i/8]>>(i%8)&1 == 1 {
			name = dimensionNames[byIP]
		}
		values[i], rest = [2]string{name, string(rest[:n])}, rest[n:]
	}
	if len(rest) > 0 {
		return nil
	}
	return values
}

func appendValue[V string | []byte](m *match, v V, last bool) {
	if !last {
		m.subjects = binary.AppendUvarint(m.subjects, uint64(len(v)))
	}
	m.subjects = append(m.subjects, v...)
}

func (rs *RuleSet) value(r *rule, d dimension, req *Request, m *match) string {
	switch d.kind {
	case byAPIKey:
		return req.APIKey
	case byUser:
		return req.User
	case byOrg:
		return req.Org
	case byMethod:
		return rs.countedMethod(req.Method)
	case byTier:
		return m.tier
	case byEndpoint:
		return rs.route(r, req, m)
	case byPath:
		return string(m.prefix(d.segments))
	}
	if req.Attr == nil {
		return ""
	}
	return req.Attr(d.name)
}

// route is the template that stands for the request's path: the rule's own, or
// else the most specific of any rule that matched. Paths without one share a
// name: one counter for each raw path would be a way around the limit.
func (rs *RuleSet) route(r *rule, req *Request, m *match) string {
	if r.template != "" {
		return r.template
	}
	var best *rule
	for _, i := range m.found {
		o := &rs.rules[i]
		if o.endpoint != nil && o.endpoint.MatchesMethod(req.Method) && (best == nil || o.endpoint.MoreSpecific(best.endpoint)) {
			best = o
		}
	}
	if best == nil {
		return "*"
	}
	return best.template
}

// longPrefix stands for all beginnings of paths that are too long. No path begins so.
var longPrefix = []byte("*")

// prefix is how the path begins, in the reading that is held against the rules and as far as so many
// segments go. A path that can be read in several ways is charged once for each beginning that those
// have: whichever the server takes, that one was charged.
func (m *match) prefix(segments uint8) []byte {
	if len(m.path) == 0 {
		return nil
	}
	end := 1 // of "/"
	for i := 1; i < len(m.path) && segments > 0; i++ {
		if m.path[i] == '/' {
			end = i
			segments--
		}
	}
	if end > maxPrefix {
		return longPrefix
	}
	return m.path[:end]
}

// countedMethod is what a request's method counts as: a common one, or one that the rules name, as itself, in
// capitals. All others share a name: whatever a server makes of an invented method, it gets no counter of its own.
func (rs *RuleSet) countedMethod(method string) string {
	switch method {
	case "", "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS": // as nearly all are
		return method
	}
	for _, known := range [][]string{pattern.Methods, rs.methods} {
		for _, m := range known {
			if strings.EqualFold(m, method) {
				return m
			}
		}
	}
	return "*"
}
