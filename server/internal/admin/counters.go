package admin

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/observer"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/server/internal/observe/budget"
)

func (a *API) counters(r *call, q question) (any, *jsonerror.Error) {
	req := &q.Request
	req.Peek, req.Cost = true, max(1, req.Cost)
	a.leastAmounts(req)
	shared := map[string]bool{} // rules that count by address; filled only if the request has no address
	if doc, f := a.inForce(r); f == nil && !req.IP.IsValid() {
		if f := a.looks.work(r.Context(), func() {
			for _, x := range doc.File.Set.Explain(req).Rules {
				shared[x.ID] = x.SharedAddress
			}
		}); f != nil {
			return nil, f
		}
	}
	d, _ := a.Limiter.Check(r.Context(), req) // ignore the error: limits that couldn't be decided are marked as degraded
	out := Counters{Allowed: d.Allowed, Binding: d.Rule, Reason: observer.Reason(d.Reason), Counters: []Counter{}}
	now := private.Now(a.Limiter)
	out.At = *Moment(now)
	limits := d.Limits()
	read := sync.OnceValue(func() []counter.Counter { return private.Counters(a.Limiter, req) })
	find := func(i int) *counter.Counter {
		all := read()
		if i >= len(all) || all[i].Policy != limits[i].Policy { // the rules have changed since the check
			return nil
		}
		return &all[i]
	}
	var unlisted error // why the list of slots is incomplete
	for i := range limits {
		c := counterOf(&limits[i], now, d.Reason != weir.ReasonCooldown)
		c.SharedAddress = shared[c.Rule]
		if c.InFlight != nil && *c.InFlight > 0 && unlisted == nil {
			c.Slots, unlisted = a.slotsOf(r.Context(), find(i))
		}
		switch p := limits[i].Policy; {
		case c.Degraded && p.Global && a.Missing != nil:
			c.MissingHome = a.Missing(p)
		case !c.Degraded && p.Global && a.Standing != nil:
			a.stand(r.Context(), &c, find(i))
		}
		out.Counters = append(out.Counters, c)
	}
	if i := slices.IndexFunc(a.Now().Trouble, func(t Trouble) bool { return t.What == "degraded" }); i >= 0 {
		out.Warning = "A check may be decided otherwise. " + a.Now().Trouble[i].Text
	} else if unlisted != nil {
		out.Warning = fmt.Sprintf("Who holds the slots isn't known: %v", unlisted)
	}
	slices.SortStableFunc(out.Counters, binds)
	return out, nil
}

// stand sets this region's part of a limit. How much all regions have used together is unknown.
func (a *API) stand(ctx context.Context, c *Counter, of *counter.Counter) {
	if of == nil {
		return
	}
	if s, err := a.Standing(ctx, of); s != nil && err == nil {
		p := of.Policy
		c.Stake = &Stake{Home: s.Home, Own: p.Exact(s.Own), Borrowed: p.Exact(s.Borrowed), Lent: p.Exact(s.Lent), BorrowedUntil: Moment(s.Until)}
		c.Used, c.FullAt, c.RunsOutAt = nil, nil, nil
	}
}

// leastAmounts adds the smallest possible value of each amount to a request that names no amounts, so that an exhausted
// budget refuses the request. It skips amounts for which a rule has a default.
func (a *API) leastAmounts(req *weir.Request) {
	if len(req.Amounts) > 0 {
		return
	}
	all := a.Limiter.Rules().Rules().Rules
	req.Amounts = map[string]counter.Amount{}
	for _, r := range all {
		if r.Amount != "" {
			req.Amounts[r.Amount] = 1
		}
	}
	for _, r := range all {
		if r.Default > 0 {
			delete(req.Amounts, r.Amount)
		}
	}
}

// counterOf describes a limit. If asked is false, the limit wasn't asked, and only its waiting time is meaningful.
func counterOf(l *weir.LimitStatus, now time.Time, asked bool) Counter {
	p := l.Policy
	c := Counter{
		Rule: p.Rule, Policy: p.Name, Algorithm: p.Limit.Algorithm.String(), Shadow: p.Shadow, Refuses: !l.Allowed && !l.Degraded,
		Amount: p.Amount, Limit: p.Limit.String(), Max: p.Limit.Capacity(), Remaining: l.Left(),
		ResetAfterMS: l.ResetAfter.Milliseconds(), RetryAfterMS: max(-1, l.RetryAfter.Milliseconds()), Degraded: l.Degraded,
	}
	if c.Remaining == c.Max {
		c.ResetAfterMS = 0 // an unused window counts as full, although its end lies ahead
	}
	if c.Degraded || c.Max == 0 {
		return c
	}
	used := min(1, max(0, float64(c.Max-c.Remaining)/float64(c.Max)))
	c.Used = &used
	switch {
	case p.Limit.Algorithm == weir.Concurrency: // requests in flight end at unknown times
		if asked {
			n := p.Limit.Count - l.Remaining
			c.InFlight = &n
		}
	case c.ResetAfterMS > 0:
		c.FullAt = Moment(now.Add(l.ResetAfter))
	}
	if p.Limit.Algorithm == weir.FixedWindow && asked {
		use := budget.UseOf(l, now)
		c.WindowEnd = Moment(use.End)
		if at, ok := use.RunsOut(now); ok && budget.Watched(p) {
			c.RunsOutAt = Moment(at)
		}
	}
	return c
}

