package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
)

// path is where regions post messages to each other.
const path = "/v1/region"

// ServeHTTP answers one message.
func (l *Link) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != path {
		http.Error(w, "regions post to "+path, http.StatusNotFound)
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	var m message
	switch err := json.Unmarshal(text, &m); {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case m.To != l.name:
		http.Error(w, fmt.Sprintf("this is region %s, not %s: see regions.peers of region %s", l.name, m.To, m.From), http.StatusMisdirectedRequest)
		return
	case len(m.Acts) > maxActs:
		http.Error(w, fmt.Sprintf("a message has at most %d operations, got %d", maxActs, len(m.Acts)), http.StatusRequestEntityTooLarge)
		return
	}
	l.meet(m.From)
	if m.Topology != nil {
		if err := l.learn(r.Context(), m.Topology, 0); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	out := answer{From: l.name, Topology: l.topology().told(), Rules: l.rules(), Done: make([]result, len(m.Acts))}
	var all sync.WaitGroup
	for i := range m.Acts {
		all.Go(func() {
			var err error
			if out.Done[i], err = l.carryOut(r.Context(), m.From, &m.Acts[i]); err != nil {
				out.Done[i] = result{Failed: err.Error()}
			}
		})
	}
	all.Wait()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&out) // an error means that the caller has disconnected
}

func (l *Link) carryOut(ctx context.Context, from string, a *operation) (out result, err error) {
	store := l.store.Load()
	if store == nil {
		return out, errors.New("the region is starting")
	}
	here := &Store{own: *store, link: l, stakes: l.stakes.Load()}
	if a.Talk != nil {
		counted, err := a.Talk.Counter.counter()
		if err == nil && !l.shares(counted.Policy) {
			err = errors.New("regions don't share this limit: do they know the same regions?")
		}
		if err != nil {
			return out, err
		}
		out.Said, err = here.stakes.hear(ctx, from, &counted, &a.Talk.Message)
		return out, err
	}
	of := slices.Concat(a.Charges, a.Returns, a.Resets) // an operation has only one of the three
	counters, err := countersOf(of)
	if err != nil {
		return out, err
	}
	switch {
	case len(a.Charges) > 0:
		charges := make([]counter.Charge, len(counters))
		for i, c := range counters {
			charges[i] = counter.Charge{Counter: c, N: of[i].N, Peek: of[i].Peek, Returnable: true, Guest: of[i].Guest, Hold: of[i].Hold}
		}
		out.Results = make([]counter.Result, len(charges))
		here.takeFor(ctx, charges, out.Results)
		for i := range out.Results {
			switch err := out.Results[i].Err; {
			case err == nil:
			case errors.Is(err, counter.ErrNoRoom): // the home was reached, so the caller counts guests by their address instead
				out.Results[i], out.NoRoom = counter.Result{}, append(out.NoRoom, i)
			default:
				return result{}, err // the other charges stay debited
			}
		}
	case len(a.Returns) > 0:
		returns := make([]counter.Return, len(counters))
		for i, c := range counters {
			returns[i] = counter.Return{Counter: c, N: of[i].N, Slot: of[i].Slot, Hold: of[i].Hold, Used: of[i].Used, Recorded: of[i].Recorded}
		}
		err = here.giveBack(ctx, a.Once, time.Duration(a.Keep)*time.Microsecond, returns, func(i int) string { return here.placeHere(returns[i].Policy) })
		if out.Used = errors.Is(err, counter.ErrUsed); out.Used {
			err = nil
		}
	default:
		err = here.resetAll(ctx, counters, here.placeHere)
	}
	return out, err
}
