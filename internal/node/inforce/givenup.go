package inforce

import (
	"fmt"
	"slices"

	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/private"
)

// orphans is how many orphaned versions are remembered. An orphaned version was in force here, but the rule store has
// continued without it.
const orphans = 8

// giveUp remembers the document in force if it is version v, because the rule store has continued without that version.
func (r *Rules) giveUp(v rulestore.Version) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.inForce.Load(); d != nil && d.Hash == v.Hash {
		r.givenUp = append(r.givenUp, d)[max(0, len(r.givenUp)+1-orphans):]
	}
}

// compare looks for entries that an orphaned version blocks and the rules in force don't block, and updates the warning
// about them: an operator believes that these entries are blocked. Callers hold the lock.
func (r *Rules) compare(d *Document) {
	var warning string
	r.givenUp = slices.DeleteFunc(r.givenUp, func(old *Document) bool {
		lost := 0
		for _, entry := range old.File.Rules.Deny {
			if denied, _ := private.Covers(d.File.Set, entry); !denied {
				lost++
			}
		}
		if lost > 0 {
			warning = fmt.Sprintf("version %s was in force here until the rule store went on without it, and %d of the entries that it blocks pass now: "+
				"weir rules show --version %[1]s shows them; block them again, or go back with weir rules rollback %[1]s", old.Name(), lost)
		}
		return lost == 0 && d.Hash != old.Hash // an orphan that is still in force stays until another version replaces it
	})
	r.warning.Store(&warning)
}

// Warning returns a text about entries that orphaned versions blocked and that now pass, or "". The text contains no
// key.
func (r *Rules) Warning() string {
	if w := r.warning.Load(); w != nil {
		return *w
	}
	return ""
}
