package rulefile

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// object is a map that keeps the order in which a test wrote it.
type object []member

type member struct {
	name  string
	value any // string, bool, int, float64, object or []any
}

// TestLayoutsAgree writes random documents as indented YAML, as YAML with braces, and as JSON. All three must mean the
// same, or have the same problems.
func TestLayoutsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := drawDocument(t)
		block := writeBlock(doc, 0)
		flow := writeFlow(doc)
		js := writeJSON(doc)
		want, wantErr := Parse("rules.yaml", []byte(block))
		written, err := JSON([]byte(block))
		if err != nil || !json.Valid(written) {
			t.Fatalf("%s\nis written as\n%s\n%v", block, written, err)
		}
		for name, text := range map[string]string{"flow": flow, "json": js, "written JSON": string(written)} {
			got, err := Parse("rules.yaml", []byte(text))
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%s differs.\n%s\n%v\n%s\n%v", name, block, wantErr, text, err)
			}
			if err != nil {
				if a, b := paths(wantErr), paths(err); a != b {
					t.Fatalf("%s has other problems.\n%s\n%v\n%s\n%v", name, block, a, text, b)
				}
			} else if !reflect.DeepEqual(got.Rules, want.Rules) {
				t.Fatalf("%s means something else.\n%s\n%+v\n%s\n%+v", name, block, want.Rules, text, got.Rules)
			}
		}
	})
}

// paths returns the problems without their positions.
func paths(err error) string {
	var b strings.Builder
	for _, p := range err.(Problems) {
		fmt.Fprintf(&b, "%s: %s\n", p.Path, p.Text)
	}
	return b.String()
}

// mostly draws one of the good values, and occasionally the bad one.
func mostly[T any](t *rapid.T, bad T, good ...T) T {
	if rapid.IntRange(0, 39).Draw(t, "bad") == 0 {
		return bad
	}
	return rapid.SampledFrom(good).Draw(t, "good")
}

func drawDocument(t *rapid.T) object {
	tier := func() string { return mostly(t, "gone", "free", "pro") }
	var rules []any
	for i := range rapid.IntRange(0, 3).Draw(t, "rules") {
		rules = append(rules, drawRule(t, fmt.Sprintf("r%d", i), tier))
	}
	return draw(t, object{
		{"tiers", object{{"free", drawLimit(t)}, {"pro", drawTier(t)}}},
		{"default_tier", tier()},
		{"keys", object{{"sk_free_*", tier()}, {"*", tier()}}},
		{"rules", rules},
		{rapid.SampledFrom([]string{"allow", "whitelist"}).Draw(t, "list"), []any{"sk_internal_*", "2001:db8::/32"}},
		{"prices", object{{mostly(t, "gpt-4.1 *", "gpt-*", "o3"), drawParts(t)}, {"*", drawParts(t)}}},
		{"weights", object{{mostly(t, "T", "tokens", "points"), drawParts(t)}}},
	})
}

func drawParts(t *rapid.T) object {
	return object{
		{mostly(t, "In put", "input", "cached"), mostly[any](t, -1, 0, 1, 4, 0.5, "2.50/1M", "10/1M", "0.15/1K")},
		{"output", mostly[any](t, "1/1m", 1, 0.000001, "10/1B")},
	}
}

// drawTier draws the limit of a tier: one on requests, or one that only other rules can use, such as a fraction or a
// calendar window.
func drawTier(t *rapid.T) any {
	if rapid.Bool().Draw(t, "of requests") {
		return drawLimit(t)
	}
	return mostly(t, "x", "12.5/day", "50/month", "0.000001/month")
}

func drawRule(t *rapid.T, id string, tier func() string) object {
	r := drawPlainRule(t, id, tier)
	switch rapid.IntRange(0, 7).Draw(t, "counts") {
	case 0, 1: // an amount
		return with(r, object{
			{"amount", mostly(t, "Tokens", "tokens", "usd")},
			{"default", mostly(t, 0, 0.25, 1, 1.5)},
			{"unsettled", mostly(t, "lose", "keep", "give_back")},
			{"limit", mostly(t, "1.1234567/h", "12.5/minute", "50/hour", "0.000001 per day")},
		}, "split", "cost", "default")
	case 2: // requests in flight
		return with(r, object{
			{"algorithm", mostly(t, "concurency", "concurrency")},
			{"slot_ttl", mostly[any](t, "2h", "30s", 5, "1m")},
			{"limit", mostly[any](t, "5/m", 20, 3)},
			{"tiers", object{{tier(), 50}}},
			{"override", object{{"one", 7}, {"two", object{{"limit", mostly(t, 0, 8, 9)}}}}},
			{"candidate", object{{"limit", 6}}},
		}, "burst", "split", "count", "slot_ttl")
	case 3: // a calendar window
		limit := mostly[any](t, "5/hour", "50/month", "7 per week", "100/day", object{{"limits", []any{"5/second", "100/month"}}})
		one, several := limit.(object)
		if !several {
			one = object{{"limit", limit}}
		}
		month := several || limit == "50/month"
		r = with(r, append(object{
			{"calendar", draw(t, object{{"limit", 0}, {"tz", mostly(t, "Berlin", "Europe/Berlin", "UTC")}, {"day", mostly(t, 32, 1, 15)}, {"weekday", mostly(t, "mon", "monday", "sunday")}})},
		}, one...), "algorithm", "limit", "burst", "tiers", "override", "candidate", "calendar")
		for i := range r {
			if c, ok := r[i].value.(object); ok && r[i].name == "calendar" {
				keep := object{{"tz", "Asia/Tokyo"}}
				for _, m := range c {
					if m.name == "day" && month || m.name == "weekday" && limit == "7 per week" {
						keep = append(keep, m)
					}
				}
				r[i].value = keep
			}
		}
		return append(r, member{"override", object{{"vip", limit}}})
	}
	return r
}

