package envoy

import (
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
)

// link combines the configuration with the rules that name its descriptors. Without a configuration, it contains only
// those rules. When the configuration or the rules change, a new link is made.
type link struct {
	config *Config
	rules  *weir.RuleSet
	from   *Config           // the configuration in force, or nil
	limits map[*limit]*limit // the rules' limits, by the limits of the configuration that they replace
}

func (s *Service) link() *link {
	k := s.linked.Load()
	switch {
	case k == nil:
		s.linking.Lock()
	case k.rules == s.limiter.Rules() || !s.linking.TryLock(): // if it is locked, another request is already making a new link
		return k
	}
	defer s.linking.Unlock()
	return s.makeLinkLocked()
}

func (s *Service) makeLinkLocked() *link {
	k := &link{rules: s.limiter.Rules(), from: s.config.Load(), limits: map[*limit]*limit{}}
	if old := s.linked.Load(); old != nil && old.rules == k.rules && old.from == k.from {
		return old // another request has just made it
	}
	if k.config = k.from; !s.opts.Configured {
		k.config = &Config{domains: map[string]level{}, anyDomain: true} // requests that carry limits may be of any domain
	}
	rules, idle := k.rules.Rules().Rules, 0
	for i := range rules {
		r := &rules[i]
		if r.Descriptor == nil || k.config == nil {
			continue
		}
		if wrong := k.add(r, s.opts.Modes); wrong != "" {
			if idle++; idle <= maxWarnings { // don't log values, which may be clients' keys
				s.opts.Logger.Warn("a rule for a descriptor does nothing: "+wrong, "rule", r.ID, "domain", clip(r.Descriptor[0]), "rules_version", k.rules.Version())
			}
		}
	}
	if idle > maxWarnings {
		s.opts.Logger.Warn("more rules for descriptors do nothing", "rules", idle-maxWarnings, "rules_version", k.rules.Version())
	}
	s.linked.Store(k)
	return k
}

func (k *link) add(r *weir.Rule, modes Modes) (wrong string) {
	if k.from == nil {
		l, err := (&limit{}).ruled(r, Modes{})
		if err != nil {
			return "it has no limit of its own, and there is no --envoy-config to take one from"
		}
		k.config.find(r.Descriptor, true).limit = l
		k.config.limits++
		return ""
	}
	d := k.from.find(r.Descriptor, false)
	if d == nil || d.limit == nil {
		return "the configuration has no rate_limit for this descriptor: name one as it is written there"
	}
	l, err := d.limit.ruled(r, modes)
	switch {
	case err == nil:
		k.limits[d.limit] = l
	case d.limit.unlimited() || d.limit.closed():
		wrong = "the configuration has no number to take for it: give the rule a limit"
	default:
		wrong = "the configuration's number doesn't fit: " + err.Error()
	}
	return wrong
}

// ruled returns a copy of the limit with the changes that a rule makes. What the rule doesn't set stays.
func (l *limit) ruled(r *weir.Rule, modes Modes) (*limit, error) {
	var numbers weir.Limit // a policy needs a limit, even if it refuses nothing
	if !l.unlimited() && !l.closed() {
		numbers = weir.Limit{Count: l.hard.Limit.Count, Window: l.hard.Limit.Window}
	}
	if len(r.Limits) > 0 {
		burst := r.Limits[0].Burst
		if r.Limits[0].Count > 0 {
			numbers = r.Limits[0]
		}
		numbers.Burst = burst
	}
	numbers.Algorithm = r.Algorithm
	d := private.Definition(r, numbers)
	d.CountedAs = counterName
	p, err := counter.Define(d)
	if err != nil {
		return nil, err
	}
	name := l.wire.GetName()
	n := *l
	n.hard, n.wire, n.shadow = p, wire(p), l.shadow || r.Shadow
	if name != "" { // so that other limits can replace it by this name
		n.wire.Name = name
	}
	n.soften(modes)
	return &n, nil
}

// replace replaces limits of the configuration with those of rules.
func (k *link) replace(hits []matched) {
	for i := range hits {
		if l := k.limits[hits[i].limit]; l != nil {
			hits[i].limit = l
		}
	}
}

// find returns the descriptor with a path. If there is none, it returns nil. If add is set, it creates the missing
// descriptors instead, for a configuration that is made from rules.
func (c *Config) find(path []string, add bool) (d *descriptor) {
	l := c.domains[path[0]]
	if l == nil && add {
		l = level{}
		c.domains[path[0]] = l
	}
	for _, entry := range path[1:] {
		key, value, _ := strings.Cut(entry, "=")
		if d = nil; l[key] != nil {
			d = l[key].exact[value]
		}
		if d == nil && add {
			d = &descriptor{below: level{}}
			l.add(key, value, d)
		}
		if d == nil {
			return nil
		}
		l = d.below
	}
	return d
}
