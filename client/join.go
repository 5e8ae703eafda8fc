package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
)

// Bounds of a batch, as the check API has them.
const (
	maxBatch     = 1000
	maxBatchBody = 1<<20 - 64
)

// How long the client leaves Weir alone after a failure: twice as long after each further one in a row.
const (
	firstRest = 100 * time.Millisecond
	longRest  = 5 * time.Second
)

// waiting is a check that waits for its answer.
type waiting struct {
	body []byte
	ctx  context.Context
	done chan struct{}
	d    Decision
	err  error
}

// join sends a check, with those that wait at the same time. A check that is alone goes at once; while a call is under
// way, others gather for the next one.
func (c *Client) join(ctx context.Context, body []byte) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	if len(body) > maxBatchBody {
		return Decision{}, &Error{Status: 413, Code: jsonerror.BodyTooLarge, Message: "a check may have at most 64 KiB"}
	}
	w := &waiting{body: body, ctx: ctx, done: make(chan struct{})}
	c.mu.Lock()
	if c.failures > 0 && (c.calls > 0 || time.Now().Before(c.rest)) {
		c.mu.Unlock() // one check at a time tries whether Weir is back; the others don't wait for it
		return Decision{}, fmt.Errorf("%w: it hasn't answered lately, and is asked again shortly", ErrUnreachable)
	}
	c.queue = append(c.queue, w)
	if c.calls == 0 || len(c.queue) >= maxBatch {
		c.calls++
		go c.run(c.batch())
	}
	c.mu.Unlock()
	select {
	case <-w.done:
		return w.d, w.err
	case <-ctx.Done():
		return Decision{}, ctx.Err()
	}
}

// batch takes what fits in one call from the queue. The lock is held.
func (c *Client) batch() []*waiting {
	n, size := 0, 0
	for n < len(c.queue) && n < maxBatch && (n == 0 || size+len(c.queue[n].body) < maxBatchBody) {
		size += len(c.queue[n].body) + 1
		n++
	}
	batch := c.queue[:n:n]
	if c.queue = c.queue[n:]; len(c.queue) == 0 {
		c.queue = nil
	}
	return batch
}

// run makes calls until nobody waits. It has a context of its own: a caller that leaves takes nobody along.
func (c *Client) run(batch []*waiting) {
	for len(batch) > 0 {
		live := batch[:0]
		for _, w := range batch {
			if w.ctx.Err() == nil {
				live = append(live, w)
			}
		}
		if len(live) > 0 {
			c.call(live)
		}
		c.mu.Lock()
		if batch = c.batch(); len(batch) == 0 {
			c.calls--
		}
		c.mu.Unlock()
	}
}

// call asks for a batch, and hands out its answers.
func (c *Client) call(batch []*waiting) {
	body := append(make([]byte, 0, 16+len(batch)*(len(batch[0].body)+8)), `{"checks":[`...)
	for i, w := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, w.body...)
	}
	body = append(body, `]}`...)
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	text, err := c.post(ctx, "/v1/checks", body)
	var answer struct{ Results []wireResult }
	if err == nil {
		if err = json.Unmarshal(text, &answer); err != nil || len(answer.Results) != len(batch) {
			err = fmt.Errorf("%w: what answers there isn't Weir", ErrUnreachable)
		}
	}
	c.outcome(err)
	for i, w := range batch {
		if w.err = err; err == nil {
			w.d, w.err = answer.Results[i].decision()
		}
		close(w.done)
	}
}

// outcome notes whether Weir answered. While it doesn't, the client backs off, and then one call at a time tries again. That is
// too little to share with redisstore's breaker, which counts failures and leaves the trying to a probe.
func (c *Client) outcome(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !errors.Is(err, ErrUnreachable) {
		c.failures = 0
		return
	}
	most := min(longRest, firstRest<<min(c.failures, 10))
	c.failures++
	c.rest = time.Now().Add(most/2 + rand.N(most/2))
	for _, w := range c.queue { // these need not wait for the next call to fail as well
		w.err = err
		close(w.done)
	}
	c.queue = nil
}
