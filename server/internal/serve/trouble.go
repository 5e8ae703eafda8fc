package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/server/internal/admin"
)

// troubles has the node's current problems, described in plain words for operators.
type troubles struct {
	list  []admin.Trouble
	since map[string]time.Time // when each kind of problem was first seen
	nodes map[string]lastHeard // the other nodes, by name
	told  time.Time            // when Redis last returned the list of nodes
	stale bool                 // the last list was stale
	// settles is the time before which missing nodes aren't reported. It is set when the list of nodes can be read
	// again.
	settles time.Time
}

type lastHeard struct {
	seen   time.Time
	silent bool // the node's heartbeat was overdue when Redis last returned the list
}

const (
	// silent is how long a node may send no heartbeat before it is reported. It is a little more than two heartbeats.
	silent = 5 * time.Second
	// missed is how long a silent node is reported. Nodes that shut down say so, and aren't reported.
	missed = 10 * time.Minute
	// drifted is the largest difference between the node's clock and Redis' clock that isn't reported. JWTs and
	// certificates depend on the node's clock.
	drifted = 500 * time.Millisecond
)

// lookForTroubleLocked updates the list of problems. Each entry says what is wrong, since when, and what clients
// notice.
func (n *node) lookForTroubleLocked(now time.Time) {
	t := &n.live.trouble
	t.list = []admin.Trouble{}
	before := t.since
	t.since = map[string]time.Time{}
	tell := func(what, text string, since *time.Time) {
		if text == "" {
			return
		}
		first, known := before[what]
		switch {
		case since != nil:
			first = *since
		case !known:
			first = now
		}
		t.since[what] = first
		t.list = append(t.list, admin.Trouble{What: what, Since: first.UTC().Truncate(time.Millisecond), Text: text})
	}
	s := n.storeStatus()
	if s.Status != "up" {
		tell("store_lost", n.storeLost(&s), s.Since)
	} else {
		tell("degraded", n.degradedLocked(now, &s), nil)
	}
	tell("store_evicts", s.evicts, nil)
	tell("store_credentials", s.rejected, nil)
	tell("node_stale", n.silentNodesLocked(now, &s), nil)
	version := n.rules.InForce().Name()
	switch waiting, stale, failures := n.rules.Waiting(), n.rules.Stale(), n.rules.Status().Failures; {
	case waiting != "":
		tell("no_rules", waiting, nil)
	case stale != "":
		tell("rules_stale", stale+". A change that was made since isn't in force here, nor is a key blocked that was blocked since", nil)
	case failures >= 3:
		tell("rules_stale", fmt.Sprintf("The rule store hasn't answered %d times in a row. Version %s stays in force here: a change, or a block, that is made now doesn't arrive until the store answers again",
			failures, version), nil)
	}
	if rejected := n.rules.Rejected(); rejected != "" {
		tell("rules_rejected", "Newer rules are invalid, so that version "+version+" stays in force: "+rejected, nil)
	}
	if rejected := n.envoyRejected(); rejected != "" {
		tell("rules_rejected", "Envoy's newer configuration is invalid, so that the one in force stays: "+rejected, nil)
	}
	tell("rules_warning", n.rules.Warning(), nil)
	tell("overloaded", n.overloadedLocked(), nil)
	tell("region_lost", n.scopes(), nil)
	tell("clock_drift", n.drift(), nil)
}

// overloadedLocked returns a text about the requests that were turned away in the last ten seconds. If there were none,
// it returns "".
func (n *node) overloadedLocked() string {
	r, _ := rates(n.live.recently())
	shed := r.ByReason[weir.ReasonOverloaded.String()]
	if shed <= 0 {
		return ""
	}
	return fmt.Sprintf("In the last %d s, %s a second were turned away with 503 OVERLOADED, since %s being decided already and no place became free in time. Add a node, or cores",
		lately, tenths(shed), count(n.config.MaxInFlight, "was", "were"))
}

// tenths formats a rate with one decimal, rounded up.
func tenths(rate float64) string { return strconv.FormatFloat(math.Ceil(10*rate)/10, 'f', -1, 64) }

