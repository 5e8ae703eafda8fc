package inforce

import (
	"fmt"
	"slices"

	"github.com/weirhq/weir/internal/node/rulestore"
)

// orphans is how many versions are remembered that were given up.
const orphans = 8

// giveUp remembers what is in force, since the rule store has gone on without it.
func (r *Rules) giveUp(v rulestore.Version) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.inForce.Load(); d != nil && d.Hash == v.Hash {
		r.givenUp = append(r.givenUp, d)[max(0, len(r.givenUp)+1-orphans):]
	}
}

// compare looks for keys that a version blocks which was given up, and that pass now: somebody was told that they are blocked. It
// is called with the lock held.
func (r *Rules) compare(d *Document) {
	var warning string
	r.givenUp = slices.DeleteFunc(r.givenUp, func(old *Document) bool {
		lost := 0
		for _, entry := range old.File.Rules.Deny {
			if denied, _ := d.File.Set.Covers(entry); !denied {
				lost++
			}
		}
		if lost > 0 {
			warning = fmt.Sprintf("version %s was in force here until the rule store went on without it, and %d of the entries that it blocks pass now: "+
				"weir rules show --version %[1]s shows them; block them again, or go back with weir rules rollback %[1]s", old.Name(), lost)
		}
		return lost == 0 && d.Hash != old.Hash // which is in force until another can be
	})
	r.warning.Store(&warning)
}

// Warning tells of keys that were blocked by rules which this node had to give up, and aren't any more; or "". It holds no key.
func (r *Rules) Warning() string {
	if w := r.warning.Load(); w != nil {
		return *w
	}
	return ""
}
