package weir

import (
	"cmp"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
)

// Bounds on one of Envoy's descriptors.
const (
	maxDescriptor     = 1 + 32 // the domain and up to 32 keys
	maxDescriptorText = 4096   // bytes of a domain, a key or a value
)

// compileDescriptor checks a rule for one of Envoy's descriptors. Requests are never matched against such a rule: the code that
// serves Envoy finds the descriptor, and counts. Most other fields make no sense beside a descriptor, so they are errors.
func (r *rule) compileDescriptor(path string, seen map[string]int, bad *problems) {
	r.checkDescriptor(path+".match.descriptor", seen, bad)
	no := bad.below(path)
	beside := func(given bool, field, why string) { no(given, field, "can't stand beside a descriptor"+why) }
	no(r.Match != Match{}, "match", "can't stand beside other conditions: a descriptor says all that is known of the request; "+
		"keep the descriptor alone, or leave it out")
	beside(r.Tier != "", "tier", ": name the tier there, as a key and its value")
	beside(r.By != nil, "by", ", which is counted by its values: leave it out")
	beside(r.Missing != MissingIP, "missing", ", which lacks nothing: leave it out")
	beside(r.IPv4Prefix != 0, "ipv4_prefix", ", in which an address is a text: leave it out")
	beside(r.IPv6Prefix != 0, "ipv6_prefix", ", in which an address is a text: leave it out")
	beside(r.Split != 0, "split", ": leave it out")
	beside(r.Layer != "", "layer", ", of which the most specific rule applies in any case: leave it out")
	beside(len(r.Tiers) > 0, "tiers", ": write a rule for each value, such as tier=pro")
	beside(len(r.Override) > 0, "override", ": write a rule for each value, such as api_key=a")
	beside(r.Cost != 0, "cost", ": Envoy says what a request costs, with hits_addend")
	beside(len(r.Statuses) > 0, "count", ": Envoy doesn't say what was answered")
	beside(len(r.Candidate) > 0, "candidate", ", which has one counter: try it with shadow: true")
	beside(r.Abuse != nil, "abuse", ": Envoy tells a client itself when to come again; leave it out")
	beside(len(r.Limits) > 1, "limits", ", which has one counter: keep one limit")
	beside(r.Amount != "", "amount", ": Envoy says how much a request takes, with hits_addend")
	beside(r.Default != 0, "default", ": Envoy says how much a request takes, with hits_addend")
	beside(r.GiveBackUnsettled, "unsettled", ": Envoy reserves nothing; leave it out")
	beside(r.Calendar != counter.Calendar{}, "calendar", ": leave it out; months begin on the first, in UTC")
	beside(r.SlotTTL != 0, "slot_ttl", ": leave it out")
	beside(r.Algorithm == LeakyQueue, "mode", ": Envoy lets no request wait; leave it out")
	no(r.Algorithm == Concurrency, "algorithm", "concurrency can't stand beside a descriptor: Envoy doesn't say when a request ends")
	r.checkPastLimit(no)
	r.cost = 1
	if len(r.Limits) == 1 && r.Algorithm != Concurrency {
		l := r.Limits[0]
		if r.borrows() {
			l.Count, l.Window = 1, time.Second // any valid numbers
		}
		l.Algorithm = cmp.Or(l.Algorithm, r.Algorithm)
		bad.addErr(path, l.Validate())
	}
}

func (r *rule) checkDescriptor(path string, seen map[string]int, bad *problems) {
	const example = "as in [edge, tenant=acme, route]"
	if len(r.Descriptor) < 2 || len(r.Descriptor) > maxDescriptor {
		bad.when(true, path, "must be the domain and its keys, "+example+": 1 to %d keys", maxDescriptor-1)
		return
	}
	for i, s := range r.Descriptor {
		key, value, valued := strings.Cut(s, "=")
		bad.when(s == "" || i > 0 && key == "", path, "has an empty name: write the domain and its keys, "+example)
		bad.when(len(s) > maxDescriptorText, path, "has a name of %d bytes: Envoy's have at most %d", len(s), maxDescriptorText)
		bad.when(i > 0 && key != "" && valued && value == "", path, "%q has no value: write %q for any", s, key)
		// Envoy AI Gateway uses a pattern as the key and also as the value.
		bad.when(i > 0 && strings.Contains(key, "*") && key != value, path, "%q has a * in its key: wildcards are for values", s)
	}
	name := strings.Join(r.Descriptor, "\x00")
	first, twice := seen[name]
	bad.when(twice, path, "rules[%d] is for this descriptor, too: keep one of them", first)
	seen[name] = int(r.index)
}

// borrows reports whether the rule gets its numbers from a configuration file of envoyproxy/ratelimit with the same descriptor.
func (r *Rule) borrows() bool {
	return r.Descriptor != nil && (len(r.Limits) == 0 || r.Limits[0].Count == 0 && r.Limits[0].Window == 0)
}
