package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// hostileName is the workload of a client that does the costliest things there are.
const hostileName = "hostile client"

// slowest is the longest script call, by Redis' slow log, that one thing a client can do leads to.
type slowest struct {
	Act   string    `json:"act"`
	Tries []float64 `json:"ms"`
}

func (s *slowest) median() float64 { return report.SpreadOf(s.Tries).Median }

// hostile is such a client: it has filled sliding logs, one for each try, under a clock that is set by hand.
type hostile struct {
	server *redistest.Server
	store  *redisstore.Store
	policy *counter.Policy
	now    atomic.Int64 // µs
	start  int64
	logs   [3][]byte
	length int64
}

const hostileStep = 1000 // µs between admissions

func provoke(ctx context.Context, length int) (_ []slowest, err error) {
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	h := &hostile{server: server, length: int64(length), start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()}
	h.now.Store(h.start)
	h.store, err = redisstore.New(redisstore.Options{
		URL: "redis://" + server.Addr, Secret: []byte("a secret for benchmarks"), Timeout: time.Minute,
		Now: func() time.Time { return time.UnixMicro(h.now.Load()) },
	})
	if err != nil {
		return nil, err
	}
	defer h.store.Close()
	if err := h.store.Ready(ctx); err != nil {
		return nil, err
	}
	h.policy, err = counter.NewPolicy("long", counter.Limit{Algorithm: counter.SlidingLog, Count: h.length, Window: time.Hour})
	if err != nil {
		return nil, err
	}
	for i := range h.logs {
		h.logs[i] = fmt.Append(nil, "client ", i)
	}
	if err := h.fill(ctx); err != nil {
		return nil, err
	}
	if _, err := server.Do(ctx, "CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "10000"); err != nil {
		return nil, err
	}
	return h.provoke(ctx)
}

// fill admits one token after the other into all logs at the same moments, and also gives each subject other counters.
func (h *hostile) fill(ctx context.Context) error {
	for i := range h.logs {
		if err := h.grow(ctx, i, 0, 1000); err != nil {
			return err
		}
	}
	for range h.length {
		h.now.Add(hostileStep)
		if err := atOnce(len(h.logs), func(i int) error { return h.take(ctx, h.charge(i, 1)) }); err != nil {
			return err
		}
	}
	return nil
}

// atOnce calls f n times, each in a goroutine, and returns an error of one of them.
func atOnce(n int, f func(int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return cmp.Or(errs...)
}

func (h *hostile) charge(log int, n int64) counter.Charge {
	return counter.Charge{Counter: counter.Counter{Policy: h.policy, Subject: h.logs[log]}, N: n}
}

// take reports errors; a refused client has been answered.
func (h *hostile) take(ctx context.Context, c counter.Charge) error {
	var results [1]counter.Result
	h.store.Take(ctx, []counter.Charge{c}, results[:])
	return results[0].Err
}

// at is the moment of an admission.
func (h *hostile) at(n int64) int64 { return h.start + (n+1)*hostileStep }

// provoke does everything that could be costly, to each log in turn. Where clients come at once, there are as many as one
// script call carries.
func (h *hostile) provoke(ctx context.Context) (all []slowest, err error) {
	const clients = 64
	third := h.length / 3
	back := func(log int, n int64) error {
		r := counter.Return{Counter: counter.Counter{Policy: h.policy, Subject: h.logs[log]}, N: 1, Slot: h.at(n)}
		return h.store.GiveBack(ctx, counter.Once{}, 0, []counter.Return{r})
	}
	one := func(log int) error { return h.take(ctx, h.charge(log, 1)) }
	for _, try := range []struct {
		what string
		now  int64
		act  func(log int) error
	}{
		{"refused, at a third of the limit", h.at(h.length), func(log int) error { return h.take(ctx, h.charge(log, third)) }},
		{"the same, by 64 at once", h.at(h.length), func(log int) error {
			return atOnce(clients, func(i int) error { return h.take(ctx, h.charge(log, third+int64(i))) })
		}},
		{"an old token given back", h.at(h.length), func(log int) error { return back(log, third) }},
		{"the same, by 64 at once", h.at(h.length), func(log int) error {
			return atOnce(clients, func(i int) error { return back(log, int64(i+1)*h.length/(clients+2)) })
		}},
		{"a third of the log has left", h.at(third) + time.Hour.Microseconds(), one},
		{"the clock runs back", h.at(2 * third), one},
		{"the whole log has left", h.at(2*third) + time.Hour.Microseconds(), one},
		{"a reset", h.at(2*third) + time.Hour.Microseconds(), func(log int) error {
			return h.store.Reset(ctx, []counter.Counter{h.charge(log, 1).Counter})
		}},
		{"a hash of 1,000 counters grows by 24", h.at(h.length), func(log int) error { return h.grow(ctx, log, 1000, 1024) }},
	} {
		h.now.Store(try.now)
		s := slowest{Act: try.what}
		for log := range h.logs {
			if _, err := h.server.Do(ctx, "SLOWLOG", "RESET"); err != nil {
				return nil, err
			}
			if err := try.act(log); err != nil {
				return nil, fmt.Errorf("%s: %w", try.what, err)
			}
			ms, err := h.slowest(ctx)
			if err != nil {
				return nil, err
			}
			s.Tries = append(s.Tries, ms)
		}
		all = append(all, s)
	}
	return all, nil
}

// grow gives a subject counters, as a client does by naming another limit in every request.
func (h *hostile) grow(ctx context.Context, log, from, to int) error {
	for i := from; i < to; i++ {
		p, err := counter.NewPolicy(fmt.Sprint("p", i), counter.Limit{Count: 10, Window: time.Hour})
		if err != nil {
			return err
		}
		if err := h.take(ctx, counter.Charge{Counter: counter.Counter{Policy: p, Subject: h.logs[log]}, N: 1}); err != nil {
			return err
		}
	}
	return nil
}

// slowest is how long the longest script call in the slow log took, in ms.
func (h *hostile) slowest(ctx context.Context) (float64, error) {
	log, err := h.server.Do(ctx, "SLOWLOG", "GET", "-1")
	if err != nil {
		return 0, err
	}
	most := math.NaN()
	for _, line := range log.([]any) {
		fields := line.([]any) // id, when, µs, command, …
		if us := float64(fields[2].(int64)); fields[3].([]any)[0] == "EVALSHA" && !(us/1000 <= most) {
			most = us / 1000
		}
	}
	return most, nil
}

func printHostile(w io.Writer, all []slowest, length int) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "\nA %s: the slowest script call by Redis' slow log, ms, on sliding logs of %s admissions\n", hostileName, report.Amount(length))
	rows := [][]string{{"", "median", "tries"}}
	for i := range all {
		s := &all[i]
		tries := ""
		for _, ms := range s.Tries {
			tries += " " + report.Number(ms, 3)
		}
		rows = append(rows, []string{s.Act, report.Number(s.median(), 3), tries[1:]})
	}
	report.Align(w, rows)
}
