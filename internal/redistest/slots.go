package redistest

import (
	"context"
	"fmt"
	"strconv"
)

// MoveSlots moves a range of hash slots, with their keys, to a primary, while clients continue to send commands. When
// it returns, all running nodes know the new owner.
func (c *Cluster) MoveSlots(ctx context.Context, first, last int, to *Server) error {
	owners, err := c.owners(ctx)
	if err != nil {
		return err
	}
	ids := map[*Server]string{}
	for node := range up(c.Nodes) {
		if ids[node], err = ask[string](ctx, node, "CLUSTER", "MYID"); err != nil {
			return err
		}
	}
	for slot := first; slot <= last; slot++ {
		from := owners[slot]
		if from == nil {
			return fmt.Errorf("no node that is up serves slot %d", slot)
		}
		if from == to {
			continue
		}
		if err := moveSlot(ctx, strconv.Itoa(slot), from, to, ids); err != nil {
			return fmt.Errorf("slot %d: %w", slot, err)
		}
	}
	return Until(ctx, func(ctx context.Context) error { return c.agree(ctx, first, last, ids[to]) })
}

func moveSlot(ctx context.Context, slot string, from, to *Server, ids map[*Server]string) error {
	set := func(s *Server, state string, node *Server) error {
		_, err := s.Do(ctx, "CLUSTER", "SETSLOT", slot, state, ids[node])
		return err
	}
	// Tell the importing node first. Otherwise, nodes would redirect clients back and forth.
	if err := set(to, "IMPORTING", from); err != nil {
		return err
	}
	if err := set(from, "MIGRATING", to); err != nil {
		return err
	}
	// A migrating slot accepts no new keys, so this loop ends.
	for {
		keys, err := ask[[]any](ctx, from, "CLUSTER", "GETKEYSINSLOT", slot, "100")
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		if err := migrate(ctx, from, to, keys); err != nil {
			return err
		}
	}
	// Tell the new owner first. If this program ends right after that, the slot has two owners, and the one with the
	// newer epoch wins. In the other order, the slot would have no owner.
	if err := set(to, "NODE", to); err != nil {
		return err
	}
	return set(from, "NODE", to)
}

func migrate(ctx context.Context, from, to *Server, keys []any) error {
	args := []string{"MIGRATE", hostOf(to.Addr), portOf(to.Addr), "", "0", "5000"}
	if to.auth != nil {
		args = append(args, "AUTH", to.auth[1])
	}
	args = append(args, "KEYS")
	for _, key := range keys {
		args = append(args, key.(string))
	}
	_, err := from.Do(ctx, args...)
	return err
}

// agree returns nil if every running node says that the slots belong to id.
func (c *Cluster) agree(ctx context.Context, first, last int, id string) error {
	for node := range up(c.Nodes) {
		members, err := node.members(ctx)
		if err != nil {
			return err
		}
		known := 0
		for _, m := range members {
			if m.id != id {
				continue
			}
			for _, span := range m.slots {
				known += max(0, min(last, span[1])-max(first, span[0])+1)
			}
		}
		if want := last - first + 1; known != want {
			return fmt.Errorf("%s knows of %d moved slots of %d", node.Addr, known, want)
		}
	}
	return nil
}
