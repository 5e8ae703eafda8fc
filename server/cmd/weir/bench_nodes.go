package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/lease"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/load"
	"github.com/weirhq/weir/server/internal/serve"
)

// maxBenchNodes keeps a slip of the finger from opening all connections there are.
const maxBenchNodes = 100

func (b *benchFlags) overRedis() bool { return b.url == nil && b.store != serve.Memory }

// completeNodes checks the flags of limiters in this process.
func (b *benchFlags) completeNodes(f *pflag.FlagSet) error {
	for _, name := range []string{"limit", "nodes", "leases", "oracle"} {
		if b.url != nil && f.Changed(name) {
			return fmt.Errorf("--%s: is for checks in this process", name)
		}
	}
	for _, name := range []string{"nodes", "leases", "oracle"} {
		if !b.overRedis() && f.Changed(name) {
			return fmt.Errorf("--%s: needs a Redis as --store, such as redis://127.0.0.1:6379", name)
		}
	}
	if b.nodes < 1 || b.nodes > maxBenchNodes {
		return fmt.Errorf("--nodes: must be from 1 to %d, got %d", maxBenchNodes, b.nodes)
	}
	return nil
}

// inProcess makes limiters in this process, and returns what is to be called when they are no longer needed.
func (b *benchFlags) inProcess(ctx context.Context) (load.Target, func(), error) {
	set, rules, err := b.ruleSet()
	if err != nil {
		return nil, nil, badRules(err)
	}
	exact := func(name string, memory int64) *load.InProcess {
		store := memstore.New(memstore.Options{MemoryCap: memory})
		return load.NewInProcess([]*weir.Limiter{weir.NewLimiter(store, set, weir.Options{})}, name, b.plan.Keys, b.check)
	}
	if !b.overRedis() {
		return exact("in process, "+rules, 0), func() {}, nil
	}
	nodes, err := b.openNodes(ctx)
	if err != nil {
		return nil, nil, err
	}
	nodes.measure(b)
	target := load.Target(load.NewInProcess(nodes.limiters(set), "in process, "+nodes.String()+", "+rules, b.plan.Keys, b.check))
	if b.oracle {
		// An oracle must not forget anybody.
		target = load.NewOracle(target, exact("oracle", max(memstore.DefaultMemoryCap, int64(b.plan.Keys)*1024)), b.plan.Keys)
	}
	return target, nodes.close, nil
}

// ruleSet is what to decide by, and what to call it.
func (b *benchFlags) ruleSet() (*weir.RuleSet, string, error) {
	switch {
	case b.rules != "":
		file, err := rulefile.Load(b.rules)
		if err != nil {
			return nil, "", err
		}
		return file.Set, "rules of " + b.rules, nil
	case b.limit != "":
		l, err := parseLimit(b.limit)
		if err != nil {
			return nil, "", fmt.Errorf("--limit: %w", err)
		}
		set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "bench", Limits: []weir.Limit{*l}}}})
		return set, b.limit + " for each client", err
	}
	set, err := load.GenerousRules()
	return set, "a rule that refuses nobody", err
}

// redisNode is one of several nodes on a Redis.
type redisNode struct {
	redis  *redisstore.Store
	leases *lease.Store // nil without
}

type redisNodes struct{ all []redisNode }

// openNodes waits until Redis is there: a load that is decided without it measures nothing.
func (b *benchFlags) openNodes(ctx context.Context) (*redisNodes, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	secret := []byte("weir bench")
	if b.oracle {
		secret = []byte(rand.Text()) // an oracle knows nothing of earlier runs: no counter may, either
	}
	n := &redisNodes{}
	for range b.nodes {
		// Names of its own: nodes on the same Redis shall see neither these counters nor one node more.
		store, err := redisstore.New(redisstore.Options{URL: b.store, Prefix: "weir-bench", Secret: secret})
		if err != nil {
			n.close()
			return nil, fmt.Errorf("--store: %w", err)
		}
		one := redisNode{redis: store}
		if b.leases {
			one.leases = lease.New(store, lease.Options{Nodes: store.Nodes})
		}
		n.all = append(n.all, one)
		if err := store.Ready(ctx); err != nil {
			n.close()
			return nil, &exit{exitUnavailable, fmt.Errorf("--store: %w", err)}
		}
	}
	return n, nil
}

func (n *redisNodes) String() string {
	s := n.all[0].redis.String()
	if len(n.all) > 1 {
		s = strconv.Itoa(len(n.all)) + " nodes, " + s
	}
	if n.all[0].leases == nil {
		s += ", no leases"
	}
	return s
}

func (n *redisNodes) limiters(set *weir.RuleSet) []*weir.Limiter {
	var out []*weir.Limiter
	for _, one := range n.all {
		store := counter.Store(one.redis)
		if one.leases != nil {
			store = one.leases
		}
		out = append(out, weir.NewLimiter(store, set, weir.Options{}))
	}
	return out
}

func (n *redisNodes) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, one := range n.all {
		if one.leases != nil {
			_ = one.leases.Close(ctx) // what isn't given back ends by itself
		}
		one.redis.Close()
	}
}

// measure has the plan ask Redis and the nodes for what they did.
func (n *redisNodes) measure(b *benchFlags) {
	b.plan.StoreCPU = n.all[0].redis.CPU
	b.plan.StoreCalls = n.calls
	if b.leases {
		b.plan.Leases = n.charges
	}
}

func (n *redisNodes) calls() (sum uint64) {
	for _, one := range n.all {
		for _, sh := range one.redis.Stats().Shards {
			sum += sh.Calls
		}
	}
	return sum
}

func (n *redisNodes) charges() (local, asked uint64) {
	for _, one := range n.all {
		s := one.leases.Stats()
		local, asked = local+s.Local, asked+s.Asked
	}
	return local, asked
}
