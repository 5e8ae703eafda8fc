package envoy

import (
	"fmt"
	"slices"
	"strings"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
)

// descriptorSpec is a descriptor as written in a file or sent by an xDS server.
type descriptorSpec struct {
	key, value                     string
	shadow, quota, share, detailed bool
	keyAt, shareAt                 *yaml.Node // their positions; nil without a file
}

// limitSpec is a rate_limit as written.
type limitSpec struct {
	name, unit string
	perUnit    uint32
	unlimited  bool
	replaces   []replacedLimit
	at, unitAt *yaml.Node
}

type replacedLimit struct {
	name string
	at   *yaml.Node
}

// inherited is what a descriptor passes on to those below it.
type inherited struct {
	path     string
	label    string   // see limit
	patterns []string // see limit
}

func (r *reader) top() inherited { return inherited{path: r.domain, label: r.domain} }

func (r *reader) deeper(n *yaml.Node, path string, up inherited) bool {
	if len(up.patterns) >= maxDepth {
		r.fail(n, path, "", "descriptors are nested more than %d deep", maxDepth)
		return false
	}
	return true
}

// place adds a descriptor to a level. It returns nil if it can't.
func (r *reader) place(e *descriptorSpec, path string, into level, up inherited) (*descriptor, inherited) {
	switch {
	case e.key == "":
		r.fail(e.keyAt, path+".key", "", "is missing: a descriptor has a key, such as key: remote_address")
		return nil, inherited{}
	case strings.Contains(e.key, "*") && e.key != e.value: // gateways name a match by its pattern, in key and value
		r.fail(e.keyAt, path+".key", "put it into the value", "wildcards are for values, not for keys")
		return nil, inherited{}
	case e.share && !strings.Contains(e.value, "*"):
		r.fail(e.shareAt, path+".share_threshold", "", "is for values with a *: all that match it share one counter")
		return nil, inherited{}
	}
	d := &descriptor{path: up.path + "." + e.key}
	if e.value != "" {
		d.path += "_" + e.value
	}
	if !into.add(e.key, e.value, d) {
		r.fail(e.keyAt, path, "keep one of them", "the descriptor %q appears twice", clip(d.path))
		return nil, inherited{}
	}
	pattern := ""
	if e.share {
		pattern = e.value
	}
	// The configuration's values may be clients' keys, and numerous, so labels show them only on
	// request.
	label := up.label + "." + e.key
	if e.detailed && e.value != "" {
		label += "_" + e.value
	}
	return d, inherited{d.path, label, append(slices.Clone(up.patterns), pattern)}
}

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

func (r *reader) limit(d *descriptor, e *descriptorSpec, w limitSpec, path string, here inherited) {
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
