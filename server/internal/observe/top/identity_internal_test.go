package top

import (
	"net/netip"
	"testing"
)

// Networks are shown in the form in which a rule counts them, and each is a client of its own.
func TestNetworksAreShown(t *testing.T) {
	binary := func(network string) string {
		b, err := netip.MustParsePrefix(network).MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	k, seen := &key{k0: 1, k1: 2}, map[uint64]string{}
	for value, want := range map[string]string{
		"\xcb\x00\x71\x00":                 "203.0.113.0",
		binary("203.0.113.0/24"):           "203.0.113.0/24",
		binary("203.0.113.0/25"):           "203.0.113.0/25",
		"\x20\x01\x0d\xb8\x00\x00\x00\x00": "2001:db8::/64",
		binary("2001:db8::/48"):            "2001:db8::/48",
		binary("2001:db8::1/128"):          "2001:db8::1/128",
		"":                                 "(no address)",
		"what is this?":                    "(no address)",
	} {
		who := counted("ip", value)
		if got := who.Shown(); got != want {
			t.Errorf("%x is shown as %s, want %s", value, got, want)
		}
		if other, twice := seen[k.hash(who)]; twice && other != want {
			t.Errorf("%s and %s are one client", want, other)
		}
		seen[k.hash(who)] = want
	}
}
