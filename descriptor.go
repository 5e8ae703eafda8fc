package weir

import (
	"github.com/weirhq/weir/counter"
	"strings"
	"time"
)

// A descriptor of Envoy's has no more than these.
const (
	maxDescriptor     = 1 + 32 // the domain, and keys
	maxDescriptorText = 4096   // bytes of a domain, a key or a value
)

// compileDescriptor checks a rule for a descriptor of Envoy's. No request is held against it: whoever answers Envoy finds the
// descriptor, and counts. Most of what other rules have means nothing there, and is an error rather than ignored.
func (r *rule) compileDescriptor(path string, seen map[string]int, bad *problems) {
	r.checkDescriptor(path+".match.descriptor", seen, bad)
	for _, f := range []struct {
		given      bool
		name, text string
	}{
		{r.Match != Match{}, "match", "can't stand beside other conditions: a descriptor says all that is known of the request; keep the descriptor alone, or leave it out"},
		{r.Tier != "", "tier", "can't stand beside a descriptor: name the tier there, as a key and its value"},
		{r.By != nil, "by", "can't stand beside a descriptor, which is counted by its values: leave it out"},
		{r.Missing != MissingIP, "missing", "can't stand beside a descriptor, which lacks nothing: leave it out"},
		{r.IPv4Prefix != 0, "ipv4_prefix", "can't stand beside a descriptor, in which an address is a text: leave it out"},
		{r.IPv6Prefix != 0, "ipv6_prefix", "can't stand beside a descriptor, in which an address is a text: leave it out"},
		{r.Split != 0, "split", "can't stand beside a descriptor: leave it out"},
		{r.Layer != "", "layer", "can't stand beside a descriptor, of which the most specific rule applies in any case: leave it out"},
		{len(r.Tiers) > 0, "tiers", "can't stand beside a descriptor: write a rule for each value, such as tier=pro"},
		{len(r.Override) > 0, "override", "can't stand beside a descriptor: write a rule for each value, such as api_key=a"},
		{r.Cost != 0, "cost", "can't stand beside a descriptor: Envoy says what a request costs, with hits_addend"},
		{len(r.Statuses) > 0, "count", "can't stand beside a descriptor: Envoy doesn't say what was answered"},
		{len(r.Candidate) > 0, "candidate", "can't stand beside a descriptor, which has one counter: try it with shadow: true"},
		{r.Abuse != nil, "abuse", "can't stand beside a descriptor: Envoy tells a client itself when to come again; leave it out"},
		{len(r.Limits) > 1, "limits", "can't stand beside a descriptor, which has one counter: keep one limit"},
		{r.Amount != "", "amount", "can't stand beside a descriptor: Envoy says how much a request takes, with hits_addend"},
		{r.Default != 0, "default", "can't stand beside a descriptor: Envoy says how much a request takes, with hits_addend"},
		{r.GiveBackUnsettled, "unsettled", "can't stand beside a descriptor: Envoy reserves nothing; leave it out"},
		{r.Calendar != counter.Calendar{}, "calendar", "can't stand beside a descriptor: leave it out; months begin on the first, in UTC"},
		{r.SlotTTL != 0, "slot_ttl", "can't stand beside a descriptor: leave it out"},
		{r.Algorithm == Concurrency, "algorithm", "concurrency can't stand beside a descriptor: Envoy doesn't say when a request ends"},
		{r.Algorithm == LeakyQueue, "mode", "can't stand beside a descriptor: Envoy lets no request wait; leave it out"},
	} {
		if f.given {
			bad.addf(path+"."+f.name, "%s", f.text)
		}
	}
	r.cost = 1
	r.checkPastLimit(path, bad)
	if len(r.Limits) == 1 && r.Algorithm != Concurrency {
		l := r.Limits[0]
		if r.borrows() {
			l.Count, l.Window = 1, time.Second // any will do
		}
		if l.Algorithm == 0 {
			l.Algorithm = r.Algorithm
		}
		if err := l.Validate(); err != nil {
			bad.addLimit(path, err)
		}
	}
}

func (r *rule) checkDescriptor(path string, seen map[string]int, bad *problems) {
	if len(r.Descriptor) < 2 || len(r.Descriptor) > maxDescriptor {
		bad.addf(path, "must be the domain and its keys, as in [edge, tenant=acme, route]: 1 to %d keys", maxDescriptor-1)
		return
	}
	for i, s := range r.Descriptor {
		key, value, valued := strings.Cut(s, "=")
		switch {
		case s == "" || i > 0 && key == "":
			bad.addf(path, "has an empty name: write the domain and its keys, as in [edge, tenant=acme, route]")
		case len(s) > maxDescriptorText:
			bad.addf(path, "has a name of %d bytes: Envoy's have at most %d", len(s), maxDescriptorText)
		case i > 0 && valued && value == "":
			bad.addf(path, "%q has no value: write %q for any", s, key)
		case i > 0 && strings.Contains(key, "*") && key != value: // Envoy AI Gateway names a match by its pattern, in both
			bad.addf(path, "%q has a * in its key: wildcards are for values", s)
		}
	}
	name := strings.Join(r.Descriptor, "\x00")
	if first, twice := seen[name]; twice {
		bad.addf(path, "rules[%d] is for this descriptor, too: keep one of them", first)
	}
	seen[name] = int(r.index)
}

// borrows: the rule's numbers are those that a configuration has for its descriptor.
func (r *Rule) borrows() bool {
	return r.Descriptor != nil && (len(r.Limits) == 0 || r.Limits[0].Count == 0 && r.Limits[0].Window == 0)
}
