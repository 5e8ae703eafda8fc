package weir

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

// covers is private.Covers.
func (rs *RuleSet) covers(entry string) (denied, allowed bool) {
	return rs.deny.Covers(entry), rs.allow.Covers(entry)
}

// withDenied is private.WithDenied.
func (rs *RuleSet) withDenied(entries ...string) (*RuleSet, error) {
	c := *rs
	c.deny = pattern.List{}
	var bad problems
	for i, p := range slices.Concat(rs.doc.Deny, entries) {
		addEntry(&c.deny, fmt.Sprintf("deny[%d]", i), p, "all of them would be refused", &bad)
	}
	if len(bad) > 0 {
		return nil, counter.Problems(bad)
	}
	return &c, nil
}

// addEntry adds an entry to a list. The consequence is what an entry for everybody would lead to.
func addEntry(list *pattern.List, path, entry, consequence string, bad *problems) {
	entry = strings.TrimSpace(entry)
	switch {
	case entry == "":
		bad.addf(path, "must be a key, a pattern such as sk_internal_* or an IP range, got nothing")
		return
	case strings.Trim(entry, "*") == "":
		bad.addf(path, "%q matches every key, and %s: name those that are meant, as in sk_internal_*", entry, consequence)
		return
	}
	switch net, err := list.Add(entry); {
	case err != nil:
		bad.addf(path, "%v", err)
	case net.IsValid() && net.Bits() == 0:
		bad.addf(path, "%q covers every address, and %s: name those that are meant, as in 203.0.113.0/24", entry, consequence)
	}
}