// Moment returns a pointer to a time for a response, or nil if the time is zero.
func Moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Millisecond)
	return &t
}

// binds sorts counters by importance to the client. First come the counters that refuse it, with the longest wait
// first, then those that can't be reached, and then the others, with the most used first. Counters that other clients
// share come next, and counters in shadow last.
func binds(a, b Counter) int {
	rank := func(c *Counter) int {
		switch {
		case c.Shadow:
			return 4
		case c.SharedAddress:
			return 3
		case c.Refuses:
			return 0
		case c.Degraded:
			return 1
		}
		return 2
	}
	wait := func(c *Counter) uint64 { return uint64(c.RetryAfterMS) } // -1, which means that waiting doesn't help, becomes the longest wait
	used := func(c *Counter) float64 { return *cmp.Or(c.Used, new(float64)) }
	return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(wait(&b), wait(&a)), cmp.Compare(used(&b), used(&a)))
}

// Slots has the requests that hold slots of a concurrency limit. Stores implement it.
type Slots interface {
	Slots(ctx context.Context, c *counter.Counter, most int, each func(id counter.Once, n int64, since, ends time.Time)) error
	Slot(ctx context.Context, c *counter.Counter, id counter.Once) (int64, error)
}

const (
	shownSlots = 100
	// seenSlots is how many slots are read to find the oldest ones.
	seenSlots = 1000
)

func (a *API) slotsOf(ctx context.Context, c *counter.Counter) (all []Slot, err error) {
	if c == nil {
		return nil, nil
	}
	err = a.Slots.Slots(ctx, c, seenSlots, func(id counter.Once, n int64, since, ends time.Time) {
		all = append(all, Slot{ID: hex.EncodeToString(id[:]), Slots: n, Since: since.UTC().Truncate(time.Millisecond), Ends: ends.UTC().Truncate(time.Millisecond)})
	})
	slices.SortStableFunc(all, func(a, b Slot) int { return a.Since.Compare(b.Since) })
	return all[:min(len(all), shownSlots)], err
}

// releaseSlot releases the slots that one request holds in a client's counters. The request has the same id in all of
// them.
func (a *API) releaseSlot(r *call, q question) (any, *jsonerror.Error) {
	raw, err := hex.DecodeString(q.slot)
	if err != nil || len(raw) != len(counter.Once{}) {
		return nil, jsonerror.Bad("slot: must be the id of a slot, 32 hexadecimal digits, as POST /v1/counters and weir keys show list it")
	}
	id, rule := counter.Once(raw), q.rule
	fault := func(err error) *jsonerror.Error {
		a.audit(r, "release a slot", "answer", jsonerror.StoreUnavailable, "slot", hex.EncodeToString(id[:]))
		return jsonerror.New(http.StatusServiceUnavailable, jsonerror.StoreUnavailable, "the slot may not have been released: %v", err)
	}
	out := Released{}
	var back []counter.Return
	counts := false // whether any rule limits requests in flight
	for _, c := range private.Counters(a.Limiter, &q.Request) {
		if c.Policy.Limit.Algorithm != weir.Concurrency || rule != "" && !strings.EqualFold(rule, c.Policy.Rule) {
			continue
		}
		counts = true
		n, err := a.Slots.Slot(r.Context(), &c, id)
		if err != nil {
			return nil, fault(err)
		}
		if n > 0 {
			back = append(back, counter.Return{Counter: c, N: n, Hold: &counter.Hold{ID: id}})
			out.Released = append(out.Released, c.Policy.Name)
		}
	}
	switch {
	case !counts && rule != "":
		return nil, jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "rule: no rule of this id limits what such a request has in flight: weir keys show, or POST /v1/counters, lists those that do; rules may need its method, path or ip")
	case !counts:
		return nil, jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "no rule limits what such a request has in flight: rules may need its method, path or ip")
	case back == nil:
		return nil, jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "no slot with this id is taken: it was released, or has ended, or is another client's; weir keys show, or POST /v1/counters, lists those that are: give the same key, path and attributes")
	}
	if err := private.GiveBack(a.Limiter, r.Context(), back); err != nil {
		return nil, fault(err)
	}
	a.audit(r, "release a slot", "limits", strings.Join(out.Released, ","), "slot", hex.EncodeToString(id[:]))
	return out, nil
}
