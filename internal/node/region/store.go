// Package region makes one limit out of the limits of several regions, each with a Redis of its own. Every region owns
// a share of a global limit and decides by itself. A region that has too few tokens borrows some from the others, over
// a link between their nodes. Tokens only move, so all regions together admit no more than a single region would.
// Limits that are strict, or too small to be shared, are counted in the store of one region, their home. The other
// regions ask the home on every check. There is no election: a home is a setting, and only an operator changes it. ADR
// 22 and 23 give the reasons.
//
//	region.Store     the limiter's store: the region's own store, its stakes in shared limits, and other regions' stores
//	region.Link      messages between this node and nodes of other regions
//	region.Topology  which regions are homes, drained or forgotten, as changed by operators
//	region.Cells     where a region keeps its stakes and the topology
//
// The arithmetic of shares and loans is in internal/node/stake.
package region

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
)

// Store is the store of a region. It counts the region's own limits in the region's store, shared limits in stakes, and
// other global limits in the store of their home region.
type Store struct {
	own    counter.Store
	link   *Link
	stakes *stakes

	refusals refusals
}

var _ counter.Store = (*Store)(nil)

// NewStore creates a Store from the region's own store, its link to other regions, and the cells in which it keeps
// stakes.
func NewStore(own counter.Store, link *Link, cells Cells) *Store {
	s := &Store{own: own, link: link, stakes: newStakes(link, cells), refusals: refusals{believed: believeFor}}
	link.stakes.Store(s.stakes)
	return s
}

// shared is what placeOf returns for limits that regions share. It can't be the name of a region.
const shared = "*"

// placeOf returns where a limit is counted: "" for this region's store, shared, or the name of another region.
func (s *Store) placeOf(p *counter.Policy) string {
	if s.link.sharesHere(p) {
		return shared
	}
	return s.link.homeOf(p)
}

// placeHere is like placeOf, but for charges that another region has sent because this region is their home.
func (s *Store) placeHere(p *counter.Policy) string {
	if s.link.shares(p) {
		return shared
	}
	return ""
}

// Take decides charges: it debits all of them or none. The region's own charges come first. If they are refused, homes
// are only asked for the state of their counters.
func (s *Store) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	if !slices.ContainsFunc(charges, func(c counter.Charge) bool { return c.Policy.Global }) {
		s.own.Take(ctx, charges, results)
		return
	}
	named := slices.Clone(charges)
	for i := range named {
		s.link.rename(&named[i].Counter)
	}
	t := &taking{Store: s, asked: charges, charges: named, results: results, wait: s.link.timeout}
	t.run(ctx, s.placeOf)
}

// takeFor decides charges for another region, which is waiting for the answer.
func (s *Store) takeFor(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	t := &taking{Store: s, asked: charges, charges: charges, results: results, wait: s.link.timeout / 2}
	t.run(ctx, s.placeHere)
}

type taking struct {
	*Store
	asked   []counter.Charge
	charges []counter.Charge // with the names that all regions use for clients
	results []counter.Result
	home    []string      // where each charge is counted; see placeOf
	wait    time.Duration // how long to wait for other regions
	taken   []int         // indexes of debited charges, which are given back if another charge is refused
	refused bool
}

func (t *taking) run(ctx context.Context, placeOf func(*counter.Policy) string) {
	for _, c := range t.charges {
		t.home = append(t.home, placeOf(c.Policy))
	}
	homes := slices.Clone(t.home) // a copy, because t.home changes if a home can't be reached
	if !slices.ContainsFunc(homes, func(home string) bool { return home != "" }) {
		t.Store.own.Take(ctx, t.charges, t.results)
		return
	}
	for i := range t.charges {
		t.charges[i].Returnable = true // a home may refuse later
	}
	t.own(ctx, t.at(""), false)
	for _, i := range t.at(shared) {
		t.share(ctx, i)
	}
	for i, home := range homes {
		if home != "" && home != shared && slices.Index(homes, home) == i {
			t.ask(ctx, home)
		}
	}
}

func (t *taking) at(home string) (of []int) {
	for i := range t.charges {
		if t.home[i] == home {
			of = append(of, i)
		}
	}
	return of
}

