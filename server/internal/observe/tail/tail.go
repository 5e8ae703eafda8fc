// Package tail streams decisions to viewers as they are made.
//
// Without viewers, the only cost for a decision is to read a pointer. A viewer gets at most a hundred decisions a
// second, and the number of all decisions. Checks never wait for a viewer: if the viewer is slow, decisions are left
// out.
//
// Decisions are shown without secrets: keys are masked, and paths are replaced by the rule's pattern.
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
	// MaxViewers is the maximum number of viewers. Each viewer costs every decision some nanoseconds.
	MaxViewers = 16
	// MaxOfOne is how many viewers may have the same name. A viewer's name is the name of its admin token.
	MaxOfOne = 4
	// PerSecond is how many decisions a viewer gets at most between two pulses.
	PerSecond = 100
	// Every is the time between pulses.
	Every = time.Second
)

// Decision is a decision as it is sent to viewers.
type Decision struct {
	Time time.Time `json:"time"`
	top.Shown
	Rule      string   `json:"rule"`
	Outcome   string   `json:"outcome"`
	Reason    string   `json:"reason"`
	Edge      string   `json:"edge"`
	Method    string   `json:"method"`
	Path      string   `json:"path"` // path pattern of the limit that decided
	Limit     int64    `json:"limit"`
	Remaining int64    `json:"remaining"`
	RetryMS   int64    `json:"retry_after_ms"` // -1 if waiting doesn't help
	Shadow    []string `json:"shadow"`         // rules in shadow that would have refused the request
}

// Pulse counts the decisions since the previous pulse.
type Pulse struct {
	Seen    uint64 `json:"seen"` // decisions that the filter accepts, including those that weren't sent
	Sent    uint64 `json:"sent"`
	LeftOut uint64 `json:"left_out"`
	OneIn   uint64 `json:"one_in"` // one in this many accepted decisions was sampled
}

// Filter says which decisions to show. The zero value shows all of them.
type Filter struct {
	Outcome string // "allowed" or "refused"; "" means both
	Rule    string // the rule that decided; "" means any rule
	Edge    string
	// Client is the fingerprint of a client as in [top.Top.Prints]. It is used only if ByClient is set.
	Client   uint32
	ByClient bool
}

// Hub sends decisions to viewers. Set Clients before the first viewer.
type Hub struct {
	viewers atomic.Pointer[[]*Viewer] // nil if there are no viewers

	Clients *top.Top
	mu      sync.Mutex // held while the list of viewers is changed
}

// Watched reports whether there are viewers.
func (h *Hub) Watched() bool { return h.viewers.Load() != nil }

// Observe sends a decision to the viewers whose filters accept it. It never blocks.
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

// show converts a decision to one without secrets.
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

// Viewer receives decisions. It must be used by one goroutine at a time.
type Viewer struct {
	hub       *Hub
	name      string
	filter    Filter
	decisions chan *Decision
	below     atomic.Uint64 // decisions whose Spread is at most this are sampled
	left      atomic.Int64  // how many more decisions may be sent before the next pulse
	sent      atomic.Uint64
	leftOut   atomic.Uint64

	told  Pulse // totals at the last pulse
	oneIn uint64
}

// Watch adds a viewer. name is the name of the viewer's admin token, or "". If there are too many viewers, Watch
// returns an error that says what to do.
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

// Close removes the viewer.
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

// Decisions returns the channel from which the viewer receives decisions.
func (v *Viewer) Decisions() <-chan *Decision { return v.decisions }

// claim subtracts 1 from left if left is above 0, and reports whether it did. Otherwise it only reads left, so that
// cores don't contend for the cache line.
func (v *Viewer) claim() bool { return v.left.Load() > 0 && v.left.Add(-1) >= 0 }

// Pulse returns the counts since the previous pulse. It adjusts the sampling rate: if decisions continue at the same
// rate, about PerSecond of them, evenly spread, are sent before the next pulse.
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
