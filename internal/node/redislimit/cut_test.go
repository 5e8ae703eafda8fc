package redislimit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

const cutRules = `
rules:
  - {id: plain, match: {endpoint: /plain}, algorithm: fixed_window, limit: 20/365d, strict: true, on_store_failure: refuse}
  - {id: named, match: {endpoint: /named}, algorithm: fixed_window, limit: 20/365d, strict: true, on_store_failure: refuse}
  - {id: kept, match: {endpoint: /kept}, algorithm: fixed_window, amount: tokens, limit: 1000/365d, on_store_failure: refuse}
  - {id: back, match: {endpoint: /back}, algorithm: fixed_window, amount: tokens, limit: 1000/365d, unsettled: give_back, on_store_failure: refuse}
  - {id: slots, match: {endpoint: /slots}, algorithm: concurrency, limit: 3, slot_ttl: 1h, on_store_failure: refuse}
  - {id: abused, match: {endpoint: /abused}, algorithm: fixed_window, limit: 1/365d, abuse: {refusals: 20/minute, cooldown: 1h}, on_store_failure: refuse}
`

// cut is a limiter on a primary. Its replica is promoted without the last charges.
type cut struct {
	*pair
	l     *Limiter
	names uint64
}

// take sends n requests, which must be allowed, and returns their receipts.
func (c *cut) take(n int, r weir.Request) (receipts []string) {
	c.t.Helper()
	r.Receipt = true
	for range n {
		receipts = append(receipts, allowed(c.t, c.l, r).Receipt)
	}
	return receipts
}

// name gives a request its own id.
func (c *cut) name(r weir.Request) weir.Request {
	c.names++
	binary.LittleEndian.PutUint64(r.Repeat[:], c.names)
	return r
}

