package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
)

// The check API's limits for a batch.
const (
	maxBatch     = 1000
	maxBatchBody = 1<<20 - 64
)

// How long the client doesn't call Weir after a failure. Each further failure in a row doubles the time, up to longRest.
const (
	firstRest = 100 * time.Millisecond
	longRest  = 5 * time.Second
)

// joiner sends items to an endpoint that takes many of them, and returns the result of each. While a call is under way, items
// gather for the next one.
type joiner[R any] struct {
	client     *Client
	path, list string        // the endpoint, and the member of its body that lists the items
	gather     time.Duration // how long an item waits for others if no call is under way
	rests      bool          // after a failure, items fail at once until rest

	mu       sync.Mutex // guards the rest
	queue    []*waiting[R]
	calls    int       // calls under way
	failures int       // failed calls in a row
	rest     time.Time // until then, nothing is sent
}

// waiting is an item that waits for its result.
type waiting[R any] struct {
	item   []byte
	ctx    context.Context
	done   chan struct{}
	result R
	err    error
}

// join sends an item (JSON) together with others that wait at the same time, and returns its result.
func (j *joiner[R]) join(ctx context.Context, item []byte) (result R, err error) {
	if err := ctx.Err(); err != nil {
		return result, err
	}
	if len(item) > maxBatchBody {
		return result, &Error{Status: 413, Code: jsonerror.BodyTooLarge, Message: "a check may have at most 64 KiB"}
	}
	w := &waiting[R]{item: item, ctx: ctx, done: make(chan struct{})}
	j.mu.Lock()
	if j.rests && j.failures > 0 && (j.calls > 0 || time.Now().Before(j.rest)) {
		j.mu.Unlock() // one check at a time tries whether Weir is back; the others don't wait for it
		return result, fmt.Errorf("%w: it hasn't answered lately, and is asked again shortly", ErrUnreachable)
	}
	j.queue = append(j.queue, w)
	switch {
	case j.calls == 0 && j.gather > 0:
		j.calls++
		time.AfterFunc(j.gather, func() { j.run(nil) })
	case j.calls == 0 || len(j.queue) >= maxBatch:
		j.calls++
		go j.run(j.batchLocked())
	}
	j.mu.Unlock()
	select {
	case <-w.done:
		return w.result, w.err
	case <-ctx.Done():
		return result, ctx.Err()
	}
}

// batchLocked removes from the queue what fits in one call. The caller holds the lock.
func (j *joiner[R]) batchLocked() []*waiting[R] {
	n, size := 0, 0
	for n < len(j.queue) && n < maxBatch && (n == 0 || size+len(j.queue[n].item) < maxBatchBody) {
		size += len(j.queue[n].item) + 1
		n++
	}
	batch := j.queue[:n:n]
	if j.queue = j.queue[n:]; len(j.queue) == 0 {
		j.queue = nil
	}
	return batch
}

// run makes calls until no item waits. The calls have a context of their own, so a caller that leaves doesn't end the calls
// of others.
func (j *joiner[R]) run(batch []*waiting[R]) {
	for {
		live := slices.DeleteFunc(batch, func(w *waiting[R]) bool { return w.ctx.Err() != nil })
		if len(live) > 0 {
			j.call(live)
		}
		j.mu.Lock()
		if batch = j.batchLocked(); len(batch) == 0 {
			j.calls--
			j.mu.Unlock()
			return
		}
		j.mu.Unlock()
	}
}

// call sends a batch, and delivers its results.
func (j *joiner[R]) call(batch []*waiting[R]) {
	body := append(make([]byte, 0, 16+len(batch)*(len(batch[0].item)+8)), `{"`+j.list+`":[`...)
	for i, w := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, w.item...)
	}
	body = append(body, `]}`...)
	ctx, cancel := context.WithTimeout(context.Background(), j.client.timeout)
	defer cancel()
	text, err := j.client.post(ctx, j.path, body)
	var answer struct{ Results []R }
	if err == nil {
		if err = json.Unmarshal(text, &answer); err != nil || len(answer.Results) != len(batch) {
			err = fmt.Errorf("%w: what answers there isn't Weir", ErrUnreachable)
		}
	}
	j.outcome(err)
	for i, w := range batch {
		if w.err = err; err == nil {
			w.result = answer.Results[i]
		}
		close(w.done)
	}
}

// outcome records whether Weir answered. If it didn't, all items in the queue fail.
func (j *joiner[R]) outcome(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !errors.Is(err, ErrUnreachable) {
		j.failures = 0
		return
	}
	most := min(longRest, firstRest<<min(j.failures, 10))
	j.failures++
	j.rest = time.Now().Add(most/2 + rand.N(most/2))
	for _, w := range j.queue { // otherwise they would wait for the next call to fail as well
		w.err = err
		close(w.done)
	}
	j.queue = nil
}
