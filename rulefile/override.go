package rulefile

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
)

// overrideID identifies an override by the rule's id as it is written, and the key.
type overrideID struct{ rule, key string }

// overrides reads the numbers of single keys, and records when they expire.
func (d *decoder) overrides(v value, s scope, rule string) map[string][]weir.Limit {
	d.hide(v)
	entries := d.entries(v)
	if len(entries) == 0 {
		return nil
	}
	s.override = true
	overrides := make(map[string][]weir.Limit, len(entries))
	for _, e := range entries {
		switch {
		case strings.TrimSpace(e.name) == "":
			d.add(e.nameAt, v.path, "an override is for a key, got nothing")
		case strings.Contains(e.name, "*"):
			d.add(e.nameAt, e.path, "an override is for one key, and %q is a pattern: write a rule with match: {api_key_pattern: …}, or give the keys a tier", shorten(e.name))
		}
		overrides[e.name] = d.numbers(e.value, s)
		if at, ok := d.expiry(e.value); ok {
			d.expires[overrideID{rule, e.name}] = at
		}
	}
	return overrides
}

// expiry reads when an override expires.
func (d *decoder) expiry(v value) (time.Time, bool) {
	f, _ := v.get("expires")
	at := value{f.value, join(v.path, "expires")}
	text := d.text(at)
	if text == "" {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		d.fail(at, "must be a time such as 2026-01-31T12:00:00Z, got %s", at.describe())
	}
	return t.UTC(), err == nil
}

// unexpired returns the document without the overrides that have expired, and when the next one will.
func (d *decoder) unexpired(now time.Time) (doc weir.Rules, next time.Time) {
	for _, at := range d.expires {
		if now.Before(at) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	doc = d.doc
	doc.Rules = slices.Clone(doc.Rules)
	for i := range doc.Rules {
		rule := &doc.Rules[i]
		rule.Override = maps.Clone(rule.Override)
		maps.DeleteFunc(rule.Override, func(key string, _ []weir.Limit) bool {
			at, expires := d.expires[overrideID{rule.ID, key}]
			return expires && !now.Before(at)
		})
		if len(rule.Override) == 0 {
			rule.Override = nil
		}
	}
	return doc, next
}

// Expiry returns when a key's override in a rule expires. Zero means never, or that there is no override.
func (f *File) Expiry(rule, key string) time.Time {
	for _, r := range f.Rules.Rules {
		if _, there := r.Override[key]; there && strings.EqualFold(r.ID, rule) {
			return f.decoder.expires[overrideID{r.ID, key}]
		}
	}
	return time.Time{}
}

// dropAtOnce is how many overrides one call removes. Each removal is an edit of its own, and the next call removes more.
const dropAtOnce = 20

// DropExpired removes expired overrides, so that a document to which overrides are added again and again doesn't grow.
func DropExpired(text []byte, now time.Time) ([]byte, error) {
	f, err := ParseAt("rules", text, now)
	if err != nil {
		return nil, err
	}
	dropped := 0
	for id, at := range f.decoder.expires {
		if now.Before(at) || dropped == dropAtOnce {
			continue
		}
		if text, err = DeleteOverride(text, id.rule, id.key); err != nil {
			return nil, err
		}
		dropped++
	}
	return text, nil
}