// drift returns a text about the difference between the node's clock and Redis' clock. If they agree, it returns "".
func (n *node) drift() string {
	if n.redis == nil || n.redis.Heard().Stale {
		return ""
	}
	drift := time.Until(n.redis.Now())
	if drift.Abs() <= drifted {
		return ""
	}
	where := cmp.Or(given(drift > 0, "behind"), "ahead of")
	return fmt.Sprintf("This node's clock is %s %s Redis'. Limits go by Redis' clock, and hold; JWTs and certificates are checked by the node's, and may be refused or accepted wrongly",
		drift.Abs().Round(time.Millisecond), where)
}

// degradedLocked returns a text about decisions that were made without the store although it can be reached. If there
// were none, it returns "".
func (n *node) degradedLocked(now time.Time, s *storeStatus) string {
	r, _ := rates(n.live.recently())
	if n.redis == nil || r.Degraded <= 0 || n.rules.Waiting() != "" || errors.Is(n.live.failure, counter.ErrPartition) {
		return ""
	}
	if slices.ContainsFunc(s.Shards, func(sh admin.Shard) bool { return sh.Since != nil && now.Sub(*sh.Since) < lately*slot }) {
		return "" // the store has just come back, so these decisions are from before
	}
	text := fmt.Sprintf("In the last %d s, %s of %s decisions a second were made without Redis, although it can be reached", lately, tenths(r.Degraded), tenths(r.Decisions))
	switch err := n.live.failure; {
	case err == nil:
	case errors.Is(err, counter.ErrNoRoom):
		text += ": it is short of memory for new counters, so that keys without one can't be counted"
	case errors.Is(err, context.DeadlineExceeded):
		text += ": it didn't answer within " + n.config.StoreTimeout.String() + " (--store-timeout)"
	default:
		text += ": " + strings.TrimRight(err.Error(), ".")
	}
	return text + ". For these, " + n.failureModes().words
}

// storeLost returns a text that says which Redis servers can't be reached, and how checks are decided in the meantime.
func (n *node) storeLost(s *storeStatus) string {
	var names []string
	why, keys := "", int64(0)
	for _, sh := range s.Shards {
		if !sh.Up {
			names = append(names, sh.Name)
			why, keys = cmp.Or(why, sh.Error), keys+sh.Keys
		}
	}
	part := len(names) < len(s.Shards)
	text := cmp.Or(given(part, "A part of Redis"), "Redis") + " can't be reached" + given(len(names) > 0, " ("+few(names)+")")
	text += given(why != "", ": "+strings.TrimRight(why, ".")) // texts from Redis end with a period
	text += given(part && keys > 0, ". About "+count(keys, "key is", "keys are")+" there; the others are decided as ever")
	return text + ". Until it is back, " + n.failureModes().words
}

