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
)

const (
	// tick is how often requests are sent: those that became due since the last tick are sent together.
	tick = 10 * time.Millisecond
	// late is how far sending may lag behind the schedule.
	late = time.Second
)

// target is the nodes that decide the requests of a workload.
type target struct {
	nodes  []*node.Process
	client *http.Client
	begun  time.Time
}

// send sends all requests when they are due, each to its node and for every rule, and waits for the
// decisions.
func (t *target) send(ctx context.Context, requests []request) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer t.client.CloseIdleConnections()
	t.begun = time.Now()
	var group sync.WaitGroup
	for due := tick; len(requests) > 0 && ctx.Err() == nil; due += tick {
		time.Sleep(time.Until(t.begun.Add(due)))
		now := time.Since(t.begun)
		if now > due+late {
			stop(errors.New("requests were not sent in time"))
		}
		batches := make([][]*request, len(t.nodes))
		for ; len(requests) > 0 && requests[0].at < due; requests = requests[1:] {
			r := &requests[0]
			r.at = now
			batches[r.node] = append(batches[r.node], r)
		}
		for i, batch := range batches {
			for r := range rules {
				if len(batch) > 0 {
					group.Go(func() {
						if err := t.ask(ctx, t.nodes[i], r, batch); err != nil {
							stop(err)
						}
					})
				}
			}
		}
	}
	group.Wait()
	return context.Cause(ctx)
}

// ask asks a node to decide requests by one rule, and records the decisions.
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
			said, _ := json.Marshal(r) // can't fail, since it was decoded from JSON
			return fmt.Errorf("a check was not decided by the store and the rule %s: %s", by, said)
		}
		batch[i].answers[by] = answer{at: at, admitted: r.Allowed}
	}
	return nil
}
