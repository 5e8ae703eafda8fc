package envoy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

// Config is an immutable set of limits in envoyproxy/ratelimit's format, in a form that is quick to search.
type Config struct {
	domains   map[string]level
	anyDomain bool // requests that carry their own limits may be of any domain
	limits    int  // number of limits
}

// Domains returns the number of domains.
func (c *Config) Domains() int { return len(c.domains) }

// level has the descriptors directly below a domain or another descriptor, by their keys.
type level map[string]*choices

type choices struct {
	exact map[string]*descriptor // by value; "" is the key of the descriptor without a value
	wild  []*descriptor          // descriptors whose values have wildcards, in the order of the file
}

type descriptor struct {
	value string // the value as written, if it has wildcards
	limit *limit // nil if it has none
	below level
}

type limit struct {
	// hard refuses requests. It is nil if the limit is unlimited. soft counts without refusing. It is for requests with
	// several descriptors in quota_mode, which are refused only if all of these are exhausted. It is nil without
	// quota_mode.
	hard, soft *counter.Policy
	wire       *rls.RateLimitResponse_RateLimit // the limit as responses show it
	shadow     bool
	quota      bool
	replaces   []string // names of the limits that this one replaces
	patterns   []string // for each key of the descriptor, the pattern that replaces its value in the counter's subject, or ""
	metadata   *structpb.Struct
}

func (l *limit) unlimited() bool { return l.hard == nil }

func (l *limit) closed() bool { return l.wire.RequestsPerUnit == 0 }

// units are the lengths of the protocol's units of time. As in envoyproxy/ratelimit, months have 30 days, years have
// 365 days, and weeks start on Thursdays, because the Unix epoch was a Thursday.
var units = map[rls.RateLimitResponse_RateLimit_Unit]time.Duration{
	rls.RateLimitResponse_RateLimit_SECOND: time.Second,
	rls.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	rls.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	rls.RateLimitResponse_RateLimit_DAY:    day,
	rls.RateLimitResponse_RateLimit_WEEK:   7 * day,
	rls.RateLimitResponse_RateLimit_MONTH:  30 * day,
	rls.RateLimitResponse_RateLimit_YEAR:   365 * day,
}

const day = 24 * time.Hour

// counterName is the name of all counters of descriptors. The subject of a counter identifies its descriptor, so the
// descriptor keeps its counter when its limit changes.
const counterName = "envoy"

func newLimit(rule, name string, perUnit uint32, unit rls.RateLimitResponse_RateLimit_Unit) (*limit, error) {
	// A policy needs at least one token. If the limit is 0, charge makes each request ask for one token more than it
	// would need.
	p, err := counter.Define(counter.Definition{
		Name: rule, CountedAs: counterName, CountRefused: true,
		Limit: counter.Limit{Algorithm: counter.FixedWindow, Count: int64(max(perUnit, 1)), Window: units[unit]},
	})
	if err != nil {
		return nil, err
	}
	return &limit{hard: p, wire: &rls.RateLimitResponse_RateLimit{Name: name, RequestsPerUnit: perUnit, Unit: unit}}, nil
}

// soften sets the policies of a limit. The limit's modes must be known by then.
func (l *limit) soften(global Modes) {
	if l.unlimited() {
		return
	}
	l.quota = l.quota || global.Quota
	l.hard = l.hard.With(func(d *counter.Definition) { d.Shadow = l.shadow || global.Shadow })
	if l.quota {
		l.soft = l.hard.With(func(d *counter.Definition) { d.Shadow = true })
	}
}

// Modes are settings of envoyproxy/ratelimit that apply to all limits.
type Modes struct {
	// Shadow makes limits count without refusing (SHADOW_MODE). Statuses still show which limits are exhausted.
	Shadow bool
	// Quota puts all limits into quota_mode (QUOTA_MODE).
	Quota bool
	// MergeDomains lets several files have descriptors of one domain (MERGE_DOMAIN_CONFIG).
	MergeDomains bool
}

// find returns the descriptor at this level for a key and a value. It prefers a descriptor with exactly this value,
// then one whose wildcards match, then one without a value.
func (l level) find(key, value string) *descriptor {
	c := l[key]
	if c == nil {
		return nil
	}
	if d := c.exact[value]; d != nil && value != "" {
		return d
	}
	for _, d := range c.wild {
		if pattern.MatchGlob(d.value, value) {
			return d
		}
	}
	return c.exact[""]
}

// Document is a configuration that was read from a file or received from an xDS server.
type Document struct {
	Domain      string
	Descriptors []Descriptor

	at *yaml.Node // position of the domain; like the other positions, nil without a file
}

// Descriptor is a descriptor of a document.
type Descriptor struct {
	Key, Value                     string
	Shadow, Quota, Share, Detailed bool
	Limit                          *RateLimit // nil if the descriptor has none
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

// inherited is what the children of a descriptor inherit.
type inherited struct {
	path     string   // domain.key_value.key_value
	label    string   // the same for metrics, where only detailed descriptors show values
	patterns []string // as in limit
}

func (up inherited) with(e *Descriptor) inherited {
	here := inherited{path: up.path + "." + e.Key, label: up.label + "." + e.Key}
	if e.Value != "" {
		here.path += "_" + e.Value
		if e.Detailed { // by default, metrics don't show values: there may be many, and they may be clients' keys
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
		case strings.Contains(e.Key, "*") && e.Key != e.Value: // gateways write the pattern as both key and value
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
