package weir

import "strings"

// Covers reports whether the deny and the allow list hold a key, a pattern or an IP range, or something wider.
func (rs *RuleSet) Covers(entry string) (denied, allowed bool) {
	return rs.deny.covers(entry), rs.allow.covers(entry)
}

func (a *accessList) covers(entry string) bool {
	var one accessList
	if _, err := one.add(entry); err != nil {
		return false
	}
	for net := range one.nets { // one at most
		for _, n := range a.lengths {
			if (n >= 1000) != net.Addr().Is6() || n > netLength(net) {
				continue
			}
			wider, err := net.Addr().Prefix(n - netLength(net) + net.Bits())
			if _, held := a.nets[wider]; err == nil && held {
				return true
			}
		}
		return false
	}
	// A pattern is wider than another if it matches its text, asterisks and all.
	return a.matchKey(strings.TrimSpace(entry)) != ""
}
