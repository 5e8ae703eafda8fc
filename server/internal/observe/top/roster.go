package top

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/redisstore"
)

// Gone is a node that has ended, and what it had counted with it.
type Gone struct {
	Name string    `json:"name"`
	Seen time.Time `json:"seen"` // when it was last heard
}

// roster remembers the nodes of the last hour: those that have ended leave a gap in what the others tell of it.
type roster struct {
	mu   sync.Mutex
	live []redisstore.Peer
	seen map[string]time.Time // by this node's clock
}

// mostSeen bounds them. Whoever can write to Redis can make up more.
const mostSeen = 10_000

func (r *roster) note(peers []redisstore.Peer, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]time.Time{}
	}
	r.live = peers
	for name, at := range r.seen {
		if now.Sub(at) > HourSlots*HourSlot {
			delete(r.seen, name)
		}
	}
	for _, p := range peers {
		if _, known := r.seen[p.Name]; (known || len(r.seen) < mostSeen) && clean(p.Name) {
			r.seen[p.Name] = p.Seen
		}
	}
}

// gone are those that aren't among the nodes any more. At is the present moment by the clock that nodes share.
func (r *roster) gone(at time.Time) (all []Gone) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, seen := range r.seen {
		if !slices.ContainsFunc(r.live, func(p redisstore.Peer) bool { return p.Name == name }) {
			all = append(all, Gone{name, at.Add(-time.Since(seen)).UTC().Truncate(time.Second)})
		}
	}
	slices.SortFunc(all, func(a, b Gone) int { return strings.Compare(a.Name, b.Name) })
	return all
}