// with returns a copy of an object with some fields replaced and others removed.
func with(o, fields object, without ...string) object {
	gone := map[string]bool{}
	for _, name := range without {
		gone[name] = true
	}
	given := map[string]any{}
	for _, m := range fields {
		given[m.name] = m.value
	}
	var out object
	for _, m := range o {
		if _, ok := given[m.name]; !ok && !gone[m.name] {
			out = append(out, m)
		}
	}
	return append(out, fields...)
}

func drawPlainRule(t *rapid.T, id string, tier func() string) object {
	return draw(t, object{
		{"id", id},
		{"version", rapid.IntRange(0, 99).Draw(t, "version")},
		{"tier", tier()},
		{"match", draw(t, object{
			{"endpoint", mostly(t, "login", "GET /v1/{id}", "/a b", "/x/", "POST /login")},
			{"endpoint_regex", mostly(t, "(", `^/v\d+`, ".*", "[a-z]{2,3}")},
			{"api_key_pattern", mostly(t, "''", "sk_*", "*", "*_x")},
			{"api_key", mostly(t, "none", "present")}})},
		{"by", []any{"api_key", mostly(t, "usr", "user", "ip"), mostly(t, "header:", "header:X-A", "claim:b", "org")}},
		{"missing", mostly(t, "# no", "ip", "skip", "refuse")},
		{"ipv4_prefix", mostly(t, 33, 24, 32, 1)},
		{"ipv6_prefix", mostly(t, 129, 48, 64, 128)},
		{"algorithm", mostly(t, "- x", "token_bucket", "leaky_bucket")},
		{"limit", mostly(t, "0/h", "5/minute", "10 per second", "7/15m")},
		{"burst", mostly(t, -1, 5, 20)},
		{"tiers", object{{tier(), drawLimit(t)}}},
		{"override", object{{"key: one", drawLimit(t)}, {"'two'", drawLimit(t)}, {"three", drawLimit(t)}}},
		{"cost", mostly(t, 0, 1, 3)},
		{"count", object{{"status", []any{401, mostly(t, "6xx", "4xx", "5xx")}}}},
		{"strict", rapid.Bool().Draw(t, "strict")},
		{"split", mostly(t, 65, 2, 3, 5)},
		{"candidate", drawLimit(t)},
	})
}

func drawLimit(t *rapid.T) any {
	switch rapid.IntRange(0, 3).Draw(t, "form") {
	case 0:
		return mostly(t, "x", "5/minute", "9/s")
	case 1:
		return object{{"limit", "5/minute"}, {"burst", mostly(t, 0, 7, 9)}}
	case 2:
		return object{{"capacity", 10}, {"refill_rate", mostly(t, -1, 0.5, 2, 1.67)}}
	}
	return object{{"limits", []any{"5/second", object{{"limit", "100/hour"}}}}}
}

// draw keeps a random subset of an object's fields.
func draw(t *rapid.T, o object) object {
	var kept object
	for _, m := range o {
		if m.name == "id" || m.name == "rules" || m.name == "limit" || m.name == "tiers" || rapid.IntRange(0, 2).Draw(t, m.name) == 0 {
			kept = append(kept, m)
		}
	}
	return kept
}

func writeBlock(v any, indent int) string {
	pad := "\n" + strings.Repeat(" ", indent)
	var b strings.Builder
	switch v := v.(type) {
	case object:
		if len(v) == 0 {
			return " {}"
		}
		for _, m := range v {
			b.WriteString(pad + quote(m.name) + ":" + writeBlock(m.value, indent+2))
		}
	case []any:
		if len(v) == 0 {
			return " []"
		}
		for _, item := range v {
			b.WriteString(pad + "-" + writeBlock(item, indent+2))
		}
	default:
		b.WriteString(" " + writeFlow(v))
	}
	return b.String()
}

func writeFlow(v any) string {
	var parts []string
	switch v := v.(type) {
	case object:
		for _, m := range v {
			parts = append(parts, quote(m.name)+": "+writeFlow(m.value))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		for _, item := range v {
			parts = append(parts, writeFlow(item))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case string:
		return quote(v)
	}
	return fmt.Sprint(v)
}

// quote quotes a text if necessary.
func quote(s string) string {
	if strings.ContainsAny(s[:1], "*#-'\"") || strings.ContainsAny(s, "{}[],") || strings.Contains(s+" ", ": ") {
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	return s
}

func writeJSON(v any) string {
	var parts []string
	switch v := v.(type) {
	case object:
		for _, m := range v {
			parts = append(parts, writeJSON(m.name)+":"+writeJSON(m.value))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case []any:
		for _, item := range v {
			parts = append(parts, writeJSON(item))
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	js, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(js)
}
