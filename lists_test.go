package weir

import "testing"

func TestCovers(t *testing.T) {
	rs, err := Compile(Rules{
		Deny:  []string{"sk_leaked", "sk_revoked_*", "203.0.113.0/24", "2001:db8::/32", " padded "},
		Allow: []string{"sk_internal_*", "198.51.100.7"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for entry, want := range map[string][2]bool{
		"sk_leaked":              {true, false},
		"sk_leaked2":             {},
		"sk_leaked*":             {},
		"sk_leake*":              {},
		"sk_revoked_1":           {true, false},
		"sk_revoked_*":           {true, false},
		"sk_revoked_eu_*":        {true, false},
		"sk_revoked":             {},
		"padded":                 {true, false},
		"203.0.113.9":            {true, false},
		"203.0.113.0/25":         {true, false},
		"203.0.113.0/24":         {true, false},
		"203.0.112.0/23":         {},
		"203.0.114.1":            {},
		"::ffff:203.0.113.9":     {true, false},
		"::ffff:203.0.113.0/121": {true, false},
		"2001:db8:1::/48":        {true, false},
		"2001::/16":              {},
		"198.51.100.7":           {false, true},
		"198.51.100.7/32":        {false, true},
		"198.51.100.0/24":        {},
		"sk_internal_a":          {false, true},
		"":                       {},
		"*":                      {},
	} {
		if denied, allowed := rs.covers(entry); denied != want[0] || allowed != want[1] {
			t.Errorf("%q: denied %t, allowed %t", entry, denied, allowed)
		}
	}
}

// Denied entries that aren't in the document beat its allow list, and don't change the document.
func TestWithDenied(t *testing.T) {
	rs, err := Compile(Rules{Allow: []string{"sk_*"}, Deny: []string{"old_*"}})
	if err != nil {
		t.Fatal(err)
	}
	more, err := rs.withDenied("sk_leaked", "203.0.113.0/24")
	if err != nil {
		t.Fatal(err)
	}
	for entry, want := range map[string]bool{"sk_leaked": true, "203.0.113.7": true, "old_1": true, "sk_other": false} {
		if denied, _ := more.covers(entry); denied != want {
			t.Errorf("%s: denied %v", entry, denied)
		}
	}
	if x := more.Explain(&Request{APIKey: "sk_leaked", KeyVerified: true}); x.Reason != ReasonDenied {
		t.Errorf("on both lists: %s", x.Reason)
	}
	if denied, _ := rs.covers("sk_leaked"); denied || len(more.Rules().Deny) != 1 {
		t.Error("the rules have changed")
	}
	for _, entry := range []string{"*", "", "0.0.0.0/0"} {
		if _, err := rs.withDenied(entry); err == nil {
			t.Errorf("%q is taken", entry)
		}
	}
}
