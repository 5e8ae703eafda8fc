package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

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
	b.plan.StoreCPU, b.plan.StoreCalls = nodes[0].redis.CPU, nodes.calls
	if b.leases {
		b.plan.Leases = nodes.charges
	}
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

type redisNodes []redisNode

// openNodes waits until Redis is there: a load that is decided without it measures nothing.
func (b *benchFlags) openNodes(ctx context.Context) (all redisNodes, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	defer func() {
		if err != nil {
			all.close()
		}
	}()
	secret := []byte("weir bench")
	if b.oracle {
		secret = []byte(rand.Text()) // an oracle knows nothing of earlier runs: no counter may, either
	}
	for range b.nodes {
		// Names of its own: nodes on the same Redis shall see neither these counters nor one node more.
		store, err := redisstore.New(redisstore.Options{URL: b.store, Prefix: "weir-bench", Secret: secret})
		if err != nil {
			return all, fmt.Errorf("--store: %w", err)
		}
		one := redisNode{redis: store}
		if b.leases {
			one.leases = lease.New(store, lease.Options{Nodes: store.Nodes})
		}
		all = append(all, one)
		if err := store.Ready(ctx); err != nil {
			return all, &exit{exitUnavailable, fmt.Errorf("--store: %w", err)}
		}
	}
	return all, nil
}

func (n redisNodes) String() string {
	s := n[0].redis.String()
	if len(n) > 1 {
		s = fmt.Sprintf("%d nodes, %s", len(n), s)
	}
	if n[0].leases == nil {
		s += ", no leases"
	}
	return s
}

func (n redisNodes) limiters(set *weir.RuleSet) (all []*weir.Limiter) {
	for _, one := range n {
		store := counter.Store(one.redis)
		if one.leases != nil {
			store = one.leases
		}
		all = append(all, weir.NewLimiter(store, set, weir.Options{}))
	}
	return all
}

func (n redisNodes) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, one := range n {
		if one.leases != nil {
			_ = one.leases.Close(ctx) // what isn't given back ends by itself
		}
		one.redis.Close()
	}
}

// calls returns how many calls the nodes have made to Redis.
func (n redisNodes) calls() (sum uint64) {
	for _, one := range n {
		for _, sh := range one.redis.Health().Shards {
			sum += sh.Calls
		}
	}
	return sum
}

// charges returns how many charges the nodes have decided themselves, and for how many they have asked Redis.
func (n redisNodes) charges() (local, asked uint64) {
	for _, one := range n {
		s := one.leases.Stats()
		local, asked = local+s.Local, asked+s.Asked
	}
	return local, asked
}