// pick copies the charges with the given indexes. If the request has already been refused, the copies are peeks.
func (t *taking) pick(of []int) ([]counter.Charge, []counter.Result) {
	charges := make([]counter.Charge, len(of))
	for j, i := range of {
		charges[j] = t.charges[i]
		charges[j].Peek = charges[j].Peek || t.refused
	}
	return charges, make([]counter.Result, len(of))
}

// own decides charges by the region's own store. local marks charges whose home can't be reached. They are counted as
// if the limit were this region's own.
func (t *taking) own(ctx context.Context, of []int, local bool) {
	if len(of) == 0 {
		return
	}
	if local {
		for _, i := range of {
			t.charges[i].Subject, t.home[i] = t.asked[i].Subject, ""
		}
	}
	charges, results := t.pick(of)
	t.Store.own.Take(ctx, charges, results)
	for j := range results {
		results[j].Local = local
	}
	t.decided(ctx, of, charges, results)
}

// share decides a charge by this region's stake in its limit.
func (t *taking) share(ctx context.Context, i int) {
	charges, results := t.pick([]int{i})
	c := &charges[0]
	if t.link.cutOff(c.Policy) {
		switch c.Policy.OnPartition {
		case counter.FailLocal:
			t.own(ctx, []int{i}, true)
			return
		case counter.FailRefuse:
			t.results[i] = counter.Result{Err: fmt.Errorf("%w: region %s is silent", counter.ErrPartition, t.link.homeOf(c.Policy))}
			return
		}
	}
	wait := t.wait
	if t.refused || c.Policy.Shadow {
		wait = 0
	}
	results[0] = t.stakes.take(ctx, c, wait)
	t.decided(ctx, []int{i}, charges, results)
}

// ask asks a home to decide charges. If the home can't be reached, each limit's on_partition decides.
func (t *taking) ask(ctx context.Context, home string) {
	of := t.at(home)
	charges, results := t.pick(of)
	if len(of) == 1 {
		if known, ok := t.refusals.find(&charges[0]); ok {
			results[0] = known
			t.decided(ctx, of, charges, results)
			return
		}
	}
	err := t.link.take(ctx, home, charges, results)
	if err == nil {
		for i := range charges {
			t.refusals.note(&charges[i], &results[i])
		}
		t.decided(ctx, of, charges, results)
		return
	}
	var local []int
	for _, i := range of {
		if t.charges[i].Policy.OnPartition == counter.FailLocal {
			local = append(local, i)
			continue
		}
		t.results[i] = counter.Result{Err: errors.Join(counter.ErrPartition, err)} // the limiter gives back the tokens of the other charges
	}
	t.own(ctx, local, true)
}

// decided records the results of a store. If they refuse the request, it gives back what the request has taken
// elsewhere.
func (t *taking) decided(ctx context.Context, of []int, charges []counter.Charge, results []counter.Result) {
	refuses := false
	for j, i := range of {
		t.results[i] = results[j]
		refuses = refuses || !results[j].Allowed && results[j].Err == nil && !charges[j].Policy.Shadow
	}
	if refuses {
		t.refuse(ctx)
		return
	}
	for j, i := range of {
		if r := &results[j]; r.Allowed && !r.Again && r.Err == nil && !charges[j].Peek {
			t.taken = append(t.taken, i)
		}
	}
}

// refuse gives back the tokens that the request has taken so far, and then reads the state of its counters.
func (t *taking) refuse(ctx context.Context) {
	if t.refused {
		return
	}
	t.refused = true
	if len(t.taken) == 0 {
		return
	}
	var back []counter.Return
	for _, i := range t.taken {
		c := &t.charges[i]
		back = append(back, counter.Return{Counter: c.Counter, N: c.N, Slot: t.results[i].Slot, Hold: c.Hold})
	}
	// If giving back fails, the tokens stay debited.
	_ = t.giveBack(ctx, counter.Once{}, 0, back, func(i int) string { return t.home[t.taken[i]] })
	var own []int
	for _, i := range t.taken {
		switch t.home[i] {
		case "":
			own = append(own, i)
		case shared:
			charges, _ := t.pick([]int{i})
			t.results[i] = t.stakes.take(ctx, &charges[0], 0)
		}
	}
	if len(own) == 0 {
		return
	}
	charges, results := t.pick(own)
	t.Store.own.Take(ctx, charges, results)
	for j, i := range own {
		results[j].Local = t.results[i].Local
		t.results[i] = results[j]
	}
}

