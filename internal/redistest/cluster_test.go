package redistest

import (
	"context"
	"fmt"
	"testing"
)

func TestClusterPromotesAReplica(t *testing.T) {
	c := NewCluster(t, Options{})
	const key = "a"
	old, err := c.Owner(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	must(t, old, "SET", key, "1")
	must(t, old, "WAIT", "1", "0")
	old.Kill()
	var heir *Server
	soon(t, func(ctx context.Context) error {
		heir, err = c.Owner(ctx, key)
		return err
	})
	if got := must(t, heir, "GET", key); got != "1" {
		t.Errorf("%s: got %v", key, got)
	}
	soon(t, c.Healthy)

	// It comes back as a replica of its heir.
	if err := old.Restart(); err != nil {
		t.Fatal(err)
	}
	soon(t, func(ctx context.Context) error {
		role, err := old.list(ctx, "ROLE")
		if err == nil && role[0] != "slave" {
			err = fmt.Errorf("its role is %v", role[0])
		}
		return err
	})
	soon(t, c.Healthy)
	if p, err := c.Owner(t.Context(), key); err != nil || p != heir {
		t.Errorf("owner: got %v, %v", p, err)
	}
}