// finish finishes a request with some outcome and checks the error.
func (c *cut) finish(what, receipt string, o weir.Outcome, want error) {
	c.t.Helper()
	if err := c.l.Finish(c.t.Context(), &weir.Decision{Receipt: receipt}, o); !errors.Is(err, want) {
		c.t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func (c *cut) refund(what string, receipts []string, want error) {
	c.t.Helper()
	for _, r := range receipts {
		c.finish(what, r, weir.Outcome{Abandoned: true}, want)
	}
}

// left fails the test unless a request's client has exactly this much left.
func (c *cut) left(when string, r weir.Request, want int64) {
	c.t.Helper()
	r.Peek, r.Amounts = true, nil
	d := decided(c.t, c.l, r)
	for _, s := range d.Limits() {
		if got := s.Remaining; got != want {
			c.t.Errorf("%s %s: %d are left %s, want %d", r.APIKey, r.Path, got, when, want)
		}
	}
}

// drain uses up all that a client has left and returns how much that was.
func (c *cut) drain(r weir.Request) (n int) {
	c.t.Helper()
	for decided(c.t, c.l, r).Allowed {
		n++
	}
	return n
}

// Replication is cut, more requests are charged, and then the replica, which lacks those charges, is promoted. The
// requests can be settled, renewed, refunded and repeated like those that the replica knows. A refund of a lost plain
// charge creates a token, so clients may get up to as many extra tokens as charges were lost. No other tokens are
// created, and nothing gets stuck.
func TestReplicationIsCut(t *testing.T) {
	t.Parallel()
	c := &cut{pair: newPair(t, redistest.Options{})}
	c.l = open(t, c.url(), cutRules)
	other := open(t, c.url(), cutRules)
	plain, idle, named := weir.Request{APIKey: "k", Path: "/plain"}, weir.Request{APIKey: "idle", Path: "/plain"}, weir.Request{APIKey: "k", Path: "/named"}
	slot := weir.Request{APIKey: "k", Path: "/slots"}
	reserve := func(path, key string) weir.Request {
		return weir.Request{APIKey: key, Path: path, Amounts: tokens(10), Reserve: time.Hour, Receipt: true}
	}
	paths := []string{"/kept", "/back"}

	// charges are the receipts from before the cut, or from after it.
	type charges struct {
		plain, idle, named, slots []string
		requests                  []weir.Request                 // the requests of named
		reserved                  map[string]map[string][]string // by path and by key
	}
	charge := func(plains, idles, slots int) (made charges) {
		t.Helper()
		made = charges{plain: c.take(plains, plain), idle: c.take(idles, idle), slots: c.take(slots, slot), reserved: map[string]map[string][]string{}}
		for range 5 {
			r := c.name(named)
			made.requests, made.named = append(made.requests, r), append(made.named, c.take(1, r)...)
		}
		for _, path := range paths {
			made.reserved[path] = map[string][]string{"plain": c.take(4, reserve(path, "plain"))}
			for range 4 {
				made.reserved[path]["named"] = append(made.reserved[path]["named"], c.take(1, c.name(reserve(path, "named")))...)
			}
		}
		return made
	}
	known := charge(5, 0, 1)
	c.follow()
	c.tell("REPLICAOF", "127.0.0.1", "1")
	lost := charge(10, 3, 2)
	offend(t, c.l)
	knows := func(who string, n *Limiter) {
		t.Helper()
		until(t, func() error {
			if n := n.Guard.Stats().InForce; n != 1 {
				return fmt.Errorf("%s knows of %d cooldowns", who, n)
			}
			return nil
		})
	}
	knows("another node", other)
	c.promote(c.l)
	c.left("after the loss", plain, 15)
	c.take(10, plain)
	for range 5 {
		c.take(1, c.name(named))
	}

	c.refund("a plain charge that was lost", append(lost.plain, lost.idle...), nil)
	c.refund("a plain charge", known.plain, nil)
	c.refund("a plain charge, once more", append(append(lost.plain, lost.idle...), known.plain...), counter.ErrUsed)
	if n := c.drain(idle); n != 20 {
		t.Errorf("%d of 20 were admitted, after 3 were lost and refunded", n)
	}
	if n := 10 + c.drain(plain); n < 20 || n > 20+len(lost.plain) {
		t.Errorf("%d of 20 were admitted and not refunded, and %d charges were lost", n, len(lost.plain))
	}

	c.left("after the loss", named, 10)
	c.refund("a named charge that was lost", lost.named, counter.ErrUsed)
	c.left("after refunds of what was lost", named, 10)
	c.refund("a named charge", known.named, nil)
	c.refund("a named charge, once more", known.named, counter.ErrUsed)
	c.left("after refunds", named, 15)
	for when, requests := range map[string][]weir.Request{"that were lost": lost.requests, "that were refunded": known.requests} {
		var again []string
		for _, r := range requests {
			again = append(again, c.take(1, r)...)
			c.take(1, r) // a repeat isn't charged
		}
		c.left("after repeats of checks "+when, named, 10)
		c.refund("a repeated check", again, nil)
		c.left("after refunds of repeats of checks "+when, named, 15)
	}
	if n := c.drain(named); n != 15 {
		t.Errorf("%d of 15 were admitted", n)
	}

	outcomes := []weir.Outcome{{Amounts: tokens(3)}, {Amounts: tokens(10)}, {Amounts: tokens(15)}, {Abandoned: true}}
	for _, path := range paths {
		for key, row := range map[string]struct {
			lost error // error of settling a lost reservation
			left int64
		}{
			"plain": {nil, 1000 - 3 - 10 - 15 - 5}, // for lost reservations, only the use beyond the reservation is charged
			"named": {counter.ErrUsed, 1000 - 3 - 10 - 15},
		} {
			c.left("after the loss", reserve(path, key), 1000-4*10)
			for i, o := range outcomes {
				c.finish(fmt.Sprint(path, " ", key, " ", i), known.reserved[path][key][i], o, nil)
				c.finish(fmt.Sprint(path, " ", key, " ", i, ", lost"), lost.reserved[path][key][i], o, row.lost)
				c.finish(fmt.Sprint(path, " ", key, " ", i, ", once more"), known.reserved[path][key][i], o, counter.ErrUsed)
				c.finish(fmt.Sprint(path, " ", key, " ", i, ", lost, once more"), lost.reserved[path][key][i], o, counter.ErrUsed)
			}
			c.left("after settlements", reserve(path, key), row.left)
		}
	}

	renew := func(what, receipt string, want error) {
		t.Helper()
		if err := c.l.Renew(t.Context(), &weir.Decision{Receipt: receipt}); !errors.Is(err, want) {
			t.Errorf("renew %s: %v, want %v", what, err, want)
		}
	}
	release := func(receipts ...string) {
		t.Helper()
		for _, r := range receipts {
			if err := c.l.Release(t.Context(), &weir.Decision{Receipt: r}); err != nil {
				t.Errorf("release: %v", err)
			}
		}
	}
	late := c.take(2, slot)
	c.left("after the loss", slot, 0)
	renew("a slot", known.slots[0], nil)
	renew("a slot that was lost, while all are taken", lost.slots[0], weir.ErrSlotLost)
	release(late[0])
	renew("a slot that was lost, while one is free", lost.slots[0], nil)
	renew("another one, while all are taken again", lost.slots[1], weir.ErrSlotLost)
	release(late...)
	release(lost.slots...)
	release(known.slots...)
	c.left("when all are released", slot, 3)

	knows("a node that starts later", open(t, c.url(), cutRules))
	lasting, err := redistest.Lasting(t.Context(), "", func(key string) bool { return key == "weir{nodes}secret" }, c.replica)
	if err != nil || len(lasting) > 0 {
		t.Errorf("keys without a TTL: %q, %v", lasting, err)
	}
}
