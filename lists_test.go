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
		if denied, allowed := rs.Covers(entry); denied != want[0] || allowed != want[1] {
			t.Errorf("%q: denied %t, allowed %t", entry, denied, allowed)
		}
	}
}
