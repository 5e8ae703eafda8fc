package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// player runs a scene against a store. It is also the store's TB, so that every failure names the line of the scene.
type player struct {
	*harness
	test     *testing.T
	line     string
	reversed bool
	limits   map[string]*counter.Policy
	slots    map[string]int64 // the Slots of charges by their "as" label, and of the last charge by subject and limit
	times    map[string]time.Time
	last     counter.Result
	holds    int // how many holds "#new" has named
}

func (p *player) Helper() { p.test.Helper() }

func (p *player) Fatalf(format string, args ...any) {
	p.test.Helper()
	p.test.Fatalf("%s: %s", p.line, fmt.Sprintf(format, args...))
}

func (p *player) play(text string) {
	text, want, _ := strings.Cut(text, " : ")
	verb, text, _ := strings.Cut(text, " ")
	times := 1
	if n, repeated := strings.CutSuffix(verb, "x"); repeated {
		times = int(p.amount(nil, n))
		verb, text, _ = strings.Cut(text, " ")
	}
	for range times {
		switch verb {
		case "limit":
			p.limit(strings.Fields(text))
		case "take", "peek":
			p.take(verb == "peek", p.items(text), strings.Split(want, ","))
		case "left":
			for _, it := range p.items(text) {
				r := p.charge(counter.Charge{Counter: it.Counter, N: 1, Peek: true})[0]
				p.checkLeft(it.Policy, r, it.amount)
				p.last = r
			}
		case "return":
			p.giveBackItems(p.items(text), want)
		case "reset":
			var all []counter.Counter
			for _, it := range p.items(text) {
				all = append(all, it.Counter)
			}
			if err := p.Reset(context.Background(), all); err != nil {
				p.Fatalf("%v", err)
			}
		case "step":
			p.step(p.duration(text))
		case "time":
			name, at, _ := strings.Cut(text, " ")
			p.times[name] = p.time(at)
		case "at":
			at, more, _ := strings.Cut(text, " ")
			p.step(p.time(at).Sub(p.clock()) + p.duration(more))
		default:
			p.Fatalf("there is no such verb")
		}
	}
}

// limit defines a limit such as "low=p fixed_window 10/24h decimal shadow".
func (p *player) limit(f []string) {
	alias, name, aliased := strings.Cut(f[0], "=")
	if !aliased {
		name = alias
	}
	l, err := counter.ParseLimit(f[2])
	if err != nil {
		p.Fatalf("%v", err)
	}
	all := append(slices.Clone(Algorithms), counter.Concurrency)
	i := slices.Index(names(all), f[1])
	if i < 0 {
		p.Fatalf("there is no such algorithm")
	}
	l.Algorithm = all[i]
	w := p.words(f[3:], "requests decimal shadow countrefused givesback calendar day weekday zone")
	l.Decimal = w.has("decimal")
	if unit, is := w["calendar"]; is {
		l.Calendar.Unit = map[string]counter.CalendarUnit{"day": counter.Day, "week": counter.Week, "month": counter.Month}[unit]
		l.Calendar.Day, _ = strconv.Atoi(w["day"])
		weekday, _ := strconv.Atoi(w["weekday"])
		l.Calendar.Weekday, l.Calendar.Zone = time.Weekday(weekday), w["zone"]
	}
	p.limits[alias] = Policy(p, name, l).With(func(d *counter.Definition) {
		d.Shadow, d.CountRefused, d.GivesBack = w.has("shadow"), w.has("countrefused"), w.has("givesback")
	})
}

// item is what a line says about one counter.
type item struct {
	counter.Counter
	amount string
	words  words
	key    string // the subject and the limit
}

// items parses a subject and its items, such as "s 3 p #1 used=2, 1 q".
func (p *player) items(text string) (all []item) {
	subject, text, _ := strings.Cut(text, " ")
	for part := range strings.SplitSeq(text, ",") {
		f := strings.Fields(part)
		amount := "0"
		if p.limits[f[0]] == nil {
			amount, f = f[0], f[1:]
		}
		policy := p.limits[f[0]]
		if policy == nil {
			p.Fatalf("there is no limit %s", f[0])
		}
		w := p.words(f[1:], "# @ for stays as returnable used recorded once from")
		of := cmp.Or(w["@"], subject)
		all = append(all, item{Counter: named(policy, of), amount: amount, words: w, key: of + " " + f[0]})
	}
	return all
}

type words map[string]string

func (w words) has(name string) bool {
	_, is := w[name]
	return is
}

// words parses words such as "#1 for=1m recorded". Words that aren't known fail the test.
func (p *player) words(fields []string, known string) words {
	all := words{}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		if f[0] == '#' || f[0] == '@' {
			name, value = f[:1], f[1:]
		}
		if !slices.Contains(strings.Fields(known), name) {
			p.Fatalf("there is no word %s here", name)
		}
		all[name] = value
	}
	return all
}

// amount parses a number in the units of a policy, or a whole number if the policy is nil.
func (p *player) amount(of *counter.Policy, text string) int64 {
	a, err := counter.ParseAmount(text)
	if err != nil {
		p.Fatalf("%v", err)
	}
	if of != nil && of.Limit.Decimal {
		return int64(a)
	}
	return a.Tokens()
}

