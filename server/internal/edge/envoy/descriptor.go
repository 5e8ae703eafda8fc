package envoy

import (
	"fmt"
	"slices"
	"strings"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Document is a configuration, as read from a file or received from an xDS server.
type Document struct {
	Domain      string
	Descriptors []Descriptor

	at *yaml.Node // the position of the domain; nil without a file, like the other positions
}

// Descriptor is a descriptor of a document.
type Descriptor struct {
	Key, Value                     string
	Shadow, Quota, Share, Detailed bool
	Limit                          *RateLimit // nil if it has none
	Metadata                       *structpb.Struct
	Descriptors                    []Descriptor

	path           string
	keyAt, shareAt *yaml.Node
}

// RateLimit is the rate_limit of a descriptor.
type RateLimit struct {
	Name, Unit string
	PerUnit    uint32
	Unlimited  bool
	Replaces   []replacedLimit

	path       string
	at, unitAt *yaml.Node
}

type replacedLimit struct {
	name string
	at   *yaml.Node
}

// inherited is what a descriptor passes on to its children.
type inherited struct {
	path     string   // domain.key_value.key_value
	label    string   // the same, for metrics
	patterns []string // as in limit
}

func (up inherited) with(e *Descriptor) inherited {
	here := inherited{path: up.path + "." + e.Key, label: up.label + "." + e.Key}
	if e.Value != "" {
		here.path += "_" + e.Value
		if e.Detailed { // not by default: values may be clients' keys, and there may be many
			here.label += "_" + e.Value
		}
	}
	pattern := ""
	if e.Share {
		pattern = e.Value
	}
	here.patterns = append(slices.Clone(up.patterns), pattern)
	return here
}

func (r *reader) deeper(n *yaml.Node, path string, depth int) bool {
	if depth >= maxDepth {
		r.fail(n, path, "", "descriptors are nested more than %d deep", maxDepth)
		return false
	}
	return true
}

func (r *reader) add(list []Descriptor, into level, up inherited) {
	for i := range list {
		e, d := &list[i], &descriptor{}
		here := up.with(e)
		switch {
		case e.Key == "":
			r.fail(e.keyAt, e.path+".key", "", "is missing: a descriptor has a key, such as key: remote_address")
			continue
		case strings.Contains(e.Key, "*") && e.Key != e.Value: // gateways use the pattern as both key and value
			r.fail(e.keyAt, e.path+".key", "put it into the value", "wildcards are for values, not for keys")
			continue
		case e.Share && !strings.Contains(e.Value, "*"):
			r.fail(e.shareAt, e.path+".share_threshold", "", "is for values with a *: all that match it share one counter")
			continue
		case !into.add(e.Key, e.Value, d):
			r.fail(e.keyAt, e.path, "keep one of them", "the descriptor %q appears twice", clip(here.path))
			continue
		}
		if e.Limit != nil {
			d.limit = r.limit(e, here)
		}
		if len(e.Descriptors) > 0 {
			d.below = level{}
			r.add(e.Descriptors, d.below, here)
		}
	}
}

func (l level) add(key, value string, d *descriptor) bool {
	c := l[key]
	if c == nil {
		c = &choices{exact: map[string]*descriptor{}}
		l[key] = c
	}
	if c.exact[value] != nil {
		return false
	}
	c.exact[value] = d
	if strings.Contains(value, "*") {
		d.value = value
		c.wild = append(c.wild, d)
	}
	return true
}

func (r *reader) limit(e *Descriptor, here inherited) *limit {
	w := e.Limit
	number, known := rls.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(w.Unit)]
	known = known && number != 0
	switch {
	case w.Unlimited && known:
		r.fail(w.unitAt, w.path+".unit", "leave it out", "an unlimited rate_limit has no unit")
	case !w.Unlimited && !known:
		r.fail(w.unitAt, w.path+".unit", "", "must be second, minute, hour, day, week, month or year, got %q", clip(w.Unit))
	}
	var names []string
	for i, o := range w.Replaces {
		switch {
		case o.name == "":
			r.fail(o.at, fmt.Sprintf("%s.replaces[%d].name", w.path, i), "", "is missing: name the limit that this one replaces")
		case o.name == w.Name:
			r.fail(o.at, fmt.Sprintf("%s.replaces[%d].name", w.path, i), "", "a limit can't replace itself")
		}
		names = append(names, o.name)
	}
	l := &limit{wire: &rls.RateLimitResponse_RateLimit{Name: w.Name}}
	if !w.Unlimited {
		if !known {
			return nil
		}
		rule := here.label
		if w.Name != "" {
			rule = r.domain + "." + w.Name
		}
		var err error
		if l, err = newLimit(label(rule), w.Name, w.PerUnit, rls.RateLimitResponse_RateLimit_Unit(number)); err != nil {
			r.fail(w.at, w.path, "", "%v", err)
			return nil
		}
	}
	l.replaces, l.shadow, l.quota, l.patterns, l.metadata = names, e.Shadow, e.Quota, here.patterns, e.Metadata
	l.soften(r.modes)
	r.config.limits++
	return l
}
