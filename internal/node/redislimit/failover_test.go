package redislimit

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

// pair is a primary and its replica behind a proxy that leads to the server in charge.
type pair struct {
	t                *testing.T
	primary, replica *redistest.Server
	proxy            *redistest.Proxy
}

func newPair(t *testing.T, replica redistest.Options) *pair {
	t.Helper()
	p := &pair{t: t, primary: redistest.New(t, redistest.Options{})}
	replica.Config = append(replica.Config, "replicaof "+strings.Replace(p.primary.Addr, ":", " ", 1))
	p.replica = redistest.New(t, replica)
	p.proxy = redistest.NewProxy(t, p.primary.Addr)
	return p
}

func (p *pair) url() string { return "redis://" + p.proxy.Addr }

func (p *pair) follow() {
	p.t.Helper()
	until(p.t, func() error { return p.replica.Follows(p.t.Context(), p.primary) })
}

func (p *pair) tell(command ...string) {
	p.t.Helper()
	if _, err := p.replica.Do(p.t.Context(), command...); err != nil {
		p.t.Fatal(err)
	}
}

// promote kills the primary and promotes the replica. It waits until all of a node's connections lead to the new
// primary.
func (p *pair) promote(l *Limiter) {
	p.t.Helper()
	p.primary.Kill()
	p.tell("REPLICAOF", "NO", "ONE")
	if err := p.proxy.Redirect(p.replica.Addr); err != nil {
		p.t.Fatal(err)
	}
	until(p.t, func() error {
		c, err := l.Redis.Client()
		for range 100 { // each call uses one of a few connections at random
			if err == nil {
				_, err = c.Do(p.t.Context(), c.B().Echo().Message("hello").Build()).ToString()
			}
		}
		return err
	})
}

// decided returns the decision about a request, and retries until Redis has made it.
func decided(t *testing.T, l *Limiter, r weir.Request) (d weir.Decision) {
	t.Helper()
	until(t, func() (err error) {
		if d, err = l.Check(t.Context(), &r); err == nil && d.Degraded {
			err = errors.New("degraded")
		}
		return err
	})
	return d
}

// allowed returns the decision about a request that must be allowed.
func allowed(t *testing.T, l *Limiter, r weir.Request) weir.Decision {
	t.Helper()
	d := decided(t, l, r)
	if !d.Allowed {
		t.Fatalf("%s %s is refused: %+v", r.APIKey, r.Path, d)
	}
	return d
}

// offend sends requests until the client is in a cooldown.
func offend(t *testing.T, l *Limiter) {
	t.Helper()
	until(t, func() error {
		if d := decided(t, l, weir.Request{APIKey: "offender", Path: "/abused"}); d.Reason != weir.ReasonCooldown {
			return errors.New(d.Reason.String())
		}
		return nil
	})
}

func tokens(n int64) map[string]counter.Amount {
	return map[string]counter.Amount{"tokens": counter.Whole(n)}
}

// The clock of a promoted replica is an hour behind or ahead. Slots, reservations and cooldowns that exist then last no
// longer than their own length from there. They can still be renewed, settled and released.
func TestThePromotedReplicasClockIsWrong(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			const kept = 10 * time.Minute
			rules := `
rules:
  - {id: slots, match: {endpoint: /slots}, algorithm: concurrency, limit: 1, slot_ttl: 1s, on_store_failure: refuse}
  - {id: tokens, match: {endpoint: /tokens}, algorithm: fixed_window, amount: tokens, limit: 10/365d, unsettled: give_back, on_store_failure: refuse}
  - {id: abused, match: {endpoint: /abused}, algorithm: fixed_window, limit: 1/365d, abuse: {refusals: 20/minute, cooldown: 10m}, on_store_failure: refuse}
`
			p := newPair(t, redistest.NewClock(t, off).Options())
			l := open(t, p.url(), rules)
			offend(t, l)
			ends := time.Now().Add(decided(t, l, weir.Request{APIKey: "offender", Path: "/abused"}).RetryAfter)
			slot := func(key string) weir.Request { return weir.Request{APIKey: key, Path: "/slots", Receipt: true} }
			reserve := func(key string, n int64) weir.Request {
				return weir.Request{APIKey: key, Path: "/tokens", Amounts: tokens(n), Reserve: time.Second, Receipt: true}
			}
			allowed(t, l, slot("forgotten"))
			allowed(t, l, reserve("forgotten", 10))
			renewed, settled := allowed(t, l, slot("held")), allowed(t, l, reserve("held", 10))

			p.follow()
			p.promote(l)
			until(t, func() error {
				if d := decided(t, l, weir.Request{APIKey: "other", Path: "/tokens", Amounts: tokens(1), Peek: true}); !d.Allowed {
					t.Errorf("%+v", d)
				}
				if is := time.Until(l.Redis.Now()); (is - off).Abs() > 10*time.Minute {
					return fmt.Errorf("to the node, redis is %s ahead", is)
				}
				return nil
			})

			if err := l.Renew(t.Context(), &weir.Decision{Receipt: renewed.Receipt}); err != nil {
				t.Errorf("a slot can't be renewed: %v", err)
			}
			if err := l.Release(t.Context(), &weir.Decision{Receipt: renewed.Receipt}); err != nil {
				t.Errorf("a slot can't be released: %v", err)
			}
			allowed(t, l, slot("held"))
			if err := l.Finish(t.Context(), &weir.Decision{Receipt: settled.Receipt}, weir.Outcome{Amounts: tokens(3)}); err != nil {
				t.Errorf("a reservation can't be settled: %v", err)
			}
			if d := decided(t, l, reserve("held", 8)); d.Allowed {
				t.Error("3 tokens of 10 were used, and 8 are left")
			}
			allowed(t, l, reserve("held", 7))
			for _, r := range []weir.Request{slot("forgotten"), reserve("forgotten", 10)} {
				until(t, func() error {
					if d := decided(t, l, r); !d.Allowed {
						return fmt.Errorf("%s is still held: wait for %s", r.Path, d.RetryAfter)
					}
					return nil
				})
			}

			nodes := []*Limiter{l}
			if off < 0 { // if the clock is ahead, nodes that learn of the cooldown now see it as over
				nodes = append(nodes, open(t, p.url(), rules))
			}
			for i, n := range nodes {
				until(t, func() error {
					if got := n.Guard.Stats().InForce; got != 1 {
						return fmt.Errorf("node %d knows of %d cooldowns", i, got)
					}
					return nil
				})
				left := decided(t, n, weir.Request{APIKey: "offender", Path: "/abused"}).RetryAfter
				if is := time.Now().Add(left); i == 0 && is.Sub(ends) > time.Minute || left > kept {
					t.Errorf("node %d: the cooldown of %s is to end in %s", i, kept, left)
				}
			}
		})
	}
}
