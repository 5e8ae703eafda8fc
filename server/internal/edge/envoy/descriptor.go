package envoy

import (
	"fmt"
	"slices"
	"strings"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
)

// entry is a descriptor as it is written, in a file or by an xDS server.
type entry struct {
	key, value                     string
	shadow, quota, share, detailed bool
	keyAt, shareAt                 *yaml.Node // where they stand; nil: no file has them
}

// rate is a rate_limit as it is written.
type rate struct {
	name, unit string
	perUnit    uint32
	unlimited  bool
	replaces   []other
	at, unitAt *yaml.Node
}

// other is a limit that one replaces.
type other struct {
	name string
	at   *yaml.Node
}

// above is what descriptors inherit.
type above struct {
	path     string
	label    string   // see limit
	patterns []string // see limit
}

// top is what the descriptors right below the domain inherit.
func (r *reader) top() above { return above{path: r.domain, label: r.domain} }

// deeper reports whether there may be descriptors below those above.
func (r *reader) deeper(n *yaml.Node, path string, up above) bool {
	if len(up.patterns) >= maxDepth {
		r.fail(n, path, "", "descriptors are nested more than %d deep", maxDepth)
		return false
	}
	return true
}

// place puts a descriptor into a level. It is nil if it can't be.
func (r *reader) place(e *entry, path string, into level, up above) (*descriptor, above) {
	switch {
	case e.key == "":
		r.fail(e.keyAt, path+".key", "", "is missing: a descriptor has a key, such as key: remote_address")
		return nil, above{}
	case strings.Contains(e.key, "*") && e.key != e.value: // gateways name a match by its pattern, in key and value
		r.fail(e.keyAt, path+".key", "put it into the value", "wildcards are for values, not for keys")
		return nil, above{}
	case e.share && !strings.Contains(e.value, "*"):
		r.fail(e.shareAt, path+".share_threshold", "", "is for values with a *: all that match it share one counter")
		return nil, above{}
	}
	d := &descriptor{path: up.path + "." + e.key}
	if e.value != "" {
		d.path += "_" + e.value
	}
	if !into.add(e.key, e.value, d) {
		r.fail(e.keyAt, path, "keep one of them", "the descriptor %q is there twice", clip(d.path))
		return nil, above{}
	}
	pattern := ""
	if e.share {
		pattern = e.value
	}
	// The values of a configuration may be keys of clients, and thousands: they are in no label unasked.
	label := up.label + "." + e.key
	if e.detailed && e.value != "" {
		label += "_" + e.value
	}
	return d, above{d.path, label, append(slices.Clone(up.patterns), pattern)}
}

// add adds a descriptor, unless there is one of this key and value.
func (l level) add(key, value string, d *descriptor) bool {
	c := l[key]
	if c == nil {
		c = &choices{}
		l[key] = c
	}
	if value == "" {
		if c.any != nil {
			return false
		}
		c.any = d
		return true
	}
	if c.exact[value] != nil {
		return false
	}
	if c.exact == nil {
		c.exact = map[string]*descriptor{}
	}
	c.exact[value] = d
	if strings.Contains(value, "*") {
		d.parts = strings.Split(value, "*")
		c.wild = append(c.wild, d)
	}
	return true
}

// limit gives a descriptor its limit, unless that can't be.
func (r *reader) limit(d *descriptor, e *entry, w rate, path string, here above) {
	number, known := rls.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(w.unit)]
	known = known && number != 0
	switch {
	case w.unlimited && known:
		r.fail(w.unitAt, path+".unit", "leave it out", "an unlimited rate_limit has no unit")
	case !w.unlimited && !known:
		r.fail(w.unitAt, path+".unit", "", "must be second, minute, hour, day, week, month or year, got %q", clip(w.unit))
	}
	var names []string
	for i, o := range w.replaces {
		switch {
		case o.name == "":
			r.fail(o.at, fmt.Sprintf("%s.replaces[%d].name", path, i), "", "is missing: name the limit that this one replaces")
		case o.name == w.name:
			r.fail(o.at, fmt.Sprintf("%s.replaces[%d].name", path, i), "", "a limit can't replace itself")
		}
		names = append(names, o.name)
	}
	l := &limit{wire: &rls.RateLimitResponse_RateLimit{Name: w.name}}
	if !w.unlimited {
		if !known {
			return
		}
		rule := here.label
		if w.name != "" {
			rule = r.domain + "." + w.name
		}
		var err error
		if l, err = newLimit(label(rule), w.name, w.perUnit, rls.RateLimitResponse_RateLimit_Unit(number)); err != nil {
			r.fail(w.at, path, "", "%v", err)
			return
		}
	}
	l.replaces, l.shadow, l.quota, l.patterns = names, e.shadow, e.quota, here.patterns
	l.soften(r.modes)
	d.limit = l
	r.config.limits++
}
