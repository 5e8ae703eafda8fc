package rulefile

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// TestEditsUndone makes random edits to random documents, in every layout and with comments everywhere. Each edit must
// have its effect and no other, keep all comments, and be reversible to the byte.
func TestEditsUndone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := drawDocument(t)
		var text string
		switch rapid.IntRange(0, 2).Draw(t, "layout") {
		case 0:
			text = strings.TrimPrefix(writeBlock(doc, 0), "\n") + rapid.SampledFrom([]string{"", "\n", "\n# end\n"}).Draw(t, "end")
			text = drawComments(t, text)
		case 1:
			text = writeFlow(doc)
		default:
			text = writeJSON(doc)
		}
		if rapid.Bool().Draw(t, "returns") {
			text = strings.ReplaceAll(text, "\n", "\r\n")
		}
		before, err := Parse("rules", []byte(text))
		if err != nil {
			return
		}
		do, undo, mean := drawEdit(t, before)
		after := mustEdit(t, text, do)
		f, err := Parse("rules", after)
		if err != nil {
			t.Fatalf("%s\nbecomes\n%s\n%v", text, after, err)
		}
		mean(&before.Rules)
		if !reflect.DeepEqual(f.Rules, before.Rules) {
			t.Fatalf("%s\nbecomes\n%s\nwhich means\n%+v\nand not\n%+v", text, after, f.Rules, before.Rules)
		}
		for i := range strings.Count(text, "# c") {
			if c := fmt.Sprintf("# c%d.", i); !strings.Contains(string(after), c) {
				t.Fatalf("%s is lost.\n%s\nbecomes\n%s", c, text, after)
			}
		}
		if back := mustEdit(t, string(after), undo); string(back) != text {
			t.Fatalf("%q\nbecomes\n%q\nand then\n%q", text, after, back)
		}
	})
}

// TestPutRuleInPlace replaces random rules. The text before and after a rule must stay the same, and the new rule must
// mean the same as in a document of its own. Putting a rule that is already there changes nothing.
func TestPutRuleInPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := object{{"rules", []any{}}}
		n := rapid.IntRange(1, 3).Draw(t, "rules")
		list := make([]any, n)
		tier := func() string { return "pro" }
		for i := range list {
			list[i] = drawRule(t, fmt.Sprintf("r%d", i), tier)
		}
		doc[0].value = list
		doc = append(doc, member{"tiers", object{{"pro", "5/minute"}}})
		i := rapid.IntRange(0, n-1).Draw(t, "which")
		rule := drawRule(t, fmt.Sprintf("r%d", i), tier)
		alone, err := Parse("rules", []byte(writeJSON(object{{"rules", []any{rule}}, doc[1]})))
		if err != nil {
			return
		}
		for _, text := range []string{drawComments(t, strings.TrimPrefix(writeBlock(doc, 0), "\n")), writeFlow(doc), writeJSON(doc)} {
			before, err := Parse("rules", []byte(text))
			if err != nil {
				return
			}
			if same := mustEdit(t, text, putRule(fmt.Sprintf("r%d", i), writeJSON(list[i]))); string(same) != text {
				t.Fatalf("%s\nbecomes\n%s", text, same)
			}
			for _, with := range []string{writeJSON(rule), strings.TrimPrefix(writeBlock(rule, 0), "\n"), writeFlow(rule) + " # flow"} {
				after := string(mustEdit(t, text, putRule(fmt.Sprintf("R%d", i), with)))
				e, err := edit([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				item := e.ruleNode(i)
				head, tail := text[:item.from], text[min(len(text), e.src.lineEnd(item.to)):]
				if item.flow {
					tail = text[item.to:]
				}
				if !strings.HasPrefix(after, head) || !strings.HasSuffix(after, tail) {
					t.Fatalf("%s\nbecomes\n%s", text, after)
				}
				f, err := Parse("rules", []byte(after))
				if err != nil {
					t.Fatal(err)
				}
				want := slices.Clone(before.Rules.Rules)
				want[i] = alone.Rules.Rules[0]
				if !reflect.DeepEqual(f.Rules.Rules, want) {
					t.Fatalf("%s\nbecomes\n%s", text, after)
				}
			}
		}
	})
}

func mustEdit(t *rapid.T, text string, edit func([]byte) ([]byte, error)) []byte {
	out, err := edit([]byte(text))
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return out
}

