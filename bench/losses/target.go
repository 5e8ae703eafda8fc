package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/server/bench/internal/node"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"github.com/weirhq/weir/server/internal/load"
)

// tick is how often requests are sent: those that became due since the last tick go together.
const tick = 10 * time.Millisecond

// target sends the requests of a workload to the nodes. To the load generator, a tick is one request.
type target struct {
	nodes    []*node.Process
	requests []request
	client   *http.Client
	begun    time.Time
	stop     context.CancelFunc // after an error, no more is sent

	mu    sync.Mutex // guards what follows
	ticks int
	sent  int // of the requests
}

var _ load.Target = (*target)(nil)

func (t *target) String() string      { return fmt.Sprint(len(t.nodes), " nodes") }
func (t *target) Sender() load.Sender { return t }

// send sends all requests when they are due, and waits for the answers.
func (t *target) send(ctx context.Context, duration time.Duration) error {
	loading, stop := context.WithCancel(ctx)
	defer stop()
	t.stop = stop
	t.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer t.client.CloseIdleConnections()
	t.begun = time.Now()
	plan := load.Plan{Duration: duration + tick, Rate: 1 / tick.Seconds(), Workers: 64, Keys: 1}
	r, err := load.Run(loading, plan, t, nil)
	switch {
	case err != nil:
		return err
	case len(r.Faults) > 0:
		return errors.New(r.Faults[0].Text)
	case t.sent < len(t.requests):
		return errors.Join(ctx.Err(), fmt.Errorf("%d of %d requests were not sent in time", len(t.requests)-t.sent, len(t.requests)))
	}
	return ctx.Err()
}

// Send sends the requests of one tick, each to its node and by every rule, and waits for the answers.
func (t *target) Send(ctx context.Context, _ uint32) load.Answer {
	batches := t.next()
	errs := make([]error, len(batches)*int(rules))
	var group sync.WaitGroup
	for i, batch := range batches {
		for r := range rules {
			if len(batch) > 0 {
				group.Go(func() { errs[i*int(rules)+int(r)] = t.ask(ctx, t.nodes[i], r, batch) })
			}
		}
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.stop()
		return load.Answer{Outcome: load.Failed, Err: err}
	}
	return load.Answer{}
}

// next takes the requests of the next tick, by node.
func (t *target) next() [][]*request {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := time.Duration(t.ticks) * tick
	t.ticks++
	now := time.Since(t.begun)
	batches := make([][]*request, len(t.nodes))
	for ; t.sent < len(t.requests) && t.requests[t.sent].at < due; t.sent++ {
		r := &t.requests[t.sent]
		r.at = now
		batches[r.node] = append(batches[r.node], r)
	}
	return batches
}

// ask has a node decide requests by one rule, and notes the answers.
func (t *target) ask(ctx context.Context, n *node.Process, by rule, batch []*request) error {
	var body checkapi.BatchRequest
	for _, r := range batch {
		body.Checks = append(body.Checks, checkapi.CheckRequest{Key: fmt.Sprint("k", r.key), Path: "/" + by.String(), Cost: &r.cost})
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.Addr+"/v1/checks", bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answers checkapi.BatchResponse
	if err := json.NewDecoder(res.Body).Decode(&answers); err != nil || len(answers.Results) != len(batch) {
		return fmt.Errorf("%s: %d answers to %d checks: %w", res.Status, len(answers.Results), len(batch), err)
	}
	at := time.Since(t.begun)
	for i, r := range answers.Results {
		if r.CheckResponse == nil || r.Degraded || r.Rule != by.String() {
			said, _ := json.Marshal(r) // it was JSON
			return fmt.Errorf("a check was not decided by the store and the rule %s: %s", by, said)
		}
		batch[i].answers[by] = answer{at: at, admitted: r.Allowed}
	}
	return nil
}
