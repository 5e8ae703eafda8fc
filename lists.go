package weir

import (
	"strings"
)

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

// addPattern adds an entry to a list. The consequence is what an entry for everybody would lead to.
func (rs *RuleSet) addPattern(list *accessList, path, pattern, consequence string, bad *Problems) {
	pattern = strings.TrimSpace(pattern)
	if pattern == "" {
		bad.addf(path, "must be a key, a pattern such as sk_internal_* or an IP range, got nothing")
		return
	}
	if wrong := foreignNet(pattern); wrong != "" {
		bad.addf(path, "%q %s", pattern, wrong)
		return
	}
	if strings.Trim(pattern, "*") == "" {
		bad.addf(path, "%q matches every key, and %s: name those that are meant, as in sk_internal_*", pattern, consequence)
		return
	}
	net, err := list.add(pattern)
	switch {
	case err != nil:
		bad.addf(path, "%v", err)
		return
	case !net.IsValid():
		rs.checkKey(path, pattern, bad)
		return
	}
	switch everybody, wide := wideNet(net); {
	case everybody:
		bad.addf(path, "%q covers every address, and %s: name those that are meant, as in 203.0.113.0/24", pattern, consequence)
	case wide:
		rs.warnf(path, "%q covers a large part of all addresses, and %s: name those that are meant, as in 203.0.113.0/24", pattern, consequence)
	}
}