// drawComments adds comments at the ends of lines and between lines.
func drawComments(t *rapid.T, text string) string {
	var b strings.Builder
	n := 0
	for line := range strings.Lines(text) {
		content, end := strings.TrimSuffix(line, "\n"), line[len(strings.TrimSuffix(line, "\n")):]
		if rapid.IntRange(0, 4).Draw(t, "before") == 0 {
			fmt.Fprintf(&b, "%s# c%d.\n", strings.Repeat(" ", rapid.IntRange(0, 6).Draw(t, "indent")), n)
			n++
		}
		b.WriteString(content)
		if rapid.IntRange(0, 4).Draw(t, "behind") == 0 {
			fmt.Fprintf(&b, "  # c%d.", n)
			n++
		}
		b.WriteString(end)
	}
	return b.String()
}

// drawEdit draws an edit, its inverse, and its effect on the rules.
func drawEdit(t *rapid.T, f *File) (do, undo func([]byte) ([]byte, error), mean func(*weir.Rules)) {
	rules := f.Rules.Rules
	kind := rapid.IntRange(0, 4).Draw(t, "edit")
	if len(rules) == 0 && kind < 2 {
		kind = 2
	}
	switch kind {
	case 0:
		i := rapid.IntRange(0, len(rules)-1).Draw(t, "rule")
		key := rapid.SampledFrom([]string{"sk_new", "a b", "é: 'x'", "123", "true", `back\slash"`}).Draw(t, "key")
		n, l := Numbers{Limit: "70/minute"}, weir.Limit{Count: 70, Window: 60e9}
		bursts, earlier := true, "5/minute"
		switch r := &rules[i]; {
		case r.Algorithm == weir.Concurrency:
			n, l, bursts, earlier = Numbers{Limit: "70"}, weir.Limit{Algorithm: weir.Concurrency, Count: 70}, false, "5"
		case r.Calendar.Zone != "":
			n, l, bursts, earlier = Numbers{Limit: "70/month"}, weir.Limit{Count: 70, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}}, false, "5/month"
		case r.Amount != "":
			n, l = Numbers{Limit: "70.25/minute"}, weir.Limit{Count: 70, Fraction: 250_000, Window: 60e9}
		}
		if bursts && rapid.Bool().Draw(t, "burst") {
			n.Capacity, l.Burst = 9, 9
		}
		if rapid.Bool().Draw(t, "expires") {
			n.Expires = noon.AddDate(1000, 0, 0)
		}
		do = setOverride(rules[i].ID, key, n)
		if once := do; rapid.Bool().Draw(t, "again") { // replaces an override that expires
			do = func(text []byte) ([]byte, error) {
				text, err := setOverride(rules[i].ID, key, Numbers{Limit: earlier, Expires: noon.AddDate(1000, 0, 0)})(text)
				if err != nil {
					return nil, err
				}
				return once(text)
			}
		}
		return do, deleteOverride(rules[i].ID, key), func(doc *weir.Rules) {
			if doc.Rules[i].Override == nil {
				doc.Rules[i].Override = map[string][]weir.Limit{}
			}
			doc.Rules[i].Override[key] = []weir.Limit{l}
		}
	case 1:
		rule := `{"limit": "7/m", "by": ["api_key"], "override": {"*x": {"limit": 5, "window": 60}}}`
		rule = rapid.SampledFrom([]string{strings.ReplaceAll(rule, "*", ""), "limit: 7/m # seven\nby: [api_key]\n\noverride:\n  x: {limit: 5, window: 60}\n"}).Draw(t, "text")
		return putRule("new", rule), deleteRule("new"), func(doc *weir.Rules) {
			doc.Rules = append(doc.Rules, weir.Rule{ID: "new", By: []string{"api_key"}, Limits: []weir.Limit{{Count: 7, Window: 60e9}},
				Override: map[string][]weir.Limit{"x": {{Count: 5, Window: 60e9}}}})
		}
	case 2:
		// Multiplies the numbers by 1,000, and back.
		for _, tier := range f.Rules.Tiers {
			l := tier.Limits[0]
			if len(tier.Limits) > 1 || l.Refill > 0 || slices.ContainsFunc(rules, func(r weir.Rule) bool { return r.Tier == tier.Name && len(r.Limits) > 0 }) {
				continue
			}
			more := l.Amount() * 1000
			return setTier(tier.Name, Numbers{Limit: more.String()}), setTier(tier.Name, Numbers{Limit: l.Amount().String()}), func(doc *weir.Rules) {
				i := slices.IndexFunc(doc.Tiers, func(t weir.Tier) bool { return t.Name == tier.Name })
				l := &doc.Tiers[i].Limits[0]
				l.Count, l.Fraction = int64(more/1_000_000), more%1_000_000
			}
		}
	case 3:
		if len(f.Rules.Allow) > 0 {
			more := []string{"x", "sk_*_y", "10.0.0.0/8"}[:rapid.IntRange(1, 3).Draw(t, "more")]
			entries := append(slices.Clone(f.Rules.Allow), more...)
			return setList(Allowlist, entries...), setList(Allowlist, f.Rules.Allow...), func(doc *weir.Rules) { doc.Allow = entries }
		}
	}
	same := setList(Denylist)
	return same, same, func(*weir.Rules) {}
}

