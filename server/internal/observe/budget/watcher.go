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

// Options configure a Watcher.
type Options struct {
	// Store is the store that all nodes share. It knows which events any node has sent. It must not be nil.
	Store counter.Store
	// Now returns the time of the clock that nodes share. Nil means time.Now.
	Now func() time.Time
	// Node is this node's name, for events.
	Node string
	// Fingerprint returns the fingerprint under which other tools show a client, given the dimensions that a rule counts
	// by. If nil, events have no fingerprints.
	Fingerprint func(values [][2]string) string
	// FullNames shows the names of users and organizations in full instead of masked. API keys stay masked.
	FullNames bool
	// Logger gets a line for every event. Nil discards them.
	Logger *slog.Logger
	// Webhook is sent every event, too. Nil means no webhook.
	Webhook *Webhook
}

// Watcher sends events about budgets that run low: over all nodes, one for each client, window and threshold. Make one with
// [New].
type Watcher struct {
	opts  Options
	seed  maphash.Seed
	told  told
	queue chan crossing

	events, dropped atomic.Uint64

	running sync.WaitGroup
	closing chan struct{}
	hurry   context.Context
	stop    context.CancelFunc // cancels hurry, which ends calls that take too long
}

const (
	// waiting is how many crossings may wait for their events. If there are more, they are dropped, and the client's next
	// decision tries again.
	waiting = 1024
	// pace is the time between two events. An attacker who makes up clients and uses up their budgets causes at most
	// 100 events a second.
	pace = 10 * time.Millisecond
	// asking is how long the store may take to say whether an event was sent already.
	asking = 2 * time.Second
)

// New starts a Watcher, which runs until it is closed.
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

// Observe is for [weir.Options]. It must be called for every decision, and never waits. A decision without budgets costs a
// look at each limit, and one that crosses no threshold allocates nothing.
func (w *Watcher) Observe(o *weir.Observation) {
	limits := o.Decision.Limits()
	for i := range limits {
		if l := &limits[i]; Watched(l.Policy) && i < len(o.Charges) {
			w.look(o, l, &o.Charges[i])
		}
	}
}

// look handles a decision about a budget.
func (w *Watcher) look(o *weir.Observation, l *weir.LimitStatus, c *counter.Charge) {
	// In a cooldown, counters aren't read, and a peek uses nothing. A node that counts alone has only a share of the
	// budget.
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

// run sends the events of the crossings in the queue, until the Watcher is closed and the queue is empty.
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

// tell sends the events of a crossing that no node has sent.
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

// tellOnce sends an event, unless a node has sent one of the same kind for this budget and window. The kind is a threshold,
// or 0 for a refusal below 100%.
func (w *Watcher) tellOnce(c *crossing, threshold, kind int) {
	if w.hurry.Err() != nil {
		w.dropped.Add(1)
		return
	}
	ctx, cancel := context.WithTimeout(w.hurry, asking)
	// Remember the event for a whole window, however much of it is left. The in-process store remembers it in a bucket that
	// fills in this time. If later events used a shorter time, the bucket would be full before the window ends.
	err := w.opts.Store.GiveBack(ctx, once(c, kind), c.use.End.Sub(c.use.Start)+time.Minute, nil)
	cancel()
	if errors.Is(err, counter.ErrUsed) {
		return
	}
	e := w.event(c, threshold)
	e.Unconfirmed = err != nil // an event that is sent twice is better than none
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

// Stats count what a Watcher has done so far.
type Stats struct {
	Events  uint64 // events that were sent
	Dropped uint64 // decisions that crossed a threshold while too many waited; the client's next decision tries again
}

// Stats returns the current counts.
func (w *Watcher) Stats() Stats { return Stats{w.events.Load(), w.dropped.Load()} }

// Close sends the waiting events, also to the webhook, for a limited time. Observe must not be called anymore.
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
