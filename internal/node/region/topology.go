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

// Topology is what operators have said of regions since they were set up. Regions tell it each other with every message; the one
// with the highest epoch holds.
type Topology struct {
	Epoch int64 `json:"epoch"`
	// Homes says which region is the home of limits that name another one, or that have come back to the one that they name.
	Homes map[string]string `json:"homes,omitempty"`
	// Away are regions that have no share of global limits: see Drain and Forget.
	Away map[string]string `json:"away,omitempty"`
	// Adopted is when this region learned of each of Homes, µs by the clock of its store. It isn't told.
	Adopted map[string]int64 `json:"adopted,omitempty"`
}

// What a region that is away is.
const (
	Drained   = "drained"
	Forgotten = "forgotten"
)

// grace is how long a new home has no more than its floor. Loans of the old one are over by then.
const grace = 2 * (stake.Term + stake.Margin)

// firstEpoch is that of regions of which nothing was said.
const firstEpoch = 1

func (l *Link) topology() *Topology {
	if t := l.topo.Load(); t != nil {
		return t
	}
	return &Topology{Epoch: firstEpoch}
}

// newer reports whether t holds, rather than old. Of two with one epoch all regions choose the same.
func (t *Topology) newer(old *Topology) bool {
	if t.Epoch != old.Epoch {
		return t.Epoch > old.Epoch
	}
	if maps.Equal(t.Homes, old.Homes) && maps.Equal(t.Away, old.Away) {
		return false
	}
	return bytes.Compare(t.told().text(), old.told().text()) > 0
}

// told is what other regions hear of it.
func (t *Topology) told() *Topology { return &Topology{Epoch: t.Epoch, Homes: t.Homes, Away: t.Away} }

func (t *Topology) text() []byte {
	b, err := json.Marshal(t)
	if err != nil {
		panic(err) // maps of texts
	}
	return b
}

// topologyKey is where it is kept. Braces keep it apart from stakes.
const topologyKey = "{topology}"

// keepTopology is for how long.
const keepTopology = 10 * 365 * 24 * time.Hour

// learn has a topology kept in the region's store, if it is newer than what is there, and takes up what is kept. nil only looks. If the
// store has an older one than this node, or none, it gets the node's.
func (l *Link) learn(ctx context.Context, heard *Topology) error {
	if heard != nil && !heard.newer(l.topology()) {
		return nil
	}
	return l.keep(ctx, heard, 0)
}

// keep does what learn says. For an operator's change, of is the epoch that it was based on: it is refused if the store has moved on since.
func (l *Link) keep(ctx context.Context, heard *Topology, of int64) error {
	s := l.stakes.Load()
	if s == nil {
		return nil
	}
	var kept Topology
	late := false
	err := s.cells.Update(ctx, []string{topologyKey}, func(values [][]byte, now int64) []Cell {
		kept = Topology{Epoch: firstEpoch}
		_ = json.Unmarshal(values[0], &kept) // what makes no sense was never said
		text := values[0]
		if known := l.topology(); known.newer(&kept) { // the store has forgotten it: a node that starts must not take it for new
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
		return fmt.Errorf("what became of regions can't be kept: %w", err)
	}
	if old := l.topology(); kept.newer(old) {
		l.topo.Store(&kept)
		l.log.Warn("regions were changed", "epoch", kept.Epoch, "homes", kept.Homes, "away", kept.Away)
	}
	if late {
		return fmt.Errorf("%w: somebody else has changed regions at the same moment: see weir regions, and try again", ErrRefused)
	}
	return nil
}

// home is the region that now is the home, where another was named.
func (t *Topology) home(named string) string { return cmp.Or(t.Homes[named], named) }

// inGrace reports whether a region has become a home of something so lately that it doesn't own it yet. Of another region that is as good as
// true: it may have learned of it at another moment.
func (l *Link) inGrace(region string, now int64) bool {
	t := l.topology()
	for name, home := range t.Homes {
		if home == region && now < t.Adopted[name]+grace.Microseconds() {
			return true
		}
	}
	return false
}

// share is what of a limit is this region's own.
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
	since := t.Adopted[named] + grace.Microseconds() // it has moved here
	begun := stake.Begun(p, now)
	if p.Limit.Algorithm == counter.SlidingCounter { // what the old home counted in the window before isn't known here
		begun -= p.Limit.Window.Microseconds()
	}
	if begun < since {
		return s
	}
	all.Since, all.Before = since, own
	return all
}

// change has the current topology changed, and told to the others.
func (l *Link) change(ctx context.Context, old *Topology, edit func(*Topology)) error {
	t := &Topology{Epoch: old.Epoch + 1, Homes: maps.Clone(old.Homes), Away: maps.Clone(old.Away)}
	if t.Homes == nil {
		t.Homes = map[string]string{}
	}
	if t.Away == nil {
		t.Away = map[string]string{}
	}
	edit(t)
	if err := l.keep(ctx, t, old.Epoch); err != nil {
		return err
	}
	for _, p := range l.peers { // they hear of it with the next heartbeat, too
		beat, cancel := context.WithTimeout(ctx, l.timeout)
		_, _ = p.say(beat, &message{})
		cancel()
	}
	return nil
}

// ErrRefused is why an operator's wish isn't carried out. Force would, where it says so.
var ErrRefused = errors.New("not done")

// current is the topology for somebody who wants to change it for some regions, which must be known. It is looked up: another node
// may have changed it a moment ago.
func (l *Link) current(ctx context.Context, names ...string) (*Topology, error) {
	for _, name := range names {
		if name != l.name && l.peers[name] == nil {
			return nil, fmt.Errorf("%w: no region is named %q: the regions are %v", ErrRefused, name, l.names())
		}
	}
	err := l.learn(ctx, nil)
	return l.topology(), err
}

// names are those of all regions.
func (l *Link) names() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range maps.Keys(l.peers) {
			if !yield(name) {
				return
			}
		}
		yield(l.name)
	})
}

