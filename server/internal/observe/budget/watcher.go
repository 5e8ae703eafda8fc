package budget

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// Options are the options of a Watcher.
type Options struct {
	// Store is a store that all nodes share. It remembers which events any node has sent. It must not be nil.
	Store counter.Store
	// Now returns the time by the clock that nodes share. If nil, it is time.Now.
	Now func() time.Time
	// Node is this node's name, which events contain.
	Node string
	// Fingerprint returns the fingerprint by which other tools identify a client. values has the dimensions that a rule
	// counts by. If nil, events have no fingerprints.
	Fingerprint func(values [][2]string) string
	// FullNames means that names of users and organizations aren't masked. API keys are always masked.
	FullNames bool
	// Logger logs every event. If nil, events aren't logged.
	Logger *slog.Logger
	// Webhook gets every event. If nil, there is no webhook.
	Webhook *Webhook
}

// Watcher sends events about budgets that run low. Over all nodes, one event is sent for each client, window and
// threshold. Make one with [New].
type Watcher struct {
	opts  Options
	seed  maphash.Seed
	told  told
	queue chan crossing

	events, dropped atomic.Uint64

	running sync.WaitGroup
	closing chan struct{}
	hurry   context.Context
	stop    context.CancelFunc // ends hurry, the context of calls, if closing takes too long
}

const (
	// waiting is how many crossings may be queued. If the queue is full, a crossing is dropped, and the client's next
	// decision tries again.
	waiting = 1024
	// pace is the time between two events. So an attacker who makes up clients and uses up their budgets can cause at
	// most 100 events a second.
	pace = 10 * time.Millisecond
	// asking is how long the store may take to say whether an event has been sent.
	asking = 2 * time.Second
)

// New starts a Watcher, which runs until Close is called.
func New(o Options) *Watcher {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	w := &Watcher{opts: o, seed: maphash.MakeSeed(), queue: make(chan crossing, waiting), closing: make(chan struct{})}
	w.hurry, w.stop = context.WithCancel(context.Background())
	w.running.Go(w.run)
	return w
}

// Observe is for [weir.Options]. It must be called with every decision, and never blocks. For a decision without
// budgets, it only looks at each limit. If a decision crosses no threshold, it makes no allocations.
func (w *Watcher) Observe(o *weir.Observation) {
	limits := o.Decision.Limits()
	for i := range limits {
		if l := &limits[i]; Watched(l.Policy) && i < len(o.Charges) {
			w.look(o, l, &o.Charges[i])
		}
	}
}

// look handles a decision that was charged to a budget.
func (w *Watcher) look(o *weir.Observation, l *weir.LimitStatus, c *counter.Charge) {
	// In a cooldown, counters aren't read, and a peek uses nothing. A node that counts by itself has only a share of
	// the budget.
	if l.Degraded || l.Local || o.Request.Peek || o.Decision.Reason == weir.ReasonCooldown {
		return
	}
	limit := l.Policy.Limit.Amount()
	n := reached(limit-l.Left(), limit)
	if n == len(Thresholds) && l.Allowed && o.Request.Reserve > 0 && c.Hold != nil {
		n-- // a reservation may be given back, so the budget isn't used up yet
	}
	// If the request is larger than the whole budget, its refusal says nothing about the budget.
	refused := !l.Allowed && l.RetryAfter != weir.Never
	if n == 0 && !refused {
		return
	}
	now, key := w.opts.Now(), o.Request.APIKey
	x := crossing{counter: counter.Counter{Policy: l.Policy, Subject: c.Subject}, at: now, use: UseOf(l, now), to: n, refused: refused, keyed: key != "" && (key == o.Request.User || key == o.Request.Org)}
	budget := window{policy: l.Policy.ID, subject: maphash.Bytes(w.seed, c.Subject), end: x.use.End.Unix()}
	w.raise(budget, n, x)
	if refused && n < len(Thresholds) {
		x.below, budget.refusals = true, true
		w.raise(budget, 1, x)
	}
}

// raise queues a crossing, unless this node has sent events for n or more thresholds of the budget.
func (w *Watcher) raise(budget window, n int, c crossing) {
	w.told.raise(budget, n, func(from int) bool {
		c.from, c.counter.Subject = from, bytes.Clone(c.counter.Subject)
		select {
		case w.queue <- c:
			return true
		default:
			w.dropped.Add(1)
			return false
		}
	})
}

// run sends the events of queued crossings, until the Watcher is closed and the queue is empty.
func (w *Watcher) run() {
	for {
		select {
		case c := <-w.queue:
			w.tell(&c)
		case <-w.closing:
			if len(w.queue) == 0 {
				return
			}
		}
	}
}

// tell sends the events of a crossing, except those that another node has sent.
func (w *Watcher) tell(c *crossing) {
	if c.below {
		reached := 0
		if c.to > 0 {
			reached = Thresholds[c.to-1]
		}
		w.tellOnce(c, reached, 0)
		return
	}
	for _, threshold := range Thresholds[c.from:c.to] {
		w.tellOnce(c, threshold, threshold)
	}
}

// tellOnce sends an event, unless a node has already sent an event of the same kind for this budget and window. The
// kind is the threshold, or 0 for a refusal below 100%.
func (w *Watcher) tellOnce(c *crossing, threshold, kind int) {
	if w.hurry.Err() != nil {
		w.dropped.Add(1)
		return
	}
	ctx, cancel := context.WithTimeout(w.hurry, asking)
	// Remember the event for the length of a whole window, however much of the window is left. The in-process store
	// remembers it in a bucket that fills up in that time. If later events used a shorter time, the bucket would be
	// full before the window ends.
	err := w.opts.Store.GiveBack(ctx, once(c, kind), c.use.End.Sub(c.use.Start)+time.Minute, nil)
	cancel()
	if errors.Is(err, counter.ErrUsed) {
		return
	}
	e := w.event(c, threshold)
	e.Unconfirmed = err != nil // it is better to send an event twice than never
	w.events.Add(1)
	e.log(w.opts.Logger)
	if w.opts.Webhook != nil {
		w.opts.Webhook.send(e)
	}
	select {
	case <-time.After(pace):
	case <-w.closing:
	}
}

// Stats counts what a Watcher has done so far.
type Stats struct {
	Events  uint64 // events that were sent
	Dropped uint64 // crossings that were dropped because the queue was full; the client's next decision tries again
}

// Stats returns the current counts.
func (w *Watcher) Stats() Stats { return Stats{w.events.Load(), w.dropped.Load()} }

// Close sends the queued events, also to the webhook, for at most the given time. Observe must not be called after
// that.
func (w *Watcher) Close(atMost time.Duration) {
	late := time.AfterFunc(atMost, w.stop)
	defer late.Stop()
	close(w.closing)
	w.running.Wait()
	if w.opts.Webhook != nil {
		w.opts.Webhook.close(w.hurry)
	}
	w.stop()
}
