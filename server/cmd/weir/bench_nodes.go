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

// maxBenchNodes limits the number of nodes, so that a typo doesn't use up all connections.
const maxBenchNodes = 100

func (b *benchFlags) overRedis() bool { return b.url == nil && b.store != serve.Memory }

// inProcess creates limiters in this process, and returns a function that closes them.
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
		// The oracle's store must be large enough that no counter is evicted.
		target = load.NewOracle(target, exact("oracle", max(memstore.DefaultMemoryCap, int64(b.plan.Keys)*1024)), b.plan.Keys)
	}
	return target, nodes.close, nil
}

// ruleSet returns the rules to measure, and their name for the report.
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

// redisNode is one of several limiters that share a Redis.
type redisNode struct {
	redis  *redisstore.Store
	leases *lease.Store // nil without leases
}

type redisNodes []redisNode

// openNodes waits until Redis can be reached, because a measurement without it would be meaningless.
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
		secret = []byte(rand.Text()) // counters of earlier runs must not be used, because the oracle doesn't know them
	}
	for range b.nodes {
		// Use a separate prefix, so that real nodes on the same Redis see neither these counters nor these
		// nodes.
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
			_ = one.leases.Close(ctx) // leases that aren't given back expire
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

// charges returns how many charges the nodes decided by themselves, and how many they sent to Redis.
func (n redisNodes) charges() (local, asked uint64) {
	for _, one := range n {
		s := one.leases.Stats()
		local, asked = local+s.Local, asked+s.Asked
	}
	return local, asked
}
