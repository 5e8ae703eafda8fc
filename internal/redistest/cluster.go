package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const slots = 16384

// Cluster has three primaries, each with a third of the hash slots, and a replica of each primary.
type Cluster struct {
	Nodes []*Server // Nodes 0, 1 and 2 start as primaries, and 3, 4 and 5 as their replicas, in this order
}

// NewCluster starts six servers and joins them. When it returns, every node sees that all hash slots are served, and
// every replica follows its primary. The servers are closed when the test ends.
func NewCluster(tb TB, o Options) *Cluster {
	tb.Helper()
	c := &Cluster{}
	c.Nodes = newServers(tb, o, 6, func(node *Server) {
		node.conf = slices.Insert(node.conf, 0, // before the lines of o.Config, which take precedence
			"cluster-enabled yes",
			"cluster-port "+node.bus,
			"cluster-announce-ip "+hostOf(node.Addr),
			"cluster-node-timeout 1000",
			"cluster-require-full-coverage no",
			"cluster-allow-replica-migration no",
		)
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i, node := range c.Nodes {
		// Give nodes different epochs from the start. Otherwise they need seconds to resolve collisions.
		_, err := node.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if err == nil && i < 3 {
			_, err = node.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(slots*i/3), strconv.Itoa(slots*(i+1)/3-1))
		}
		check(tb, err)
	}
	for i, replica := range c.Nodes[3:] {
		id, err := ask[string](ctx, c.Nodes[i], "CLUSTER", "MYID")
		check(tb, err)
		// The command is refused until the replica knows its primary. A busy node forgets another node that doesn't
		// answer its introduction in time, so repeat the introduction.
		check(tb, Until(ctx, func(ctx context.Context) error {
			if _, err := replica.Do(ctx, "CLUSTER", "REPLICATE", id); err != nil {
				return errors.Join(err, c.meet(ctx))
			}
			return nil
		}))
	}
	check(tb, Until(ctx, c.Healthy))
	return c
}

// meet introduces every node to the first one. If they know each other already, that has no effect.
func (c *Cluster) meet(ctx context.Context) error {
	for _, node := range c.Nodes[1:] {
		if _, err := c.Nodes[0].Do(ctx, "CLUSTER", "MEET", hostOf(node.Addr), portOf(node.Addr), node.bus); err != nil {
			return err
		}
	}
	return nil
}

// Healthy returns nil if every running node sees that all hash slots are served, knows the other nodes and their roles,
// and, if it is a replica, follows its primary.
func (c *Cluster) Healthy(ctx context.Context) error {
	for node := range up(c.Nodes) {
		text, err := ask[string](ctx, node, "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		info := fields(text)
		if info["cluster_state"] != "ok" || info["cluster_slots_ok"] != strconv.Itoa(slots) || info["cluster_size"] != "3" {
			return fmt.Errorf("%s: cluster_state:%s, %s slots of %s primaries", node.Addr, info["cluster_state"], info["cluster_slots_ok"], info["cluster_size"])
		}
		members, err := node.members(ctx)
		if err != nil {
			return err
		}
		if len(members) != len(c.Nodes) {
			return fmt.Errorf("%s knows %d nodes", node.Addr, len(members))
		}
		for _, m := range members {
			switch {
			case m.replica && m.self:
				if err := node.linked(ctx); err != nil {
					return err
				}
			case !m.replica && len(m.slots) == 0 && !m.failed:
				return fmt.Errorf("%s: %s is a primary without slots", node.Addr, m.addr)
			}
		}
	}
	return nil
}

// Addrs returns the nodes' addresses.
func (c *Cluster) Addrs() []string { return addrs(c.Nodes) }

// Primaries returns the running nodes that serve hash slots.
func (c *Cluster) Primaries(ctx context.Context) ([]*Server, error) {
	owners, err := c.owners(ctx)
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(node *Server) bool { return !slices.Contains(owners, node) }), err
}

// Slot returns the hash slot of a key.
func (c *Cluster) Slot(ctx context.Context, key string) (int, error) {
	for node := range up(c.Nodes) {
		slot, err := ask[int64](ctx, node, "CLUSTER", "KEYSLOT", key)
		return int(slot), err
	}
	return 0, errors.New("no node is up")
}

// Owner returns the running node that serves a key. After a primary has died, it returns an error until the replica has
// taken over.
func (c *Cluster) Owner(ctx context.Context, key string) (*Server, error) {
	slot, err := c.Slot(ctx, key)
	if err != nil {
		return nil, err
	}
	owners, err := c.owners(ctx)
	if err == nil && owners[slot] == nil {
		err = fmt.Errorf("no node that is up serves slot %d", slot)
	}
	if err != nil {
		return nil, err
	}
	return owners[slot], nil
}

// owners returns the node that serves each hash slot. It asks each node only for the node's own slots. A primary that
// comes back may still claim slots that its replica has taken over, but with a lower epoch.
func (c *Cluster) owners(ctx context.Context) ([]*Server, error) {
	owners, epochs := make([]*Server, slots), make([]int, slots)
	for node := range up(c.Nodes) {
		members, err := node.members(ctx)
		if err != nil {
			return nil, err
		}
		for _, m := range members {
			if !m.self || m.replica {
				continue
			}
			for _, span := range m.slots {
				for slot := span[0]; slot <= span[1]; slot++ {
					if owners[slot] == nil || m.epoch > epochs[slot] {
						owners[slot], epochs[slot] = node, m.epoch
					}
				}
			}
		}
	}
	return owners, nil
}

// member is what one node of the Cluster reports about a node, which may be itself.
type member struct {
	id, addr              string
	self, replica, failed bool
	epoch                 int
	slots                 [][2]int // first and last hash slot of each range
}

// members reads CLUSTER NODES:
//
//	id ip:port@bus flags primary ping pong epoch link slot slot-slot [slot->-id]
func (s *Server) members(ctx context.Context) (members []member, err error) {
	text, err := ask[string](ctx, s, "CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 {
			return nil, fmt.Errorf("%s: CLUSTER NODES: a strange line: %q", s.Addr, line)
		}
		flags := strings.Split(f[2], ",")
		is := func(flag string) bool { return slices.Contains(flags, flag) }
		if is("handshake") {
			continue
		}
		m := member{id: f[0], self: is("myself"), replica: is("slave"), failed: is("fail")}
		m.addr, _, _ = strings.Cut(f[1], "@")
		if m.epoch, err = strconv.Atoi(f[6]); err != nil {
			return nil, fmt.Errorf("%s: CLUSTER NODES: epoch: %w", s.Addr, err)
		}
		for _, span := range f[8:] {
			var first, last int
			switch n, _ := fmt.Sscanf(span, "%d-%d", &first, &last); n { // n is 0 for a slot that is moving, which its owner also lists in another form
			case 1:
				m.slots = append(m.slots, [2]int{first, first})
			case 2:
				m.slots = append(m.slots, [2]int{first, last})
			}
		}
		members = append(members, m)
	}
	return members, nil
}
