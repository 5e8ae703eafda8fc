package redistest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

func TestSentinelPromotesTheReplica(t *testing.T) {
	s := redistest.NewSentinel(t, redistest.Options{Password: "secret"})
	old, replica := s.Servers[0], s.Servers[1]
	if p, err := s.Primary(t.Context()); err != nil || p != old {
		t.Fatalf("the primary is %v, %v", p, err)
	}
	must(t, old, "SET", "a", "1")
	soon(t, func(ctx context.Context) error { return replica.Follows(ctx, old) })
	old.Kill()
	soon(t, func(ctx context.Context) error {
		p, err := s.Primary(ctx)
		if err == nil && p != replica {
			err = fmt.Errorf("the primary is %s", p.Addr)
		}
		return err
	})
	if got := must(t, replica, "GET", "a"); got != "1" {
		t.Errorf("a: got %v", got)
	}
	must(t, replica, "SET", "a", "2")
}
