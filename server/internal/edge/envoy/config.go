package envoy

import (
	"strings"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirhq/weir/counter"
)

// Config is a set of limits in envoyproxy/ratelimit's language, ready for requests. It is immutable.
type Config struct {
	domains   map[string]level
	anyDomain bool // requests of any domain may carry limits
	limits    int  // how many there are
}

// Domains and Limits say how large a configuration is.
func (c *Config) Domains() int { return len(c.domains) }

// Limits is how many limits the configuration has.
func (c *Config) Limits() int { return c.limits }

// level is the descriptors right below a domain or another descriptor, by their keys. Finding one
// takes a look into two maps, however many there are; only the wildcards of one key are tried in turn.
type level map[string]*choices

// choices are the descriptors of one key.
type choices struct {
	exact map[string]*descriptor // by value, as it is written
	wild  []*descriptor          // in the order of the file
	any   *descriptor            // the one without a value
}

// descriptor is one of the configuration's.
type descriptor struct {
	path  string   // domain.key_value.key_value
	parts []string // of a value with wildcards: what is between them
	limit *limit   // nil without one
	below level
}

// limit is a rate_limit.
type limit struct {
	// hard refuses a request. soft counts and refuses nothing: it is for requests with several
	// descriptors in quota_mode, which are refused only together. It is nil without, and both are if unlimited.
	hard, soft *counter.Policy
	wire       *rls.RateLimitResponse_RateLimit // as answers show it
	shadow     bool
	quota      bool
	replaces   []string // names of limits
	patterns   []string // for each key of the descriptor, what stands for its value in the counter's name, or ""
	metadata   *structpb.Struct
}

func (l *limit) unlimited() bool { return l.hard == nil }

// closed reports whether the limit refuses everything.
func (l *limit) closed() bool { return l.wire.RequestsPerUnit == 0 }

// units are how long those of the service are. Weeks begin on Thursdays, as the epoch did, months
// have 30 days and years 365, since envoyproxy/ratelimit counts so.
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

// counterName names the counters of all descriptors: which one it is, its subject says. So a
// descriptor keeps its counter when another line of the configuration, or a limit that the request
// carries, gives it another number.
const counterName = "envoy"

// newLimit makes the limit of a number and a unit. Rule is its name in metrics.
func newLimit(rule, name string, perUnit uint32, unit rls.RateLimitResponse_RateLimit_Unit) (*limit, error) {
	// A limit has at least one token. Of limits that refuse everything, requests ask for one more: see charge.
	p, err := counter.NewPolicy(counterName, counter.Limit{Algorithm: counter.FixedWindow, Count: int64(max(perUnit, 1)), Window: units[unit]})
	if err != nil {
		return nil, err
	}
	p.Name, p.Rule, p.CountRefused = rule, rule, true
	return &limit{hard: p, wire: &rls.RateLimitResponse_RateLimit{Name: name, RequestsPerUnit: perUnit, Unit: unit}}, nil
}

// soften prepares the policies for how the limit is meant, once that is known.
func (l *limit) soften(global Modes) {
	if l.unlimited() {
		return
	}
	l.quota = l.quota || global.Quota
	l.hard.Shadow = l.shadow || global.Shadow
	if l.quota {
		soft := *l.hard
		soft.Shadow = true
		l.soft = &soft
	}
}

// Modes are envoyproxy/ratelimit's settings that say how all limits are meant.
type Modes struct {
	// Shadow refuses nobody (SHADOW_MODE); statuses still tell which limits are spent.
	Shadow bool
	// Quota has all limits in quota_mode (QUOTA_MODE).
	Quota bool
	// MergeDomains lets several files have descriptors of one domain (MERGE_DOMAIN_CONFIG).
	MergeDomains bool
}

// find returns the descriptor at this level for a key and a value: one with that value before one
// whose wildcards match, and that before one without a value.
func (l level) find(key, value string) *descriptor {
	c := l[key]
	if c == nil {
		return nil
	}
	if d := c.exact[value]; d != nil {
		return d
	}
	for _, d := range c.wild {
		if matches(d.parts, value) {
			return d
		}
	}
	return c.any
}

// matches reports whether a value is the parts in their order, with anything between them.
func matches(parts []string, value string) bool {
	last := len(parts) - 1
	rest, ok := strings.CutPrefix(value, parts[0])
	if !ok || len(rest) < len(parts[last]) || !strings.HasSuffix(rest, parts[last]) {
		return false
	}
	rest = rest[:len(rest)-len(parts[last])]
	for _, part := range parts[1:last] {
		at := strings.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return true
}
