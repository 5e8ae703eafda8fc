package budget

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// Options of a Watcher.
type Options struct {
	// Store is the one that all nodes share: it knows what any of them has told. It must not be nil.
	Store counter.Store
	// Now is the time that nodes share. Nil means time.Now.
	Now func() time.Time
	// Node is this one's name, for events.
	Node string
	// Fingerprint names a client as other tools do, by what a rule counts it by. Nil means that events have none.
	Fingerprint func(values [][2]string) string
	// FullNames has events name users and organizations in full, instead of masked. API keys stay masked.
	FullNames bool
	// Logger gets a line for every event. Nil means that nobody does.
	Logger *slog.Logger
	// Webhook is sent every event, too. Nil means none.
	Webhook *Webhook
}

// Watcher tells of budgets that run low, each threshold once for a client and window over all nodes. Make one with [New].
type Watcher struct {
	opts  Options
	seed  maphash.Seed
	told  told
	queue chan crossing

	events, dropped atomic.Uint64

	closing chan struct{}
	closed  chan struct{} // when everything is told
	hurry   context.Context
	stop    context.CancelFunc // of hurry: it ends what takes too long
}

const (
	// waiting is how many crossings may wait to be told. Beyond it they are dropped, and the next decision of the client
	// tries again.
	waiting = 1024
	// pace is the time between two events: whoever makes up clients and uses up their budgets makes no more than 100 a second.
	pace = 10 * time.Millisecond
	// asking is how long the store may take to say whether an event was told.
	asking = 2 * time.Second
)

// New makes a Watcher, which tells until it is closed.
func New(o Options) *Watcher {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	w := &Watcher{opts: o, seed: maphash.MakeSeed(), queue: make(chan crossing, waiting), closing: make(chan struct{}), closed: make(chan struct{})}
	w.hurry, w.stop = context.WithCancel(context.Background())
	go func() {
		defer close(w.closed)
		drain(w.queue, w.closing, func(c crossing) { w.tell(&c) })
	}()
	return w
}

// Observe is for [weir.Options]. It is told of every decision, and never waits. A decision without budgets costs it a look at
// each limit; one that crosses no threshold allocates nothing.
func (w *Watcher) Observe(o *weir.Observation) {
	limits := o.Decision.Limits()
	for i := range limits {
		if l := &limits[i]; Watched(l.Policy) && i < len(o.Charges) {
			w.look(o, l, &o.Charges[i])
		}
	}
}

// look is the rest of Observe, for a budget.
func (w *Watcher) look(o *weir.Observation, l *weir.LimitStatus, c *counter.Charge) {
	// In a cooldown the counters weren't asked, and a peek uses nothing. What a node counts alone is a share.
	if l.Degraded || l.Local || o.Request.Peek || o.Decision.Reason == weir.ReasonCooldown {
		return
	}
	limit := l.Policy.Limit.Amount()
	n := reached(limit-l.Left(), limit)
	if n == len(Thresholds) && l.Allowed && o.Request.Reserve > 0 && c.Hold != nil {
		n-- // what is reserved may come back, and until then the budget isn't used up
	}
	// A refusal says nothing about the budget if the request is larger than all of it.
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

// raise has a crossing told, unless this node has told n or more thresholds of the budget.
func (w *Watcher) raise(budget window, n int, c crossing) {
	if w.told.count(budget) >= n {
		return
	}
	if len(w.queue) == cap(w.queue) {
		w.dropped.Add(1)
		return
	}
	c.counter.Subject = bytes.Clone(c.counter.Subject)
	w.told.raise(budget, n, func(from int) bool {
		c.from = from
		select {
		case w.queue <- c:
			return true
		default:
			w.dropped.Add(1)
			return false
		}
	})
}

// drain calls do with what is in the queue, until closing is closed and the queue is empty.
func drain[T any](queue <-chan T, closing <-chan struct{}, do func(T)) {
	for {
		select {
		case v := <-queue:
			do(v)
		case <-closing:
			if len(queue) == 0 {
				return
			}
		}
	}
}

// tell tells of a crossing what no node has told.
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

// tellOnce tells an event, unless a node has told one of the same kind for this budget and window. The kind is a threshold, or 0 for
// a refusal below 100%.
func (w *Watcher) tellOnce(c *crossing, threshold, kind int) {
	if w.hurry.Err() != nil {
		w.dropped.Add(1)
		return
	}
	ctx, cancel := context.WithTimeout(w.hurry, asking)
	// Kept for a whole window, wherever in it this is: the in-process store fills a bucket in that time, and one that is
	// asked with ever less of it would be full before the window ends.
	err := w.opts.Store.GiveBack(ctx, once(c, kind), c.use.End.Sub(c.use.Start)+time.Minute, nil)
	cancel()
	if errors.Is(err, counter.ErrUsed) {
		return
	}
	e := w.event(c, threshold)
	e.Unconfirmed = err != nil // to tell it twice is better than never
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

// Stats are what a Watcher has done so far.
type Stats struct {
	Events  uint64 // that were told
	Dropped uint64 // decisions that crossed a threshold while too many waited; the next one of the client tries again
}

// Stats returns them.
func (w *Watcher) Stats() Stats { return Stats{w.events.Load(), w.dropped.Load()} }

// Close tells what waits, and has the webhook send it, for a limited time. Observe must not be called any more.
func (w *Watcher) Close(atMost time.Duration) {
	late := time.AfterFunc(atMost, w.stop)
	defer late.Stop()
	close(w.closing)
	<-w.closed
	if w.opts.Webhook != nil {
		w.opts.Webhook.close(w.hurry)
	}
	w.stop()
}
