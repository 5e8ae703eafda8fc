package weir

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

// covers reports whether the deny list and the allow list contain an entry, or a wider one.
func (rs *RuleSet) covers(entry string) (denied, allowed bool) {
	return rs.deny.Covers(entry), rs.allow.Covers(entry)
}

// withDenied returns the same rules with more entries on the deny list.
func (rs *RuleSet) withDenied(entries ...string) (*RuleSet, error) {
	c := *rs
	var bad problems
	if c.deny = denyList(slices.Concat(rs.doc.Deny, entries), &bad); len(bad) > 0 {
		return nil, counter.Problems(bad)
	}
	return &c, nil
}

func denyList(entries []string, bad *problems) pattern.List {
	return compileList("deny", entries, "all of them would be refused", bad)
}

// compileList compiles the entries of a list. It refuses entries that match every client;
// consequence says what they would do.
func compileList(name string, entries []string, consequence string, bad *problems) (list pattern.List) {
	for i, entry := range entries {
		path, entry := fmt.Sprintf("%s[%d]", name, i), strings.TrimSpace(entry)
		if strings.Trim(entry, "*") == "" {
			bad.when(entry == "", path, "must be a key, a pattern such as sk_internal_* or an IP range, got nothing")
			bad.when(entry != "", path, "%q matches every key, and %s: name those that are meant, as in sk_internal_*", entry, consequence)
			continue
		}
		net, err := list.Add(entry)
		bad.addErr(path, err)
		bad.when(err == nil && net.IsValid() && net.Bits() == 0, path,
			"%q covers every address, and %s: name those that are meant, as in 203.0.113.0/24", entry, consequence)
	}
	return list
}
