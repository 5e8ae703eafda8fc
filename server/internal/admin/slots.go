package admin

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// Slots lists who holds the slots of a Concurrency limit. The stores implement it.
type Slots interface {
	Slots(ctx context.Context, c *counter.Counter, most int, each func(id counter.Once, n int64, since, ends time.Time)) error
	Slot(ctx context.Context, c *counter.Counter, id counter.Once) (int64, error)
}

const (
	shownSlots = 100
	// seenSlots is how many slots are read, so that the oldest of them can be shown.
	seenSlots = 1000
)

// slotLister lists the slots of a request's counters. The zero value is ready to use.
type slotLister struct {
	counters []counter.Counter
	err      error // why some slots are missing
}

// of lists the slots of the i-th limit of a request, the oldest first.
func (l *slotLister) of(ctx context.Context, a *API, req *weir.Request, i int, p *counter.Policy) (all []Slot) {
	if l.counters == nil {
		l.counters = a.Limiter.Counters(req)
	}
	if l.err != nil || i >= len(l.counters) || l.counters[i].Policy != p { // the rules have changed meanwhile
		return nil
	}
	l.err = a.Slots.Slots(ctx, &l.counters[i], seenSlots, func(id counter.Once, n int64, since, ends time.Time) {
		all = append(all, Slot{ID: hex.EncodeToString(id[:]), Slots: n, Since: *moment(since), Ends: *moment(ends)})
	})
	slices.SortStableFunc(all, func(a, b Slot) int { return a.Since.Compare(b.Since) })
	return all[:min(len(all), shownSlots)]
}

// slotNamed removes "slot" and "rule" from the body of a check, and returns them.
func slotNamed(text []byte) (rest []byte, id counter.Once, rule string, f *jsonerror.Error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return text, id, "", nil // what is wrong with it is told by whoever reads the rest
	}
	var slot string
	if v := fields["rule"]; v != nil && json.Unmarshal(v, &rule) != nil {
		return nil, id, "", jsonerror.Bad("rule: must be a text, the id of a rule")
	}
	if v := fields["slot"]; v != nil {
		_ = json.Unmarshal(v, &slot) // if it isn't a string, the check below rejects it
	}
	raw, err := hex.DecodeString(slot)
	if err != nil || len(raw) != len(id) {
		return nil, id, "", jsonerror.Bad("slot: must be the id of a slot, 32 hexadecimal digits, as POST /v1/counters and weir keys show list it")
	}
	copy(id[:], raw)
	delete(fields, "slot")
	delete(fields, "rule")
	if rest, err = json.Marshal(fields); err != nil {
		return nil, id, "", jsonerror.Bad("the body must be a JSON object")
	}
	return rest, id, rule, nil
}

// releaseSlot frees the slots that one request holds of a client's counters. A request has one id
// for all of them.
func (a *API) releaseSlot(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	text, f := body(w, r, checkapi.MaxBody)
	if f != nil {
		return f
	}
	text, id, rule, f := slotNamed(bytes.TrimSpace(text))
	if f != nil {
		return f
	}
	req, _, f := a.requestIn(r, text)
	if f != nil {
		return f
	}
	fault := func(err error) *jsonerror.Error {
		a.audit(r, "release a slot", "answer", jsonerror.StoreUnavailable, "slot", hex.EncodeToString(id[:]))
		return jsonerror.New(http.StatusServiceUnavailable, jsonerror.StoreUnavailable, "the slot may not have been released: %v", err)
	}
	out := Released{}
	var back []counter.Return
	counts := false // requests in flight
	for _, c := range a.Limiter.Counters(&req) {
		if c.Policy.Limit.Algorithm != weir.Concurrency || rule != "" && !strings.EqualFold(rule, c.Policy.Rule) {
			continue
		}
		counts = true
		n, err := a.Slots.Slot(r.Context(), &c, id)
		if err != nil {
			return fault(err)
		}
		if n > 0 {
			back = append(back, counter.Return{Counter: c, N: n, Hold: &counter.Hold{ID: id}})
			out.Released = append(out.Released, c.Policy.Name)
		}
	}
	switch {
	case !counts && rule != "":
		return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "rule: no rule of this id limits what such a request has in flight: weir keys show, or POST /v1/counters, lists those that do; rules may need its method, path or ip")
	case !counts:
		return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "no rule limits what such a request has in flight: rules may need its method, path or ip")
	case back == nil:
		return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "no slot with this id is taken: it was released, or has ended, or is another client's; weir keys show, or POST /v1/counters, lists those that are: give the same key, path and attributes")
	}
	if err := a.Limiter.GiveBack(r.Context(), back); err != nil {
		return fault(err)
	}
	a.audit(r, "release a slot", "limits", strings.Join(out.Released, ","), "slot", hex.EncodeToString(id[:]))
	WriteJSON(w, http.StatusOK, out)
	return nil
}