// GiveBack returns tokens to the stores that counted them.
func (s *Store) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	if !slices.ContainsFunc(returns, func(r counter.Return) bool { return r.Policy.Global }) {
		return s.own.GiveBack(ctx, once, keep, returns)
	}
	returns = slices.Clone(returns)
	for i := range returns {
		s.link.rename(&returns[i].Counter)
	}
	return s.giveBack(ctx, once, keep, returns, func(i int) string { return s.placeOf(returns[i].Policy) })
}

// giveBack returns tokens to the stores at their homes. Each store and each stake prevents a second return by itself,
// with a mark or by the records of holds. If some returns depend on records, stores without such returns come last. If
// no record existed, those stores give back nothing but slots.
func (s *Store) giveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return, homeOf func(i int) string) (err error) {
	by, recorded := map[string][]counter.Return{}, map[string]bool{}
	for i, r := range returns {
		home := homeOf(i)
		if home == shared {
			home += strconv.Itoa(i)
		}
		by[home], recorded[home] = append(by[home], r), recorded[home] || r.Recorded
	}
	homes := slices.Sorted(maps.Keys(by))
	last := slices.DeleteFunc(slices.Clone(homes), func(home string) bool { return recorded[home] })
	homes = slices.DeleteFunc(homes, func(home string) bool { return !recorded[home] })
	gated := len(homes) > 0
	used, given := 0, false
	for _, home := range append(homes, last...) {
		list, once := by[home], once
		if gated && !recorded[home] {
			if once = (counter.Once{}); !given {
				list = slices.DeleteFunc(list, func(r counter.Return) bool { return !r.InFlight() })
			}
			if len(list) == 0 {
				used++
				continue
			}
		}
		var e error
		switch {
		case home == "":
			e = s.own.GiveBack(ctx, once, keep, list)
		case strings.HasPrefix(home, shared):
			e = s.stakes.giveBack(ctx, once, keep, &list[0])
		default:
			e = s.link.giveBack(ctx, home, once, keep, list)
		}
		if errors.Is(e, counter.ErrUsed) {
			used++
		} else {
			err, given = errors.Join(err, e), given || e == nil && recorded[home]
		}
	}
	if used == len(by) || gated && !given && err == nil {
		return counter.ErrUsed
	}
	return err
}

// Reset resets counters in all regions, as if they had never been used. For a shared limit, each region resets its own
// use. If a region can't be reached, Reset returns an error.
func (s *Store) Reset(ctx context.Context, counters []counter.Counter) (err error) {
	counters = slices.Clone(counters)
	for i := range counters {
		s.link.rename(&counters[i])
	}
	place := func(p *counter.Policy) string { // a drained region asks the home, but the other regions decide by their stakes
		if p.Global && s.link.shares(p) {
			return shared
		}
		return s.link.homeOf(p)
	}
	err = s.resetAll(ctx, counters, place)
	counters = slices.DeleteFunc(counters, func(c counter.Counter) bool { return place(c.Policy) != shared })
	if len(counters) == 0 {
		return err
	}
	away := s.link.topology().Away
	for _, name := range slices.Sorted(maps.Keys(s.link.peers)) {
		if away[name] == Forgotten {
			continue
		}
		if e := s.link.reset(ctx, name, counters); e != nil {
			err = errors.Join(err, fmt.Errorf("what was used in region %s may stay used: %w", name, e))
		}
	}
	return err
}

func (s *Store) resetAll(ctx context.Context, counters []counter.Counter, placeOf func(*counter.Policy) string) (err error) {
	by := map[string][]counter.Counter{}
	for _, c := range counters {
		by[placeOf(c.Policy)] = append(by[placeOf(c.Policy)], c)
	}
	for home, list := range by {
		switch home {
		case "":
			err = errors.Join(err, s.own.Reset(ctx, list))
		case shared:
			for i := range list {
				err = errors.Join(err, s.stakes.reset(ctx, &list[i]))
			}
		default:
			err = errors.Join(err, s.link.reset(ctx, home, list))
		}
	}
	return err
}
