package region

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

// Topology holds the changes that operators have made to the configured regions. Regions send it with every message,
// and adopt the topology with the highest epoch.
type Topology struct {
	Epoch int64 `json:"epoch"`
	// Homes maps a configured home to the region that replaces it. A home that moved back maps to itself.
	Homes map[string]string `json:"homes,omitempty"`
	// Away maps regions that have no share of global limits to their state: Drained or Forgotten.
	Away map[string]string `json:"away,omitempty"`
	// Adopted is when this region learned of each entry of Homes, in µs of its store's clock. It isn't sent to other
	// regions.
	Adopted map[string]int64 `json:"adopted,omitempty"`
}

// States of a region in Topology.Away.
const (
	Drained   = "drained"
	Forgotten = "forgotten"
)

// grace is how long a new home owns no more than its floor. By the end, all loans of the old home have ended.
const grace = 2 * (stake.Term + stake.Margin)

// firstEpoch is the epoch before any change.
const firstEpoch = 1

func (l *Link) topology() *Topology { return l.topo.Load() }

// newer reports whether t replaces old. If both have the same epoch, every region chooses the same one of the two.
func (t *Topology) newer(old *Topology) bool {
	if t.Epoch != old.Epoch {
		return t.Epoch > old.Epoch
	}
	return !t.same(old) && bytes.Compare(t.told().text(), old.told().text()) > 0
}

func (t *Topology) same(old *Topology) bool {
	return maps.Equal(t.Homes, old.Homes) && maps.Equal(t.Away, old.Away)
}

// told returns the part of the topology that is sent to other regions.
func (t *Topology) told() *Topology { return &Topology{Epoch: t.Epoch, Homes: t.Homes, Away: t.Away} }

func (t *Topology) text() []byte {
	b, err := json.Marshal(t)
	if err != nil {
		panic(err) // can't happen: there are only strings and numbers
	}
	return b
}

// topologyKey is the key of the stored topology. Keys of stakes start with other braces.
const topologyKey = "{topology}"

// keepTopology is the topology's TTL.
const keepTopology = 10 * 365 * 24 * time.Hour

// learn stores the topology heard if it is newer than the stored one, and then adopts the stored one. If heard is nil,
// learn only reads. If the store's topology is older than this node's, or missing, learn stores this node's. For an
// operator's change, of is the epoch that the change is based on. If the store has a newer topology by now, learn
// refuses the change.
func (l *Link) learn(ctx context.Context, heard *Topology, of int64) error {
	s := l.stakes.Load()
	if s == nil || heard != nil && of == 0 && !heard.newer(l.topology()) {
		return nil
	}
	var kept Topology
	late := false
	err := s.cells.Update(ctx, []string{topologyKey}, func(values [][]byte, now int64) []Cell {
		kept = Topology{Epoch: firstEpoch}
		_ = json.Unmarshal(values[0], &kept) // an unreadable value counts as a missing one
		text := values[0]
		if known := l.topology(); known.newer(&kept) { // the store has lost it. Without it, a starting node would believe that no change was made
			kept, text = *known, known.text()
		}
		late = of != 0 && kept.Epoch > of
		if heard == nil || late || !heard.newer(&kept) {
			return []Cell{{text, keepTopology}}
		}
		old := kept
		kept = *heard
		kept.Adopted = map[string]int64{}
		for name, home := range kept.Homes {
			if kept.Adopted[name] = now; old.Homes[name] == home {
				kept.Adopted[name] = old.Adopted[name]
			}
		}
		return []Cell{{kept.text(), keepTopology}}
	})
	if err != nil {
		return fmt.Errorf("can't store the change of regions: %w", err)
	}
	if old := l.topology(); kept.newer(old) {
		l.topo.Store(&kept)
		l.log.Warn("regions were changed", "epoch", kept.Epoch, "homes", kept.Homes, "away", kept.Away)
	}
	if late {
		return fmt.Errorf("%w: someone else changed the regions at the same time: see weir regions, and try again", ErrRefused)
	}
	return nil
}

func (t *Topology) home(named string) string { return cmp.Or(t.Homes[named], named) }

// inGrace reports whether a region became a home so recently that it doesn't own the limits yet. For another region
// this is approximate, because that region may have learned of the change at another time.
func (l *Link) inGrace(region string, now int64) bool {
	t := l.topology()
	for name, home := range t.Homes {
		if home == region && now < t.Adopted[name]+grace.Microseconds() {
			return true
		}
	}
	return false
}

// share returns this region's own part of a limit.
func (l *Link) share(p *counter.Policy, now int64) stake.Share {
	t := l.topology()
	var gone []string
	for name, what := range t.Away {
		if what == Forgotten {
			gone = append(gone, name)
		}
	}
	others := int64(len(l.peers))
	floor := min(int64(p.Floor), 100/(others+1))
	own := stake.Whole(p) * floor / 100
	s := stake.Share{Own: own, Rate: 10 * floor, Gone: gone}
	named := cmp.Or(p.Home, l.home)
	switch {
	case slices.Contains(gone, l.name):
		return stake.Share{Gone: gone}
	case t.home(named) != l.name:
		return s
	}
	others -= int64(len(gone))
	all := stake.Share{Own: stake.Whole(p) - others*own, Rate: 1000 - 10*floor*others, Gone: gone}
	if t.Homes[named] == "" {
		return all
	}
	since := t.Adopted[named] + grace.Microseconds() // when the limit moved here, plus the grace period
	begun := stake.Begun(p, now)
	if p.Limit.Algorithm == counter.SlidingCounter { // this region doesn't know what the old home counted in the previous window
		begun -= p.Limit.Window.Microseconds()
	}
	if begun < since {
		return s
	}
	all.Since, all.Before = since, own
	return all
}

