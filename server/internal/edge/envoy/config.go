package envoy

import (
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

// Config is an immutable set of limits in envoyproxy/ratelimit's format, prepared for deciding
// requests.
type Config struct {
	domains   map[string]level
	anyDomain bool // any domain may be used in requests that carry their own limits
	limits    int  // number of limits
}

// Domains returns the number of domains.
func (c *Config) Domains() int { return len(c.domains) }

// level has the descriptors directly below a domain or another descriptor, by their keys.
type level map[string]*choices

type choices struct {
	exact map[string]*descriptor // by exact value; "" is for the descriptor without a value
	wild  []*descriptor          // values with wildcards, in the order of the file
}

type descriptor struct {
	value string // as written, if it has wildcards
	limit *limit // nil if it has none
	below level
}

type limit struct {
	// hard refuses requests; it is nil if the limit is unlimited. soft counts without refusing, for
	// requests with several descriptors in quota_mode, which refuse only together. It is nil without
	// quota_mode.
	hard, soft *counter.Policy
	wire       *rls.RateLimitResponse_RateLimit // the limit as responses show it
	shadow     bool
	quota      bool
	replaces   []string // names of the limits that this one replaces
	patterns   []string // for each key of the descriptor, the pattern that replaces its value in the counter's name, or ""
	metadata   *structpb.Struct
}

func (l *limit) unlimited() bool { return l.hard == nil }

func (l *limit) closed() bool { return l.wire.RequestsPerUnit == 0 }

// units are the lengths of the protocol's units. As in envoyproxy/ratelimit, weeks start on
// Thursdays, because the Unix epoch did, months have 30 days, and years have 365.
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

// counterName is the name of all counters of descriptors. The subject identifies the descriptor, so
// it keeps its counter when its limit changes.
const counterName = "envoy"

func newLimit(rule, name string, perUnit uint32, unit rls.RateLimitResponse_RateLimit_Unit) (*limit, error) {
	// A policy needs at least one token. If the limit refuses everything, each request asks for one
	// token more than it has: see charge.
	p, err := counter.Define(counter.Definition{
		Name: rule, CountedAs: counterName, CountRefused: true,
		Limit: counter.Limit{Algorithm: counter.FixedWindow, Count: int64(max(perUnit, 1)), Window: units[unit]},
	})
	if err != nil {
		return nil, err
	}
	return &limit{hard: p, wire: &rls.RateLimitResponse_RateLimit{Name: name, RequestsPerUnit: perUnit, Unit: unit}}, nil
}

// soften completes the policies when the modes of the limit are known.
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
	// Shadow makes all limits refuse nothing (SHADOW_MODE). Statuses still show which limits are
	// exhausted.
	Shadow bool
	// Quota puts all limits into quota_mode (QUOTA_MODE).
	Quota bool
	// MergeDomains lets several files have descriptors of one domain (MERGE_DOMAIN_CONFIG).
	MergeDomains bool
}

// find returns the descriptor at this level for a key and a value: preferably one with exactly this
// value, then one whose wildcards match, then one without a value.
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
