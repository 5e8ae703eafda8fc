package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/redislimit"
	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/admin"
)

// Memory is the value of the store's setting that selects the in-process store.
const Memory = "memory"

func (c *Config) inMemory() bool { return c.Store == "" || c.Store == Memory }

// validateStore checks the settings of the store. Its errors don't quote the URL, because it may contain a password.
func (c *Config) validateStore() error {
	if c.inMemory() {
		return when(c.Emergency != nil, "--emergency-limit: is for a --store that can be lost, and memory can't")
	}
	hint := ""
	switch scheme, rest, ok := strings.Cut(c.Store, ":/"); {
	case strings.ContainsAny(c.Store, "@?"):
	case ok && strings.HasPrefix(scheme, "redis"):
		hint = ": did you mean " + scheme + "://" + rest + "?"
	case strings.Contains(c.Store, ":"):
		hint = ": did you mean redis://" + c.Store + "?"
	}
	return cmp.Or(
		when(!strings.Contains(c.Store, "://"), "--store: must be memory, or a URL such as redis://127.0.0.1:6379%s", hint),
		when(strings.ContainsAny(c.StorePrefix, "{} \t\r\n"), "--store-prefix: must have no braces and no blanks, such as eg:rl:, got %q", c.StorePrefix),
		when(c.StoreTimeout <= 0, "--store-timeout: must be more than 0, got %s", c.StoreTimeout),
		in("--store", redisstore.CheckURL(c.Store)),
	)
}

// openStore makes the store, and a limiter that has no rules yet. It doesn't wait for Redis.
func (n *node) openStore() (err error) {
	c := &n.config
	n.counters = memstore.New(memstore.Options{MemoryCap: c.MemoryCap})
	options := weir.Options{Observe: n.observe, Holds: n.metrics, IPv4Prefix: c.IPv4Prefix, IPv6Prefix: c.IPv6Prefix}
	redis := redisstore.Options{URL: c.Store, Prefix: c.StorePrefix, Name: n.self.Name, Timeout: c.StoreTimeout, Logger: n.log}
	if n.tracer != nil {
		options.Trace, redis.Trace = n.tracer.Check, n.tracer.Call
	}
	if c.Preflight != nil {
		if options.Preflight, err = counter.NewPolicy("preflight", *c.Preflight); err != nil {
			return in("--preflight-limit", err)
		}
	}
	if c.inMemory() {
		n.guard = cooldown.New(cooldown.Options{Fingerprint: n.top.FingerprintOf})
		options.Guard = n.guard
		var counters counter.Store = n.counters
		if n.link != nil {
			counters = region.NewStore(counters, n.link, region.MemoryCells())
		}
		n.limiter = weir.NewLimiter(counters, nil, options)
		if n.link != nil {
			n.link.Serve(n.limiter, n.counters)
		}
		return nil
	}
	if c.Emergency != nil {
		if options.Emergency, err = counter.Define(counter.Definition{Name: "emergency", Limit: *c.Emergency, PerNode: true}); err != nil {
			return in("--emergency-limit", err)
		}
	}
	shared, err := redislimit.New(redis, n.counters, options, n.top.FingerprintOf, n.link)
	if err != nil {
		return fmt.Errorf("--store: %w", err)
	}
	n.shared, n.redis, n.limiter, n.guard = shared, shared.Redis, shared.Limiter, shared.Guard
	return nil
}

// settling is how long a node that has just started may wait for its store. After that, it is ready even without the
// store.
const settling = time.Second

// connecting reports whether load balancers should wait: the node has just started, and hasn't reached its store yet.
func (n *node) connecting() bool {
	if n.redis == nil || n.ready.Load() || time.Since(n.began) >= settling {
		return false
	}
	up := n.redis.Health().Up && n.rules.Stale() == ""
	if up {
		n.ready.Store(true) // the node stays ready even if it loses the store later
	}
	return !up
}

func (n *node) closeStore() {
	if n.shared == nil {
		return
	}
	if err := n.shared.Close(n.config.StoreTimeout); err != nil {
		n.log.Debug("leases weren't given back: they end by themselves", "error", err)
	}
}

// storeFailed is called when the store fails in a check. It doesn't log outages, because the store itself logs them.
func (n *node) storeFailed(_ *http.Request, err error) {
	if errors.Is(err, redisstore.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, counter.ErrPartition) { // don't log these errors: while Redis is slow, there may be thousands per second
		n.log.Debug("store", "error", err)
		return
	}
	n.log.Warn("store", "error", err)
}

// storeStatus has the state of the store, and the parts of the warning about it.
type storeStatus struct {
	admin.Store
	evicts, rejected string
}

func (n *node) storeStatus() storeStatus {
	if n.redis == nil {
		return storeStatus{Store: admin.Store{URL: Memory, Status: "up"}}
	}
	h := n.redis.Health()
	out := storeStatus{Store: admin.Store{URL: h.URL, Status: "up", Nodes: h.Nodes, Since: admin.Moment(h.Since)}}
	if !h.Up {
		out.Status = "degraded"
	}
	var evicting []string
	for _, s := range h.Shards {
		if s.Evicts != "" {
			evicting = append(evicting, s.Name+" by "+s.Evicts)
		}
		out.Shards = append(out.Shards, admin.Shard{Name: s.Name, Up: s.Up, Since: admin.Moment(s.Since), Error: s.Error, Keys: s.Keys, Doubted: s.Doubted})
	}
	if evicting != nil {
		out.evicts = "Redis evicts counters when it is full (" + few(evicting) +
			"). The limits of an evicted counter start from zero, so that blocked clients are free. Set maxmemory-policy to noeviction"
	}
	if h.Rejected != "" {
		out.rejected = "The newest password or certificates in the files that --store names aren't in use (" + h.Rejected +
			"). Those before them stay until Redis accepts the new ones"
	}
	out.Warning = strings.TrimPrefix(strings.TrimSuffix(out.evicts+". "+out.rejected, ". "), ". ")
	return out
}

// tellStore adds the state of the store to the report that this node sends to other nodes.
func (n *node) tellStore(to *rulestore.Node) {
	s := n.storeStatus()
	if to.Store = s.Status; s.Since != nil {
		to.Since = *s.Since
	}
	for _, sh := range s.Shards {
		if !sh.Up {
			to.Lost = append(to.Lost, sh.Name)
		}
	}
	to.Outputs = n.learned.Say()
}

// hear reads the estimates that other nodes have made of the lengths of models' answers.
func (n *node) hear(ctx context.Context) error {
	for rediscall.Sleep(ctx, 2*time.Second) {
		var outputs []map[string]int64
		for _, other := range rulestore.NodesOf(n.redis.Heard().Peers) {
			outputs = append(outputs, other.Outputs)
		}
		n.learned.Hear(outputs)
	}
	return nil
}

// introduce reports a node whose rules are in a file to the other nodes. Nodes with a rule store are reported by that
// store.
func (n *node) introduce(ctx context.Context) error {
	for rediscall.Sleep(ctx, time.Second) {
		n.redis.Say(rulestore.Say(n.about()))
	}
	return nil
}
