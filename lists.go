package weir

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

// Covers reports whether the deny and the allow list hold a key, a pattern or an IP range, or something wider.
func (rs *RuleSet) Covers(entry string) (denied, allowed bool) {
	return rs.deny.Covers(entry), rs.allow.Covers(entry)
}

// withDenied is private.WithDenied.
func (rs *RuleSet) withDenied(entries ...string) (*RuleSet, error) {
	c := *rs
	c.deny, c.warnings = pattern.List{}, nil
	var bad problems
	for i, p := range slices.Concat(rs.doc.Deny, entries) {
		c.addPattern(&c.deny, fmt.Sprintf("deny[%d]", i), p, "all of them would be refused", &bad)
	}
	if c.warnings = rs.warnings; len(bad) > 0 {
		return nil, counter.Problems(bad)
	}
	return &c, nil
}

// publicIPv6 are the IPv6 addresses that are given to anybody.
var publicIPv6 = netip.MustParsePrefix("2000::/3")

// addPattern adds an entry to a list. The consequence is what an entry for everybody would lead to.
func (rs *RuleSet) addPattern(list *pattern.List, path, entry, consequence string, bad *problems) {
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
	case !net.IsValid():
		rs.checkKey(path, entry, bad)
	case net.Bits() == 0:
		bad.addf(path, "%q covers every address, and %s: name those that are meant, as in 203.0.113.0/24", entry, consequence)
	case net.Addr().Is4() && net.Bits() < 8, net.Addr().Is6() && net.Bits() < 16 && net.Overlaps(publicIPv6):
		rs.warnf(path, "%q covers a large part of all addresses, and %s: name those that are meant, as in 203.0.113.0/24", entry, consequence)
	}
}
