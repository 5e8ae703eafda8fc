package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

// TestAPlannedFailoverIsFollowedAtOnce checks that a store moves to the new primary as soon as it is promoted. The Sentinels
// name the new primary only about a second later, and what is written to the old primary meanwhile is lost. In this test they
// never name it, because the Sentinel that conducts the failover is stopped. The others still name the old primary, which
// accepts writes, and the store stays away from it.
func TestAPlannedFailoverIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	r := redistest.NewSentinel(t, redistest.Options{})
	s := open(t, Options{URL: "redis-sentinel://" + r.Addrs()[1] + "," + r.Addrs()[0] + "," + r.Addrs()[2] + "/" + redistest.MasterName, Timeout: 2 * time.Second})
	p := policy(t, "p", counter.FixedWindow, 1_000_000, year)
	mustTake(t, s, charge1(p, "s"))
	old, promoted := r.Servers[0], r.Servers[1]
	until(t, func(ctx context.Context) error { // the store hears all Sentinels
		for _, sentinel := range r.Sentinels {
			v, err := sentinel.Do(ctx, "CLIENT", "LIST", "TYPE", "pubsub")
			if err != nil || !strings.Contains(fmt.Sprint(v), " sub=2 ") {
				return fmt.Errorf("%s: %v, %w", sentinel.Addr, v, err)
			}
		}
		return nil
	})
	conductor := r.Sentinels[0]
	do(t, conductor, "SENTINEL", "FAILOVER", redistest.MasterName)
	until(t, func(ctx context.Context) error { return isMaster(ctx, promoted) })
	if err := conductor.Stop(); err != nil {
		t.Fatal(err)
	}
	named := func() bool { // the others name the new primary
		return strings.HasSuffix(promoted.Addr, fmt.Sprint(":", do(t, r.Sentinels[1], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.MasterName).([]any)[1]))
	}
	late := named() // the conductor has told them before it was stopped
	key := keyOf(s, p, "s")
	held := func(r *redistest.Server) string { return fmt.Sprint(do(t, r, "HGETALL", key)) }
	until(t, func(context.Context) error {
		before := held(promoted)
		if mustTake(t, s, charge1(p, "s")); held(promoted) == before {
			return errors.New("a charge went elsewhere")
		}
		return isMaster(t.Context(), promoted) // and no replica that has the charge from the old primary
	})
	if named() && !late {
		t.Error("the store moved only when Sentinels named the new primary")
	}
	before := held(old)
	for range 20 {
		s.lost.set()
		mustTake(t, s, charge1(p, "s"))
	}
	// After eight seconds or more, the other Sentinels undo the promotion. Then the store is right to go back.
	if isMaster(t.Context(), promoted) == nil && held(old) != before {
		t.Error("charges went to the old primary again")
	}
}

// isMaster returns nil if a server is a primary.
func isMaster(ctx context.Context, r *redistest.Server) error {
	v, err := r.Do(ctx, "ROLE")
	if err == nil && v.([]any)[0] != "master" {
		err = fmt.Errorf("%s is %v", r.Addr, v.([]any)[0])
	}
	return err
}

// TestAFailoverBeforeTheFirstHeartbeat checks that a store that has found the primary but can't use it follows a failover.
// Otherwise, a node that starts at such a moment would never come up.
func TestAFailoverBeforeTheFirstHeartbeat(t *testing.T) {
	t.Parallel()
	r := redistest.NewSentinel(t, redistest.Options{})
	do(t, r.Servers[0], "CONFIG", "SET", "min-replicas-to-write", "9") // so that it takes no writes
	s := openLate(t, Options{URL: "redis-sentinel://" + strings.Join(r.Addrs(), ",") + "/" + redistest.MasterName})
	until(t, func(context.Context) error {
		if why := *s.first.cause.Load(); !strings.Contains(why, "NOREPLICAS") {
			return errors.New(why)
		}
		return nil
	})
	do(t, r.Sentinels[0], "SENTINEL", "FAILOVER", redistest.MasterName)
	until(t, s.Ready)
	if err := isMaster(t.Context(), r.Servers[1]); err != nil {
		t.Error(err)
	}
	mustTake(t, s, charge1(policy(t, "p", counter.FixedWindow, 10, year), "s"))
}
