package rulefile

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestExpiry checks that an override applies until it expires, and that a document says when its next override does.
func TestExpiry(t *testing.T) {
	const text = `rules:
  - id: a
    limit: 5/m
    override:
      ever: 6/m
      noon: {limit: 7/m, expires: 2026-11-16T12:00:00Z}
      one: {limits: [8/m, 9/h], expires: "2026-11-16T14:00:00+01:00"}
  - id: b
    limit: 5/m
    override: {noon: {capacity: 5, refill_rate: 1, expires: 2026-11-16T12:00:00.5Z}}
`
	for _, tt := range []struct {
		now  time.Time
		a, b string
		next time.Time
	}{
		{noon.Add(-time.Nanosecond), "ever noon one", "noon", noon},
		{noon, "ever one", "noon", noon.Add(time.Second / 2)},
		{noon.Add(time.Second), "ever one", "", noon.Add(time.Hour)},
		{noon.Add(time.Hour), "ever", "", time.Time{}},
	} {
		f, err := ParseAt("rules.yaml", []byte(text), tt.now)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range f.Set.Rules().Rules {
			var keys []string
			for key := range r.Override {
				keys = append(keys, key)
			}
			slices.Sort(keys)
			got = append(got, strings.Join(keys, " "))
		}
		if got[0] != tt.a || got[1] != tt.b || !f.NextExpiry.Equal(tt.next) {
			t.Errorf("%v: got %q, next %v; want %q, %q, %v", tt.now, got, f.NextExpiry, tt.a, tt.b, tt.next)
		}
	}
}

// TestExpiryMistakes checks that only overrides may expire, and that the time must be valid.
func TestExpiryMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"override: {k: {limit: 5/m, expires: 2026-11-16}}":                 `override.k.expires: must be a time such as 2026-01-31T12:00:00Z, got "2026-11-16"`,
		"override: {k: {limit: 5/m, expires: 1h}}":                         `override.k.expires: must be a time such as 2026-01-31T12:00:00Z, got "1h"`,
		"override: {k: {limit: 5/m, expires: [1h]}}":                       `override.k.expires: must be text, got a list`,
		"override: {k: {limit: 5/m, expires: }}":                           `override.k.expires: needs a value`,
		"override: {k: {expires: 2026-11-16T12:00:00Z}}":                   `override.k: needs numbers`,
		"override: {k: {limit: 5/m, expires_in: 1h}}":                      `an override has no field "expires_in"`,
		"tiers: {t: {limit: 5/m, expires: 2026-11-16T12:00:00Z}}":          `tiers.t.expires: a limit has no field "expires"`,
		"candidate: {limit: 5/m, expires: 2026-11-16T12:00:00Z}":           `candidate.expires: a limit has no field "expires"`,
		"override: {k: {limit: 5/m, expires: 2020-01-01T12:00:00Z, x: 1}}": `an override has no field "x"`,
	} {
		_, err := Parse("rules.yaml", []byte("rules: [{id: a, limit: 5/m, "+text+"}]"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %s, got %v", text, want, err)
		}
	}
}

// The numbers of a tier are per client. A rule for the tier that counts by address keeps its own numbers.
func TestSetTierLeavesAddressesAlone(t *testing.T) {
	text := "tiers: {free: 100/minute}\nrules:\n  - {id: quota}\n  - {id: address, tier: free, by: [ip], limit: 6000/minute}\n"
	got, err := SetTier([]byte(text), "free", Numbers{Limit: "200/minute"})
	if want := strings.Replace(text, "100/minute", "200/minute", 1); err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
}
