// Package node turns a Go program into a node like weir serve: all nodes on one Redis share one limit, and the rules can
// change while the program runs.
package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/redislimit"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/tracing"
)

// Options of a Node. One of Rules and SeedRules must be given.
type Options struct {
	// Store is the URL of the Redis that counts: see [redisstore.Options]. "" means that this process counts by itself.
	Store string
	// Rules is the path of a rule file. Saving the file applies it.
	Rules string
	// SeedRules is used in place of Rules if the Store keeps the rules, too. Then all nodes follow the Store's rules, which
	// weir rules and weir keys change. If the Store has no rules yet, it begins with this file.
	SeedRules string
	// IPv4Prefix and IPv6Prefix are as in [weir.Options]. All nodes on a Store must have the same.
	IPv4Prefix, IPv6Prefix int
	// Logger logs when Redis is lost and when it is back, and when rules are applied or rejected. Nil means slog.Default.
	Logger *slog.Logger
	// Observe is called with every decision: see [weir.Options].
	Observe func(*weir.Observation)
	// Tracer makes spans of decisions, and of waiting for Redis. Nil means no spans.
	Tracer *tracing.Tracer
}

// Node is a [weir.Limiter] whose rules follow a file or a Store. Make one with [Open].
type Node struct {
	*weir.Limiter

	shared  *redislimit.Limiter // nil without a Redis
	stop    context.CancelFunc
	running sync.WaitGroup
}

// patience is how long Open waits for Redis, and how long Close tries to give tokens back to it.
const patience = 500 * time.Millisecond

// Open makes a Node. An error says what is wrong with the options, the URL or the rule file, with line and column. It is no
// error if Redis can't be reached: the rules say what happens then, and the node uses Redis once it can.
func Open(o Options) (*Node, error) {
	if (o.Rules == "") == (o.SeedRules == "") || o.Rules == "" && o.Store == "" {
		return nil, errors.New("node: give Rules, a rule file that is followed; or a Store that keeps the rules, and SeedRules, a rule file that it begins with")
	}
	doc, err := inforce.ReadFile(o.Rules+o.SeedRules, 1)
	if err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	host, _ := os.Hostname()
	name := host + "-" + rand.Text()[:6]
	n := &Node{}
	soon, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	options, redis := weir.Options{Observe: o.Observe, IPv4Prefix: o.IPv4Prefix, IPv6Prefix: o.IPv6Prefix}, redisstore.Options{URL: o.Store, Name: name, Logger: o.Logger}
	if o.Tracer != nil {
		options.Trace, redis.Trace = o.Tracer.Check, o.Tracer.Call
	}
	run := func(context.Context) {}
	if local := memstore.New(memstore.Options{}); o.Store == "" {
		guard := cooldown.New(cooldown.Options{})
		options.Guard = guard
		n.Limiter = weir.NewLimiter(local, nil, options)
		run = guard.Run
	} else {
		if n.shared, err = redislimit.New(redis, local, options, nil, nil); err != nil {
			return nil, fmt.Errorf("node: Store: %w", err)
		}
		n.Limiter = n.shared.Limiter
		n.shared.Await(patience)
	}
	var rules *inforce.Rules
	if o.Rules != "" {
		rules = inforce.FromFile(o.Rules, doc, n.Limiter, o.Logger)
	} else {
		rules = inforce.FromStore(soon, rulestore.Options{
			Store: rulestore.OverRedis(n.shared.Redis), Node: rulestore.Node{Name: name, Version: "library"}, Logger: o.Logger,
		}, inforce.Start{Seed: doc, Message: "seeded from " + o.SeedRules, Given: true}, n.Limiter)
	}
	if n.shared != nil {
		rules.Join(rulestore.OpenBlocks(soon, rulestore.BlockOptions{Redis: n.shared.Redis, Now: func() time.Time { return private.Now(n.Limiter) }, Logger: o.Logger}))
		n.shared.Guard.CatchUp(soon)
	}
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	n.running.Go(func() { run(ctx) })
	n.running.Go(func() {
		if err := rules.Run(ctx); err != nil && ctx.Err() == nil {
			o.Logger.Error("rules aren't followed any more", "error", err)
		}
	})
	return n, nil
}

// Close gives back what the node has borrowed, and tells the other nodes that it leaves. Checks must have ended.
func (n *Node) Close() error {
	n.stop()
	n.running.Wait()
	if n.shared == nil {
		return nil
	}
	return n.shared.Close(patience)
}
