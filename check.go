package weir

import (
	"fmt"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
)

// problems collects the faults of a rule document.
type problems counter.Problems

// when adds a fault if wrong is true.
func (ps *problems) when(wrong bool, path, format string, args ...any) {
	if wrong {
		*ps = append(*ps, counter.Problem{Path: path, Text: fmt.Sprintf(format, args...)})
	}
}

// below returns a version of when for the fields of the object at path.
func (ps *problems) below(path string) func(wrong bool, field, format string, args ...any) {
	return func(wrong bool, field, format string, args ...any) { ps.when(wrong, path+"."+field, format, args...) }
}

// addErr adds an error, if it isn't nil. The error of a limit is a [counter.Problem], whose path is relative to the limit.
func (ps *problems) addErr(path string, err error) {
	if p, ok := err.(counter.Problem); !ok {
		ps.when(err != nil, path, "%v", err)
	} else if p.Path == "" {
		ps.when(true, path, "%s", p.Text)
	} else {
		ps.when(true, path+"."+p.Path, "%s", p.Text)
	}
}

const maxSplit = 64

// validate reports values of a rule's fields that are out of range or contradict each other.
func (r *Rule) validate(path string, bad *problems) {
	no := bad.below(path)
	beside := func(wrong bool, field, other string) {
		no(wrong, field, "can't stand beside %s: leave one of them out", other)
	}
	slots, isComplex := r.Algorithm == Concurrency, r.isComplex()

	no(r.Cost < 0 || r.Cost > counter.MaxTokens, "cost", "must be from 1 to %d, got %d", int64(counter.MaxTokens), r.Cost)
	const bits = "must be from 1 to %d, the bits of an address that count, got %d"
	no(r.IPv4Prefix < 0 || r.IPv4Prefix > 32, "ipv4_prefix", bits, 32, r.IPv4Prefix)
	no(r.IPv6Prefix < 0 || r.IPv6Prefix > 128, "ipv6_prefix", bits, 128, r.IPv6Prefix)
	for i, s := range r.Statuses {
		no((s < 1 || s > 5) && (s < 100 || s > 599), fmt.Sprintf("count.status[%d]", i),
			"must be an HTTP status such as 401, or a class such as 4xx, got %d", s)
	}
	r.checkPastLimit(no)

	no(r.Amount != "" && !isName(r.Amount), "amount", "must be a name of a-z, 0-9 and _ such as tokens, got %q", r.Amount)
	no(r.Amount == "" && r.Default != 0, "default", "is for requests that lack the rule's amount: give it an amount, such as tokens")
	no(r.Default < 0 || r.Default > counter.MaxAmount, "default", "must be from 0 to %d", int64(counter.MaxTokens))
	no(r.Amount == "" && r.GiveBackUnsettled, "unsettled",
		"is for amounts that were reserved: give the rule an amount, such as tokens")

	no(!slots && r.SlotTTL != 0, "slot_ttl", "is for algorithm: concurrency, which %s isn't", r.Algorithm)
	no(slots && r.SlotTTL != 0 && (r.SlotTTL < time.Second || r.SlotTTL > time.Hour), "slot_ttl",
		"must be from 1s to 1h, got %s", r.SlotTTL)
	no(slots && len(r.Statuses) > 0, "count",
		"can't stand beside concurrency: a slot is free again when the request ends, whatever its status")
	beside(slots && r.Book, "past_limit", "concurrency")

	if r.Split != 0 {
		no(r.Split < 2 || r.Split > maxSplit, "split", "must be from 2 to %d, got %d", maxSplit, r.Split)
		no(!r.Strict, "split",
			"is for strict rules: busy counters of others are decided on the nodes, and needn't be split; leave it out")
		no(isComplex, "split", "%s can't be split: "+simple, r.Algorithm)
		beside(slots, "split", "concurrency")
		beside(r.Amount != "", "split", "amount")
		no(r.Book || r.CountRefused, "split",
			"can't stand beside past_limit, by which a part would go below zero while others have room: leave one of them out")
	}
	const local = "is for rules with scope: global: each region counts this one for itself; leave it out, or add the scope"
	no(!r.Global && r.Home != "", "home", local)
	no(!r.Global && r.Floor != 0, "floor", local)
	no(!r.Global && r.OnPartition != FailAllow, "on_partition", local)
	no(r.Global && (isComplex || slots), "scope", "%s can't be global: "+simple+", or leave the scope out", r.Algorithm)
	no(r.Global && (r.Book || r.CountRefused), "scope", "a global rule can't have past_limit: leave one of them out")
	no(r.Global && (r.Floor < 0 || r.Floor > 50), "floor", "must be from 0%% to 50%%, got %d%%", r.Floor)
	no(r.Global && r.Split > 0, "scope", "a global rule can't be split: leave one of them out")
}

const simple = "use token_bucket, leaky_bucket, fixed_window or sliding_window_counter"

// isComplex reports whether the rule's counters need more state than one or two numbers.
func (r *Rule) isComplex() bool { return r.Algorithm == SlidingLog || r.Algorithm == LeakyQueue }

func (r *Rule) checkPastLimit(no func(wrong bool, field, format string, args ...any)) {
	no(r.Book && r.isComplex(), "past_limit", "%s can't book past its limit: "+simple, r.Algorithm)
	no(r.CountRefused && r.Algorithm != FixedWindow, "past_limit", "%s doesn't count what it refuses: use fixed_window", r.Algorithm)
}

const nameLetters = "abcdefghijklmnopqrstuvwxyz0123456789_"

func isName(s string) bool { return s != "" && len(s) <= 64 && strings.Trim(s, nameLetters) == "" }

// checkAbuse reports settings that are out of range. Nil and the zero Abuse mean that there are no cooldowns.
func checkAbuse(a *counter.Abuse, path string, bad *problems) {
	if a == nil || *a == (counter.Abuse{}) {
		return
	}
	const year = 366 * 24 * time.Hour
	no := bad.below(path)
	const most = int64(counter.MaxTokens)
	no(a.Refusals < 1 || a.Refusals > most, "refusals", "must be from 1 to %d, got %d", most, a.Refusals)
	no(a.Window < time.Second || a.Window > 24*time.Hour, "refusals", "must be within a second to a day, got %s", a.Window)
	no(a.Cooldown < time.Second || a.Cooldown > year, "cooldown", "must be from 1s to 366d, got %s", a.Cooldown)
	no(!(a.Grow >= 1 && a.Grow <= 100), "grow", "must be from 1, which is no growth, to 100, got %v", a.Grow)
	no(a.Most < a.Cooldown || a.Most > year, "most", "must be from the first cooldown, %s, to 366d, got %s", a.Cooldown, a.Most)
	no(a.Forgive < 0 || a.Forgive > year, "forgive", "must be from 0 to 366d, got %s", a.Forgive)
	no(a.DropAfter < 0, "drop_after", "must be at least 1 refusal, or left out, got %d", a.DropAfter)
}
