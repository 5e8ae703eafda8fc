package inforce

import (
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/lint"
	"github.com/weirhq/weir/internal/node/rulestore"
)

// Join makes the emergency list apply in addition to the rules from now on. Call it before Run.
func (r *Rules) Join(blocks *rulestore.Blocks) {
	r.mu.Lock()
	r.blocks = blocks // under the lock, because expire may be reading it
	r.mu.Unlock()
	blocks.OnChange(r.rejoin)
	r.rejoin()
}

// Blocks returns the emergency list. If none was joined, it is empty and lasts as long as the
// process.
func (r *Rules) Blocks() *rulestore.Blocks { return r.blocks }

func (r *Rules) rejoin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.inForce.Load(); d != nil {
		r.limiter.SetRules(r.joined(d.File.Set))
	}
}

// joined returns a document's rules together with the emergency list. No other function combines them.
func (r *Rules) joined(set *weir.RuleSet) *weir.RuleSet {
	var entries []string
	for _, b := range r.blocks.List() {
		// Entries are validated when they are added to the list, so only an entry that another release wrote can fail.
		// A bad entry must not keep the others from being blocked.
		if _, err := lint.Denied(new(weir.RuleSet), b.Entry); err != nil {
			r.log.Error("an entry of the emergency list can't be used: the others apply", "since", b.Time, "by", b.By)
			continue
		}
		entries = append(entries, b.Entry)
	}
	if len(entries) == 0 {
		return set
	}
	all, err := lint.Denied(set, entries...)
	if err != nil {
		panic(err) // can't happen: each entry was checked, and the rules have been compiled
	}
	return all
}
