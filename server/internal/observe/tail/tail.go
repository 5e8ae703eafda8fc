// Package tail shows decisions to people as they are made.
//
// While nobody watches, a decision costs one look at a pointer. Viewers get at most a hundred decisions a second, and each is told
// how many there were. Nobody waits for a viewer: what one doesn't take in time is left out.
//
// Nothing that is shown holds a secret: keys are masked, and of a path only the rule's pattern is shown.
package tail

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
	"github.com/weirhq/weir/server/internal/observe/top"
)

const (
	// MaxViewers is how many may watch at a time. Each costs every decision some nanoseconds.
	MaxViewers = 16
	// MaxOfOne is how many of them may have the same name.
	MaxOfOne = 4
	// PerSecond is how many decisions a viewer gets between two pulses, at most.
	PerSecond = 100
	// Every is the time between pulses.
	Every = time.Second
)

// Decision is one of them, on the wire.
type Decision struct {
	Time time.Time `json:"time"`
	top.Shown
	Rule      string   `json:"rule"`
	Outcome   string   `json:"outcome"`
	Reason    string   `json:"reason"`
	Edge      string   `json:"edge"`
	Method    string   `json:"method"`
	Path      string   `json:"path"` // the pattern of the limit that binds
	Limit     int64    `json:"limit"`
	Remaining int64    `json:"remaining"`
	RetryMS   int64    `json:"retry_after_ms"` // -1 if waiting doesn't help
	Shadow    []string `json:"shadow"`         // rules that would have refused it, were they enforced
}

// Pulse is how many decisions there were since the one before.
type Pulse struct {
	Seen    uint64 `json:"seen"` // that the filter lets through: all of them
	Sent    uint64 `json:"sent"`
	LeftOut uint64 `json:"left_out"`
	OneIn   uint64 `json:"one_in"` // so many were looked at, of those that were seen
}

// Filter says which decisions to show. The zero Filter shows all.
type Filter struct {
	Outcome string // allowed or refused; "" means both
	Rule    string // the one that binds
	Edge    string
	// Client is a fingerprint as [top.Top.Prints] has it, if ByClient.
	Client   uint32
	ByClient bool
}

// Hub shows decisions to viewers. Clients must be set before the first one comes.
type Hub struct {
	viewers atomic.Pointer[[]*Viewer] // nil while nobody watches

	Clients *top.Top
	mu      sync.Mutex // held while viewers come and go
}

// Watched reports whether anybody watches.
func (h *Hub) Watched() bool { return h.viewers.Load() != nil }

// Observe shows a decision. It waits for nobody.
func (h *Hub) Observe(o *weir.Observation) {
	viewers := h.viewers.Load()
	if viewers == nil || o.Request.Peek {
		return
	}
	var shown *Decision // made once, and shared by all viewers that get it
	for _, v := range *viewers {
		if !v.wants(o, h.Clients) {
			continue
		}
		if o.Spread > v.below.Load() || !v.claim() {
			v.leftOut.Add(1)
			continue
		}
		if shown == nil {
			shown = h.show(o)
		}
		select {
		case v.decisions <- shown:
			v.sent.Add(1)
		default:
			v.leftOut.Add(1)
		}
	}
}

func (v *Viewer) wants(o *weir.Observation, clients *top.Top) bool {
	f, d := &v.filter, o.Decision
	switch {
	case f.Outcome != "" && f.Outcome != observer.Outcome(d.Allowed), f.Rule != "" && f.Rule != d.Rule, f.Edge != "" && f.Edge != observer.Edge(o.Request.Edge):
		return false
	case !f.ByClient:
		return true
	}
	client, address := clients.Prints(o.Request)
	return f.Client != 0 && (f.Client == client || f.Client == address)
}

// show is a decision as people may see it.
func (h *Hub) show(o *weir.Observation) *Decision {
	req, d := o.Request, o.Decision
	out := &Decision{
		Time: time.Now().UTC().Truncate(time.Millisecond), Shown: h.Clients.See(req),
		Rule: d.Rule, Outcome: observer.Outcome(d.Allowed), Reason: observer.Reason(d.Reason), Edge: observer.Edge(req.Edge),
		Method: observer.Method(req.Method), Path: observer.Path(d.Policy), Remaining: d.Remaining, RetryMS: observer.Milliseconds(d.RetryAfter), Shadow: []string{},
	}
	if d.Policy != nil {
		out.Limit = d.Policy.Limit.Max()
	}
	for _, l := range d.Limits() {
		if l.Policy.Shadow && !l.Allowed && !l.Degraded && !slices.Contains(out.Shadow, l.Policy.Rule) {
			out.Shadow = append(out.Shadow, l.Policy.Rule)
		}
	}
	return out
}

// Viewer is somebody who watches. One goroutine may use it.
type Viewer struct {
	hub       *Hub
	name      string
	filter    Filter
	decisions chan *Decision
	below     atomic.Uint64 // what the Spread of a decision must not exceed to be shown
	left      atomic.Int64  // how many more may be sent until the next pulse
	sent      atomic.Uint64
	leftOut   atomic.Uint64

	told  Pulse // so far
	oneIn uint64
}

// Watch begins to show decisions to a viewer, whose name is that of its token, or "". If too many watch already, it fails with what
// to do about it.
func (h *Hub) Watch(name string, f Filter) (*Viewer, error) {
	v := &Viewer{hub: h, name: name, filter: f, decisions: make(chan *Decision, 2*PerSecond), oneIn: 1}
	v.below.Store(math.MaxUint64)
	v.left.Store(PerSecond)
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*Viewer
	if now := h.viewers.Load(); now != nil {
		all = *now
	}
	same := 0
	for _, other := range all {
		if other.name == name {
			same++
		}
	}
	switch {
	case name != "" && same >= MaxOfOne:
		return nil, fmt.Errorf("the token of %s watches this node's decisions %d times already: close a page or a weir tail that does, or try again later", name, same)
	case len(all) >= MaxViewers:
		return nil, fmt.Errorf("%d watch this node's decisions already: close a page or a weir tail that does, or try again later", len(all))
	}
	all = append(slices.Clone(all), v)
	h.viewers.Store(&all)
	return v, nil
}

// Close ends it.
func (v *Viewer) Close() {
	h := v.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(*h.viewers.Load()), func(o *Viewer) bool { return o == v })
	if len(all) == 0 {
		h.viewers.Store(nil)
		return
	}
	h.viewers.Store(&all)
}

// Decisions are those to show.
func (v *Viewer) Decisions() <-chan *Decision { return v.decisions }

// claim takes one of what is left. When nothing is, it only reads, so that cores don't fight for it.
func (v *Viewer) claim() bool { return v.left.Load() > 0 && v.left.Add(-1) >= 0 }

// Pulse tells how many decisions there were since the last one, and lets more come: about as many as may be sent, spread over the time
// until the next, if as many come as did.
func (v *Viewer) Pulse() Pulse {
	now := Pulse{Sent: v.sent.Load(), LeftOut: v.leftOut.Load()}
	p := Pulse{Sent: now.Sent - v.told.Sent, LeftOut: now.LeftOut - v.told.LeftOut, OneIn: v.oneIn}
	p.Seen = p.Sent + p.LeftOut
	v.told = now
	k := 0
	for p.Seen>>k > PerSecond {
		k++
	}
	v.oneIn = 1 << k
	v.below.Store(math.MaxUint64 >> k)
	v.left.Store(PerSecond)
	return p
}
