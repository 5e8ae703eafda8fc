package admin

import (
	"context"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
)

// Slots lists the requests that hold slots of a concurrency limit. The stores implement it.
type Slots interface {
	Slots(ctx context.Context, c *counter.Counter, most int, each func(id counter.Once, n int64, since, ends time.Time)) error
	Slot(ctx context.Context, c *counter.Counter, id counter.Once) (int64, error)
}

const (
	shownSlots = 100
	// seenSlots is how many slots are read in order to find the oldest ones.
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

// releaseSlot frees the slots that one request holds in a client's counters. A request has the same
// id in all of them.
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
	counts := false // whether a rule limits requests in flight
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