// FuzzEdit checks that any edit of any text results either in a document that contains the edit, or in an error, and
// that an added entry can be removed again.
func FuzzEdit(f *testing.F) {
	for i, text := range []string{document, "rules: []", `{"tiers":{"pro":"5/m"},"rules":[{"id":"orders","limit":"7/m","tier":"pro"}],"blacklist":["a"]}`,
		"tiers: {pro: {capacity: 5, refill_rate: 1.5}}\r\nrules:\r\n- id: orders\r\n  tier: pro\r\n  limits: [5/m, {limit: 6/h}]\r\n"} {
		for op := range 6 {
			f.Add([]byte(text), uint8(op), []string{"orders", "search", "orders", "pro"}[i], "sk_x", "6/m", int64(i))
		}
	}
	amounts, err := os.ReadFile("testdata/amounts.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, id := range []string{"spend", "tokens", "budget", "uploads", "weekly", "pro"} {
		for _, limit := range []string{"12.5", "12.5/month", "7", "7/week"} {
			f.Add(amounts, uint8(0), id, "", limit, int64(0))
			f.Add(amounts, uint8(3), id, "sk_x", limit, int64(0))
		}
	}
	f.Add([]byte(document), uint8(1), "search", "", "limit: 5/m # five\nmatch:\n  endpoint: /x", int64(0))
	f.Add([]byte(document), uint8(1), "address", "", `{"limits": [1, {"limit": "5/m"}], "by": ["ip"]}`, int64(0))
	f.Fuzz(func(t *testing.T, text []byte, op uint8, name, key, body string, n int64) {
		var out []byte
		var err error
		undo := func([]byte) ([]byte, error) { return nil, nil }
		there := func(doc *weir.Rules) bool { return true }
		numbers := Numbers{Limit: body, Capacity: n}
		rule := func(doc *weir.Rules) int {
			return slices.IndexFunc(doc.Rules, func(r weir.Rule) bool { return strings.EqualFold(r.ID, name) })
		}
		soon(t, func() {
			switch op % 6 {
			case 0:
				out, err = SetTier(text, name, numbers)
			case 1:
				out, err = PutRule(text, name, []byte(body))
				there = func(doc *weir.Rules) bool { return rule(doc) >= 0 }
			case 2:
				out, err = DeleteRule(text, name)
				there = func(doc *weir.Rules) bool { return rule(doc) < 0 }
			case 3:
				out, err = SetOverride(text, name, key, numbers)
				undo = deleteOverride(name, key)
				there = func(doc *weir.Rules) bool { return doc.Rules[rule(doc)].Override[key] != nil }
			case 4:
				out, err = DeleteOverride(text, name, key)
				there = func(doc *weir.Rules) bool { return doc.Rules[rule(doc)].Override[key] == nil }
			case 5:
				out, err = SetList(text, Denylist, []string{name, key})
				there = func(doc *weir.Rules) bool { return slices.Contains(doc.Deny, name) && slices.Contains(doc.Deny, key) }
			}
		})
		if err != nil {
			return
		}
		file, err := Parse("rules", out)
		if err != nil {
			t.Fatalf("%q becomes %q: %v", text, out, err)
		}
		if !there(&file.Rules) {
			t.Fatalf("%q becomes %q", text, out)
		}
		if _, err := undo(out); err != nil {
			t.Fatalf("%q can't be undone: %v", out, err)
		}
	})
}