// ErrRefused means that an operator's request was refused. If the message mentions force, the request can be repeated
// with force.
var ErrRefused = errors.New("not done")

// change applies an operator's change: it calls edit with a copy of the store's topology and stores the result, unless
// edit returns an error. It doesn't use this node's topology, because another node may have made a change a moment ago.
// All named regions must be known.
func (l *Link) change(ctx context.Context, edit func(*Topology) error, names ...string) error {
	for _, name := range names {
		if !l.Knows(name) {
			return fmt.Errorf("%w: no region is named %q: the regions are %v", ErrRefused, name, l.names())
		}
	}
	if err := l.learn(ctx, nil, 0); err != nil {
		return err
	}
	old := l.topology()
	t := &Topology{Epoch: old.Epoch + 1, Homes: map[string]string{}, Away: map[string]string{}}
	maps.Copy(t.Homes, old.Homes)
	maps.Copy(t.Away, old.Away)
	if err := edit(t); err != nil || t.same(old) {
		return err
	}
	if err := l.learn(ctx, t, old.Epoch); err != nil {
		return err
	}
	for name := range l.peers { // a region that misses this message learns of the change with the next heartbeat
		l.answers(ctx, name)
	}
	return nil
}

func (l *Link) names() []string {
	return slices.Sorted(slices.Values(slices.AppendSeq([]string{l.name}, maps.Keys(l.peers))))
}

// answers sends a heartbeat to a region and reports whether the region answers. The region's status can't replace this,
// because a region that has just died still counts as up for some seconds.
func (l *Link) answers(ctx context.Context, name string) bool {
	if name == l.name {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, l.beatFor())
	defer cancel()
	_, err := l.peers[name].say(ctx, &message{})
	return err == nil
}

// Move moves all limits whose home is one region to another region. The old home keeps its floor. After a grace period,
// the new home owns the rest: a bucket starts empty then, and a window limit starts with the next window.
func (l *Link) Move(ctx context.Context, from, to string, force bool) error {
	return l.change(ctx, func(t *Topology) error {
		switch {
		case from == to:
			return fmt.Errorf("%w: %s is the home already", ErrRefused, to)
		case t.Away[to] != "":
			return fmt.Errorf("%w: %s is %s: weir regions restore %s first", ErrRefused, to, t.Away[to], to)
		case t.home(from) != from:
			return fmt.Errorf("%w: %s is no longer a home: %s has replaced it", ErrRefused, from, t.home(from))
		case !l.answers(ctx, to):
			return fmt.Errorf("%w: %s can't be reached", ErrRefused, to)
		case t.home(l.home) != from && !l.homeOfRules(from):
			return fmt.Errorf("%w: %s isn't the home of any limit", ErrRefused, from)
		case !force && !l.answers(ctx, from):
			return fmt.Errorf("%w: %s can't be reached. If it is only cut off, it goes on as the home, and both together admit up to twice the limit until it hears of this. If it is dead, use --force", ErrRefused, from)
		}
		for name, home := range t.Homes {
			if home == from {
				t.Homes[name] = to
			}
		}
		t.Homes[from] = to
		return nil
	}, from, to)
}

// SetState drains a region, forgets it, or, if state is "", restores it. A drained region asks the home to decide
// checks of global limits, and other regions borrow what it had. Forgetting is for a dead region: the home owns that
// region's part of global limits at once.
func (l *Link) SetState(ctx context.Context, name, state string, force bool) error {
	return l.change(ctx, func(t *Topology) error {
		switch {
		case state == "":
			delete(t.Away, name)
			return nil
		case t.home(l.home) == name || l.homeOfRules(name):
			return fmt.Errorf("%w: %s is the home, at least of some rules: move that first, with weir regions move %s TO", ErrRefused, name, name)
		case state == Forgotten && t.Away[name] != state && !force && (name == l.name || l.peers[name].status().Up):
			return fmt.Errorf("%w: %s is alive. What it has would be admitted once more: drain it, or use --force", ErrRefused, name)
		}
		t.Away[name] = state
		return nil
	}, name)
}

// homeOfRules reports whether the region is the home of any rule in force.
func (l *Link) homeOfRules(name string) bool {
	limiter := l.limiter.Load()
	if limiter == nil || limiter.Rules() == nil {
		return false
	}
	return slices.ContainsFunc(limiter.Rules().Rules().Rules, func(r weir.Rule) bool { return r.Global && l.HomeOf(&r) == name })
}

// Here is the state of this region.
type Here struct {
	Epoch int64  `json:"epoch"`
	Home  string `json:"home"` // the home of limits that name none
	// State is drained, forgotten, or "".
	State string `json:"state,omitempty"`
	// Grace reports that this region has recently become a home, and still owns no more than its
	// floor.
	Grace bool `json:"grace,omitempty"`
}

// Here returns the state of this region.
func (l *Link) Here() Here {
	t := l.topology()
	return Here{Epoch: t.Epoch, Home: t.home(l.home), State: t.Away[l.name], Grace: l.inGrace(l.name, time.Now().UnixMicro())}
}