// duration parses a sum of durations, such as "27s-1us".
func (p *player) duration(text string) (sum time.Duration) {
	text = strings.NewReplacer("retry", p.last.RetryAfter.String(), "-", "+-").Replace(text)
	for part := range strings.SplitSeq(text, "+") {
		if part == "" {
			continue
		}
		d, err := time.ParseDuration(part)
		if err != nil {
			p.Fatalf("%v", err)
		}
		sum += d
	}
	return sum
}

func (p *player) time(text string) time.Time {
	if at, named := p.times[text]; named {
		return at
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		p.Fatalf("%v", err)
	}
	return at
}

// hold returns the hold that an item names, or nil.
func (p *player) hold(it item) *counter.Hold {
	name := it.words["#"]
	switch name {
	case "":
		return nil
	case "new":
		p.holds++
		name = strconv.Itoa(1000 + p.holds)
	}
	h := &counter.Hold{ID: id(int(p.amount(nil, name))), For: it.Policy.Limit.Window, GiveBack: it.Policy.GivesBack}
	if it.words.has("for") {
		h.For = p.duration(it.words["for"])
	}
	h.GiveBack = h.GiveBack && !it.words.has("stays")
	return h
}

func (p *player) take(peek bool, items []item, want []string) {
	if p.reversed {
		slices.Reverse(items)
		slices.Reverse(want)
	}
	if len(want) != len(items) && want[0] != "" {
		p.Fatalf("%d charges and %d answers", len(items), len(want))
	}
	charges := make([]counter.Charge, len(items))
	for i, it := range items {
		charges[i] = counter.Charge{Counter: it.Counter, N: p.amount(it.Policy, it.amount), Peek: peek, Hold: p.hold(it)}
		charges[i].Returnable = it.words.has("returnable") || charges[i].Hold != nil
	}
	results := p.charge(charges...)
	for i, r := range results {
		p.check(items[i].Policy, r, want[min(i, len(want)-1)])
		if r.Allowed && !peek {
			p.slots[items[i].key], p.slots[items[i].words["as"]] = r.Slot, r.Slot
		}
	}
	p.last = results[len(results)-1]
}

// check compares a result with an expectation such as "no 0 retry=27s".
func (p *player) check(of *counter.Policy, r counter.Result, want string) {
	want = cmp.Or(strings.TrimSpace(want), "ok")
	f := strings.Fields(want)
	if f[0] != "ok" && f[0] != "no" || r.Allowed != (f[0] == "ok") {
		p.Fatalf("want %s, got %+v", want, r)
	}
	f = f[1:]
	if len(f) > 0 && (f[0][0] <= '9' || f[0][0] == '~') {
		p.checkLeft(of, r, f[0])
		f = f[1:]
	}
	w := p.words(f, "retry reset again new from to")
	after := func(name string) time.Duration { return p.time(w[name]).Sub(p.clock()) }
	right := r.Allowed == (r.RetryAfter == 0)
	switch retry := w["retry"]; {
	case retry == "never":
		right = r.RetryAfter == counter.Never
	case retry != "":
		right = r.RetryAfter == p.duration(retry)
	case !r.Allowed:
		right = r.RetryAfter > 0
	}
	switch {
	case !right,
		w.has("reset") && r.ResetAfter != p.duration(w["reset"]),
		w.has("again") && !r.Again,
		w.has("new") && r.Again,
		w.has("from") && r.Slot != p.time(w["from"]).UnixMicro(),
		w.has("to") && r.ResetAfter != after("to"),
		w.has("to") && !r.Allowed && r.RetryAfter != after("to"):
		p.Fatalf("want %s, got %+v", want, r)
	}
}

// checkLeft compares Remaining with "5", with "~5", or with "-5", which means 5 less than in the last result.
func (p *player) checkLeft(of *counter.Policy, r counter.Result, text string) {
	const tolerance = 200_000 // millionths: covers the refill of a few days
	number, about := strings.CutPrefix(text, "~")
	number, less := strings.CutPrefix(number, "-")
	want := p.amount(of, number)
	if less {
		want = p.last.Remaining - want
	}
	if got := r.Remaining; got != want && !(about && got > want && got <= want+tolerance) {
		p.Fatalf("%d are left, want %d: %+v", got, want, r)
	}
}

func (p *player) giveBackItems(items []item, want string) {
	var all []counter.Return
	var once counter.Once
	for _, it := range items {
		slot, known := p.slots[cmp.Or(it.words["from"], it.key)]
		if !known {
			slot = p.clock().UnixMicro()
		}
		r := counter.Return{Counter: it.Counter, N: p.amount(it.Policy, it.amount), Slot: slot, Hold: p.hold(it)}
		r.Recorded = it.words.has("recorded")
		if it.words.has("used") {
			r.Used = p.amount(it.Policy, it.words["used"])
		}
		if it.words.has("once") {
			once = id(int(p.amount(nil, it.words["once"])))
		}
		all = append(all, r)
	}
	wanted := map[string]error{"": nil, "used": counter.ErrUsed}
	if err := p.GiveBack(context.Background(), once, time.Hour, all); err != wanted[want] {
		p.Fatalf("got error %v", err)
	}
}
