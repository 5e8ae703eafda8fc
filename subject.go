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
	name     string // as in rules, such as user, path or header:X-Tenant
	segments uint8  // how many segments of the path count, for byPath
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

// Bounds on how many counters clients can create by inventing paths.
const (
	fewSegments = 2 // segments that count by default
	maxSegments = 8
	maxPrefix   = 128 // bytes; all longer prefixes share a counter
)

// dimensionsListed returns what a rule can count by, as rule files write it.
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

// subject appends the bytes that identify the client for this rule. They are unique to the client: first a bit for each value
// that is missing and replaced by the IP, rounded up to whole bytes, then the values, each except the last with its length in
// front. It returns false if the rule can't count the request.
func (rs *RuleSet) subject(r *rule, req *Request, m *match) bool {
	if r.keyOnly && req.APIKey != "" { // a fast path for most rules
		m.subjects = append(append(m.subjects, 0), req.APIKey...)
		return true
	}
	mark := len(m.subjects)
	for range max(1, (len(r.by)+7)/8) {
		m.subjects = append(m.subjects, 0)
	}
	for i, d := range r.by {
		last := i == len(r.by)-1
		switch d.kind {
		case byIP:
			m.appendIP(req, r.networks.or(rs.networks), last)
			continue
		case byPath: // without making a string, as value does
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

// dimensions returns the names of the dimensions that the rule counts by.
func (r *Rule) dimensions() []string {
	if r.By == nil {
		return dimensionNames[byAPIKey : byAPIKey+1]
	}
	return r.By
}

// readSubject returns the name and the value of each dimension that a subject was made from, or nil for other bytes.
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

// route returns the template that the request's path is counted as: the rule's own, or else that of the most specific rule that
// matches. All other paths share a counter: if each had its own, clients could get around the limit.
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

// longPrefix stands for all prefixes that are too long. No path begins with it.
var longPrefix = []byte("*")

// prefix returns the first segments of the path, in the reading of the path that is being matched.
func (m *match) prefix(segments uint8) []byte {
	if len(m.path) == 0 {
		return nil
	}
	end := 1 // keep at least the first "/"
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

// countedMethod returns a common method, or one that the rules name, in capitals. All other methods share a name, so that
// clients can't create counters by inventing methods.
func (rs *RuleSet) countedMethod(method string) string {
	switch method {
	case "", "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS": // the usual case
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
