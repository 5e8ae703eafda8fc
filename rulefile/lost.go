package rulefile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/internal/shown"
)

// Lost returns what a change from one document to another takes away from single clients: entries of the deny and allow lists
// that the new document doesn't cover, and overrides that haven't expired and are missing there. People add these by hand and
// in a hurry, so no file or older version has them. If changed is set, overrides with other numbers count as lost, too. Keys
// are masked. Both files must come from [Parse].
func Lost(old, new *File, changed bool) []Problem {
	d := new.report()
	note := func(path, hint string, lost []string, format string) {
		for i, what := range lost {
			if i == listedLosses {
				d.failAt(path, "and %d more of them", len(lost)-i).Hint = hint
				break
			}
			d.failAt(path, format, what).Hint = hint
		}
	}
	var denied, allowed []string // entries that the new document doesn't cover
	for _, entry := range old.Rules.Deny {
		if covered, _ := private.Covers(new.Set, entry); !covered {
			denied = append(denied, shown.Entry(entry))
		}
	}
	for _, entry := range old.Rules.Allow {
		if _, covered := private.Covers(new.Set, entry); !covered {
			allowed = append(allowed, shown.Entry(entry))
		}
	}
	deny, allow := d.listNames[Denylist], d.listNames[Allowlist]
	note(deny, "keep it in `"+deny+"`", denied, "%s is blocked now and would not be any more")
	note(allow, "keep it in `"+allow+"`", allowed, "%s passes every limit now and would not any more")
	places := byID(&new.Rules)
	for _, was := range old.Rules.Rules {
		path, kept := "rules", map[string][]weir.Limit(nil)
		if j, there := places[strings.ToLower(was.ID)]; there {
			path, kept = index("rules", j), new.Rules.Rules[j].Override
		}
		var lost []string
		for _, key := range slices.Sorted(maps.Keys(was.Override)) {
			if limits, there := kept[key]; !there || changed && !slices.Equal(limits, was.Override[key]) {
				lost = append(lost, shown.Entry(key))
			}
		}
		note(join(path, "override"), "keep it, or give it again with weir keys override", lost,
			fmt.Sprintf("%%s has numbers of its own in the rule %q now, and would not have these any more", shorten(was.ID)))
	}
	return d.sorted(d.src)
}

// listedLosses is how many losses of a kind are listed one by one.
const listedLosses = 20
