package inforce

import (
	"context"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/node/rulestore"
)

// Join has the emergency list apply beside the rules, from now on. Call it before Run.
func (r *Rules) Join(blocks *rulestore.Blocks) {
	r.mu.Lock()
	r.blocks = blocks // which a timer of the document in force may be reading
	r.mu.Unlock()
	blocks.OnChange(r.rejoin)
	r.rejoin()
}

// Blocks is the emergency list. Unless one was joined, it is empty and lasts as long as this process.
func (r *Rules) Blocks() *rulestore.Blocks { return r.blocks }

// unkept is an empty emergency list that isn't kept.
func unkept(limiter *weir.Limiter) *rulestore.Blocks {
	return rulestore.OpenBlocks(context.Background(), rulestore.BlockOptions{Now: limiter.Now})
}

// rejoin puts the emergency list in force as it is now.
func (r *Rules) rejoin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.inForce.Load(); d != nil {
		r.limiter.SetRules(r.joined(d.File.Set))
	}
}

// joined is a document's rules with the emergency list. It is the one place where they meet.
func (r *Rules) joined(set *weir.RuleSet) *weir.RuleSet {
	var entries []string
	for _, b := range r.blocks.List() {
		// Entries are checked before they are put on the list, so this is about those of another release. One that can't be
		// understood must not keep the others from being blocked.
		if _, err := new(weir.RuleSet).WithDenied(b.Entry); err != nil {
			r.log.Error("an entry of the emergency list can't be used: the others apply", "since", b.Time, "by", b.By)
			continue
		}
		entries = append(entries, b.Entry)
	}
	if len(entries) == 0 {
		return set
	}
	all, err := set.WithDenied(entries...)
	if err != nil {
		panic(err) // each entry was looked at, and the rules have been compiled
	}
	return all
}
