package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

func TestClusterPromotesAReplica(t *testing.T) {
	c := redistest.NewCluster(t, redistest.Options{})
	const key = "a"
	old, err := c.Owner(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	must(t, old, "SET", key, "1")
	replica := c.Nodes[3+slices.Index(c.Nodes, old)]
	soon(t, func(ctx context.Context) error { return replica.Follows(ctx, old) })
	old.Kill()
	var heir *redistest.Server
	soon(t, func(ctx context.Context) error {
		heir, err = c.Owner(ctx, key)
		return err
	})
	if got := must(t, heir, "GET", key); got != "1" {
		t.Errorf("%s: got %v", key, got)
	}
	soon(t, c.Healthy)

	// The old primary comes back as a replica of its successor.
	if err := old.Restart(); err != nil {
		t.Fatal(err)
	}
	soon(t, func(ctx context.Context) error {
		role, err := old.Do(ctx, "ROLE")
		if err == nil && role.([]any)[0] != "slave" {
			err = fmt.Errorf("its role is %v", role)
		}
		return err
	})
	soon(t, c.Healthy)
	if p, err := c.Owner(t.Context(), key); err != nil || p != heir {
		t.Errorf("owner: got %v, %v", p, err)
	}
}

func TestMoveSlots(t *testing.T) {
	c := redistest.NewCluster(t, redistest.Options{Password: "secret"})
	from, to := c.Nodes[0], c.Nodes[1]
	const tag = "{06S}" // its slot is 0, the first slot of the first node
	if slot, err := c.Slot(t.Context(), tag); err != nil || slot != 0 {
		t.Fatalf("slot of %s: got %d, %v", tag, slot, err)
	}
	const keys = 250
	for i := range keys {
		must(t, from, "SET", tag+strconv.Itoa(i), strconv.Itoa(i), "EX", "1000")
	}

	// While the slot moves, clients keep writing and follow redirections.
	wrote := make(chan error)
	moved := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			if err := setAnywhere(t.Context(), c, tag+"live", n); err != nil {
				wrote <- err
				return
			}
			select {
			case <-moved:
				wrote <- nil
				return
			default:
			}
		}
	}()
	err := c.MoveSlots(t.Context(), 0, 9, to)
	close(moved)
	if err := errors.Join(err, <-wrote); err != nil {
		t.Fatal(err)
	}

	if p, err := c.Owner(t.Context(), tag); err != nil || p != to {
		t.Errorf("owner: got %v, %v", p, err)
	}
	for i := range keys {
		if got := must(t, to, "GET", tag+strconv.Itoa(i)); got != strconv.Itoa(i) {
			t.Errorf("key %d: got %v", i, got)
		}
	}
	if got := must(t, to, "CLUSTER", "COUNTKEYSINSLOT", "0"); got != int64(keys+1) {
		t.Errorf("%v keys in the slot, want %d", got, keys+1)
	}
	if got, err := redistest.Lasting(t.Context(), tag, nil, to); err != nil || !slices.Equal(got, []string{tag + "live"}) {
		t.Errorf("keys that lost their TTL: %v, %v", got, err)
	}
	primaries, err := c.Primaries(t.Context())
	if err != nil || !slices.Equal(primaries, c.Nodes[:3]) {
		t.Errorf("primaries: got %v, %v", primaries, err)
	}
	soon(t, c.Healthy)
}

// setAnywhere sets a key on whichever primary accepts it, and retries until one does. While a key is being moved, its
// destination only accepts it after ASKING.
func setAnywhere(ctx context.Context, c *redistest.Cluster, key string, n int) error {
	return redistest.Until(ctx, func(ctx context.Context) error {
		var errs []error
		for _, node := range c.Nodes[:2] {
			reply, err := setAsking(ctx, node, key, n)
			if err == nil && reply == "OK" {
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: %v, %w", node.Addr, reply, err))
		}
		return errors.Join(errs...)
	})
}

func setAsking(ctx context.Context, node *redistest.Server, key string, n int) (string, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", node.Socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for _, command := range [][]string{{"AUTH", "secret"}, {"ASKING"}} {
		if reply, err := ask(conn, command...); err != nil || reply != "OK" {
			return reply, err
		}
	}
	return ask(conn, "SET", key, strconv.Itoa(n))
}