func (l *Link) reachable(name string) bool { return name == l.name || l.peers[name].status().Up }

// answers reports whether a region answers now. One that has just died counts as heard for some seconds more.
func (l *Link) answers(ctx context.Context, name string) bool {
	if name == l.name {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, max(beatEvery, l.timeout))
	defer cancel()
	_, err := l.peers[name].say(ctx, &message{})
	return err == nil
}

// Move makes one region the home of all limits that another is home of. The old home keeps its floor. The new one owns the rest after
// a while: a bucket begins without tokens then, and a window with the next one.
func (l *Link) Move(ctx context.Context, from, to string, force bool) error {
	t, err := l.current(ctx, from, to)
	if err != nil {
		return err
	}
	switch {
	case from == to:
		return fmt.Errorf("%w: %s is the home already", ErrRefused, to)
	case t.Away[to] != "":
		return fmt.Errorf("%w: %s is %s: weir regions restore %s first", ErrRefused, to, t.Away[to], to)
	case t.home(from) != from:
		return fmt.Errorf("%w: %s isn't a home any more, %s has taken its place", ErrRefused, from, t.home(from))
	case !l.answers(ctx, to):
		return fmt.Errorf("%w: %s can't be reached", ErrRefused, to)
	case t.home(l.home) != from && !l.homeOfRules(from):
		return fmt.Errorf("%w: %s isn't the home of any limit", ErrRefused, from)
	case !force && !l.answers(ctx, from):
		return fmt.Errorf("%w: %s can't be reached. If it is only cut off, it goes on as the home, and both together admit up to twice the limit until it hears of this. If it is dead, use --force", ErrRefused, from)
	}
	return l.change(ctx, t, func(t *Topology) {
		for name, home := range t.Homes {
			if home == from {
				t.Homes[name] = to
			}
		}
		t.Homes[from] = to
	})
}

// Drain takes a region's share out of use: its checks of global limits ask the home, and the others borrow what it has.
func (l *Link) Drain(ctx context.Context, name string) error {
	return l.leave(ctx, name, Drained, false)
}

// Forget is for a region that is dead: what it has of global limits is the home's at once.
func (l *Link) Forget(ctx context.Context, name string, force bool) error {
	return l.leave(ctx, name, Forgotten, force)
}

func (l *Link) leave(ctx context.Context, name, how string, force bool) error {
	t, err := l.current(ctx, name)
	if err != nil {
		return err
	}
	switch {
	case t.home(l.home) == name || l.homeOfRules(name):
		return fmt.Errorf("%w: %s is the home, at least of some rules: move that first, with weir regions move %s TO", ErrRefused, name, name)
	case t.Away[name] == how:
		return nil
	case how == Forgotten && l.reachable(name) && !force:
		return fmt.Errorf("%w: %s is alive. What it has would be admitted once more: drain it, or use --force", ErrRefused, name)
	}
	return l.change(ctx, t, func(t *Topology) { t.Away[name] = how })
}

// homeOfRules reports whether a rule in force has its home there.
func (l *Link) homeOfRules(name string) bool {
	limiter := l.limiter.Load()
	if limiter == nil || limiter.Rules() == nil {
		return false
	}
	return slices.ContainsFunc(limiter.Rules().Rules().Rules, func(r weir.Rule) bool { return r.Global && l.HomeOf(&r) == name })
}

// Restore gives a region that was drained or forgotten its share again.
func (l *Link) Restore(ctx context.Context, name string) error {
	t, err := l.current(ctx, name)
	if err != nil || t.Away[name] == "" {
		return err
	}
	return l.change(ctx, t, func(t *Topology) { delete(t.Away, name) })
}

// Here is how this region is.
type Here struct {
	Epoch int64  `json:"epoch"`
	Home  string `json:"home"` // of limits that name none
	// State is drained, forgotten, or "".
	State string `json:"state,omitempty"`
	// Grace: it has become a home lately, and owns no more than its floor yet.
	Grace bool `json:"grace,omitempty"`
}

// Here is how this region is.
func (l *Link) Here() Here {
	t := l.topology()
	return Here{Epoch: t.Epoch, Home: t.home(l.home), State: t.Away[l.name], Grace: l.inGrace(l.name, time.Now().UnixMicro())}
}