func count[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

func few(names []string) string {
	const most = 5
	more := len(names) - most
	return strings.Join(names[:min(len(names), most)], ", ") + given(more > 0, fmt.Sprintf(" and %d more", more))
}

// silentNodesLocked returns a text that says which nodes have fallen silent, or that the list of nodes can't be read.
// If there is no problem, it returns "".
func (n *node) silentNodesLocked(now time.Time, s *storeStatus) string {
	if n.redis == nil {
		return ""
	}
	t, heard := &n.live.trouble, n.redis.Heard()
	if heard.Stale {
		t.stale = true
		up := slices.ContainsFunc(s.Shards, func(sh admin.Shard) bool { return sh.Up })
		if heard.At.IsZero() || !up {
			return "" // another problem already says that Redis is lost
		}
		text := "What the other nodes do isn't known: Redis hasn't told for " + time.Since(heard.At).Round(time.Second).String()
		if s.Status == "up" {
			return text + ", although it answers checks"
		}
		return text + ", since the part of it that keeps that is lost"
	}
	// The more nodes there are, the less often each of them reads the list.
	if gap := heard.At.Sub(t.told); !t.told.IsZero() && (t.stale || gap > silent+time.Duration(s.Nodes)*20*time.Millisecond) {
		t.settles = now.Add(silent)
	}
	t.stale = false
	t.told = heard.At
	// If a node isn't back when settles has passed, it may have shut down or died while Redis was lost.
	settled := !now.Before(t.settles)
	if t.nodes == nil {
		t.nodes = map[string]lastHeard{}
	}
	listed := map[string]bool{}
	for _, p := range heard.Peers {
		if p.Name != n.self.Name {
			listed[p.Name] = true
			t.nodes[p.Name] = lastHeard{p.Seen, heard.At.Sub(p.Seen) > silent}
		}
	}
	var lost []string
	for name, h := range t.nodes {
		switch {
		case now.Sub(h.seen) > missed:
			delete(t.nodes, name)
		case !h.silent && !listed[name] && !t.settles.IsZero():
			h.silent = settled
			t.nodes[name] = h
		case !h.silent && !listed[name]:
			delete(t.nodes, name)
		case h.silent:
			lost = append(lost, name+" since "+h.seen.UTC().Format("15:04:05")+" UTC")
		}
	}
	if settled {
		t.settles = time.Time{}
	}
	if len(lost) == 0 {
		return ""
	}
	slices.Sort(lost)
	return "Not heard: " + few(lost) + ". Whoever asks a node that has ended or hangs gets no answer from it; the others decide as ever"
}

type modes struct {
	list   []admin.FailureMode
	totals []admin.FailureTotal
	words  string
}

const mostModes = 1000

// failureModes returns what each rule does while Redis can't be reached. With an in-process store, it returns nothing.
func (n *node) failureModes() modes {
	if n.redis == nil {
		return modes{list: []admin.FailureMode{}, totals: []admin.FailureTotal{}}
	}
	return failureModes(n.rules.InForce().File.Rules.Rules, n.config.Emergency)
}

// without has texts about what rules do without the store: one text for every rule, one for a single rule, and one for
// several rules.
type without struct {
	mode            counter.FailureMode
	shadow          bool
	text, one, many string
}

// failureModes returns what the given rules do while Redis can't be reached.
func failureModes(rules []weir.Rule, emergency *weir.Limit) modes {
	admit := without{weir.FailAllow, false, "counts clients that a node knows on each node alone, and admits the others",
		"admits clients that a node doesn't know", "admit clients that a node doesn't know"}
	if emergency != nil {
		most := " requests, up to " + emergency.String() + " of an address on each node (--emergency-limit)"
		admit.text, admit.one, admit.many = "admits"+most, "admits"+most, "admit"+most
	}
	m := modes{list: []admin.FailureMode{}, totals: []admin.FailureTotal{}}
	var parts []string
	for _, w := range []without{
		{weir.FailRefuse, false, "answers 503", "refuses with 503", "refuse with 503"},
		{weir.FailLocal, false, "counts on each node alone, to the limit divided by the nodes", "counts on each node alone", "count on each node alone"},
		admit,
		{weir.FailAllow, true, "is in shadow, and refuses nobody", "", ""},
	} {
		mode, found := modeNames[w.mode], 0
		for i := range rules {
			r := &rules[i]
			if r.Shadow != w.shadow || !r.Shadow && r.OnStoreFailure != w.mode {
				continue
			}
			if found++; len(m.list) < mostModes {
				m.list = append(m.list, admin.FailureMode{Rule: r.ID, Mode: mode, Text: w.text})
			}
		}
		if found == 0 {
			continue
		}
		m.totals = append(m.totals, admin.FailureTotal{Mode: mode, Text: w.text, Rules: found})
		if !w.shadow {
			parts = append(parts, count(found, w.one, w.many))
		}
	}
	m.words = cmp.Or(given(len(parts) > 0, "of the rules, "+strings.Join(parts, ", ")), "no rule limits anything")
	return m
}

var modeNames = [...]string{weir.FailAllow: "allow", weir.FailRefuse: "refuse", weir.FailLocal: "local"}
