package rulefile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Problems are printed in terminals and in build logs. They never contain a key of the document.
func TestProblemsHideKeys(t *testing.T) {
	const key = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"
	head := "tiers: {free: 1/s}\nrules:\n  - id: quota\n    limit: 5/m\n"
	for name, text := range map[string]string{
		"a tier that isn't":         head + "keys:\n  KEY: premum\n",
		"a key twice":               head + "keys:\n  KEY: free\n  \"KEY\": free\n",
		"a key that is shadowed":    head + "keys: {\"sk_*\": free, KEY: free}\n",
		"a limit":                   head + "    override:\n      KEY: 5/fortnight\n",
		"a field of an override":    head + "    override: {'KEY': {limt: 5/m}}\n",
		"behind others":             head + "    override: {KEY: 5/s, 'KEY2': 5/x, \"KEY3\": 5/y}\n",
		"expired and refused":       head + "    override: {KEY: 50/m}\nblacklist: [KEY]\n",
		"a pattern that is a key":   head + "    match: {api_key_pattern: KEY, api_key: absent}\n",
		"a key for a word":          head + "    match: {api_key: KEY}\n",
		"a list that is none":       head + "whitelist: KEY\n",
		"a list of maps":            head + "whitelist: [{KEY: 5}]\n",
		"a list under another name": head + "allow: [KEY]\n",
		"an entry beside a bad one": head + "blacklist: [KEY, \"*\"]\n",
		"a bracket":                 head + "blacklist: [KEY\n",
		"a colon":                   head + "keys:\n  KEY:free\n",
		"a tab":                     head + "keys:\n\tKEY: free\n",
		"escapes":                   head + "keys: {\"sk_live_\\u0034eC39HqLyjWDarjtT1zdp7dc\": por}\n",
		"JSON":                      `{"tiers": {"free": "1/s"}, "rules": [{"id": "a", "limit": "5/q", "override": {"KEY": "5/m"}}], "keys": {"KEY": "por"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Parse("rules.yaml", []byte(strings.ReplaceAll(text, "KEY", key)))
			found, _ := err.(Problems)
			if f != nil {
				found = f.Warnings
			}
			if len(found) == 0 {
				t.Fatal("nothing found")
			}
			all, err := json.Marshal(found)
			if err != nil {
				t.Fatal(err)
			}
			if shown := string(all) + found.Error(); strings.Contains(shown, "39HqLy") || strings.Contains(shown, "jWDarj") {
				t.Errorf("a key is shown:\n%s", shown)
			}
		})
	}
}

// The caret points at the fault, and line and column are those of the key that isn't shown.
func TestCaretBesideHiddenKey(t *testing.T) {
	_, err := Parse("rules.yaml", []byte("rules:\n  - id: a\n    limit: 5/m\n    override: {\"sk_live_4eC39HqLyjWDarjtT1zdp7dc\": 5/s, 10.0.0.1: 5/q, sk_live_é4eC39HqLyjWDarjtT1zdp: 6/q}\n"))
	want := `rules.yaml:4:67: rules[0] "a": override.10.0.0.1: must be a time such as second, minute, hour, day, 15m or 1h30m, got "q"
  4 |     override: {"sk_live…7dc": 5/s, 10.0.0.1: 5/q, sk_live…zdp: 6/q}
    |                                              ^
rules.yaml:4:104: rules[0] "a": override.sk_live…zdp: must be a time such as second, minute, hour, day, 15m or 1h30m, got "q"
  4 |     override: {"sk_live…7dc": 5/s, 10.0.0.1: 5/q, sk_live…zdp: 6/q}
    |                                                                ^`
	if got := fmt.Sprint(err); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
