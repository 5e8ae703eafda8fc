package rulefile

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/internal/private"
)

var ruleFields = fieldSet{
	of: "a rule",
	names: []string{
		"id", "version", "tier", "match", "by", "missing", "ipv4_prefix", "ipv6_prefix", "layer", "algorithm", "mode", "max_delay",
		"limit", "limits", "burst", "params", "tiers", "override", "amount", "default", "unsettled", "calendar", "slot_ttl",
		"cost", "count", "past_limit", "strict", "split", "on_store_failure", "scope", "home", "floor", "on_partition", "shadow", "candidate", "abuse",
	},
	wrong: map[string]string{
		"endpoint": "write match: {endpoint: …}", "path": "write match: {endpoint: …}",
		"endpoint_regex":  "write match: {endpoint_regex: …}",
		"api_key_pattern": "write match: {api_key_pattern: …}",
		"api_key":         "write match: {api_key: absent}, or by: [api_key]",
		"status":          "write count: {status: […]}",
		"capacity":        writeParams, "refill_rate": writeParams,
		"window": "write limit: 100/minute, or params: {limit: 100, window: 60}",
		"name":   `write "id"`, "overrides": `write "override"`, "ttl": `write "slot_ttl"`,
		"counts": "write amount: tokens, or count: {status: […]}",
		"unit":   writeAmount, "units": writeAmount, "amounts": writeAmount, "tokens": writeAmount,
		"measure": writeAmount, "metric": writeAmount, "quantity": writeAmount,
		"default_amount": `write "default"`, "estimate": `write "default"`,
		"tz": "write calendar: {tz: Europe/Berlin}", "timezone": "write calendar: {tz: Europe/Berlin}",
		"day": "write calendar: {day: 15}", "weekday": "write calendar: {weekday: monday}",
		"concurrency": writeConcurrency, "max_concurrency": writeConcurrency, "max_in_flight": writeConcurrency,
		"price":  "prices stand at the top of the document: prices: {\"gpt-*\": " + priceExample + "}",
		"prices": "they stand at the top of the document, beside rules", "weights": "they stand at the top of the document, beside rules",
	},
}

const (
	writeAmount      = "write amount: tokens"
	writeConcurrency = "write algorithm: concurrency, and limit: 20"
	writeParams      = "write params: {capacity: …, refill_rate: …}"
)

var matchFields = fieldSet{
	of:    "match",
	names: []string{"endpoint", "endpoint_regex", "api_key_pattern", "api_key", "descriptor"},
	wrong: map[string]string{
		"tier":   "write tier: beside match, not in it",
		"path":   `write endpoint: "/v1/orders"`,
		"method": `write endpoint: "POST /v1/orders"`,
		"regex":  `write "endpoint_regex"`,
		"ip":     "no rule is for an address: write allow or deny beside the rules, or by: [ip]",
	},
}

var countFields = fieldSet{of: "count", names: []string{"status"}}

// algorithms are the names in the rule language, in the order of algorithmValues.
var algorithms = []string{"token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter", "concurrency"}

var algorithmValues = []counter.Algorithm{weir.TokenBucket, weir.LeakyBucket, weir.FixedWindow, weir.SlidingLog, weir.SlidingCounter, weir.Concurrency}

func (d *decoder) rule(v value) weir.Rule {
	f := d.fields(v, &ruleFields)
	r := weir.Rule{ID: d.text(f["id"])}
	d.ids = append(d.ids, r.ID)
	r.Version, _ = d.whole(f["version"])
	r.Match, r.Descriptor = d.match(f["match"])
	r.Tier = d.text(f["tier"])
	r.By = d.by(f["by"])
	r.Missing = weir.Missing(max(0, d.choice(f["missing"], "ip", "skip", "refuse")))
	r.IPv4Prefix, r.IPv6Prefix = int(d.integer(f["ipv4_prefix"])), int(d.integer(f["ipv6_prefix"]))
	r.OnStoreFailure = counter.FailureMode(max(0, d.choice(f["on_store_failure"], "allow", "refuse", "local")))
	r.Global, r.Home = d.choice(f["scope"], "region", "global") == 1, d.text(f["home"])
	if r.Floor = d.percent(f["floor"]); r.Global && f["floor"].node == nil {
		r.Floor = defaultFloor
	}
	r.OnPartition = [...]counter.FailureMode{weir.FailAllow, weir.FailRefuse, weir.FailLocal}[max(0, d.choice(f["on_partition"], "share", "refuse", "local"))]
	r.Layer = d.text(f["layer"])
	r.Cost = d.integer(f["cost"])
	r.Statuses = d.statuses(f["count"])
	past := d.choice(f["past_limit"], "refuse", "book", "count")
	r.Book, r.CountRefused = past == 1, past == 2
	r.Strict = d.boolean(f["strict"])
	if of := f["on_partition"]; r.Global && r.Strict && of.node != nil && of.text == "share" {
		d.fail(f["on_partition"], "a strict rule asks its home at every check, and has no share of its own: write refuse or local, or leave strict out")
	}
	r.Split = int(d.integer(f["split"]))
	r.Shadow = d.boolean(f["shadow"])
	before := len(d.list)
	r.Algorithm = d.algorithm(f["algorithm"], f["mode"])
	unsure := len(d.list) > before
	r.MaxDelay = d.maxDelay(f["max_delay"], r.Algorithm)
	if r.Descriptor != nil && f["algorithm"].node == nil && f["burst"].node == nil && f["params"].node == nil {
		r.Algorithm = weir.FixedWindow // as envoyproxy/ratelimit counts
	}
	s := scope{algorithm: r.Algorithm, named: f["algorithm"].node != nil, borrows: r.Descriptor != nil}
	if unsure {
		s.forget()
	}
	d.amounts(f, &r, &s)
	r.Limits = d.ownNumbers(f, &s)
	if len(r.Limits) == 0 && (f["limit"].node != nil || f["limits"].node != nil || f["params"].node != nil) {
		r.Calendar = counter.Calendar{} // the calendar isn't to blame for a tier's numbers when the rule's own are wrong
	}
	r.Tiers = d.tiers(f["tiers"], s)
	r.Override = d.overrides(f["override"], s, r.ID)
	r.Candidate = d.numbers(f["candidate"], s)
	r.Abuse = d.abuse(f["abuse"])
	if s.unsure { // so that numbers and related fields aren't blamed for a wrong algorithm
		any := []weir.Limit{weir.PerMinute(1)}
		r = weir.Rule{
			ID: r.ID, Match: r.Match, Descriptor: r.Descriptor, Tier: r.Tier, Layer: r.Layer, Abuse: r.Abuse, Limits: any, Tiers: r.Tiers,
			By: r.By, Missing: r.Missing, IPv4Prefix: r.IPv4Prefix, IPv6Prefix: r.IPv6Prefix,
		}
		for i := range r.Tiers {
			r.Tiers[i].Limits = any
		}
	}
	return r
}

func (d *decoder) match(v value) (m weir.Match, descriptor []string) {
	if v.node == nil {
		return m, nil
	}
	f := d.fields(v, &matchFields)
	d.hide(f["api_key_pattern"])
	m = weir.Match{
		Endpoint:      d.text(f["endpoint"]),
		EndpointRegex: d.text(f["endpoint_regex"]),
		APIKeyPattern: d.text(f["api_key_pattern"]),
	}
	if key := f["api_key"]; key.node != nil {
		if guess.Hint(key.text, []string{"present", "absent"}) == "" { // it may be a key
			d.hide(key)
		}
		m.NoKey = d.choice(key, "present", "absent") == 1
		m.HasKey = !m.NoKey
	}
	if v := f["descriptor"]; v.node != nil {
		descriptor = []string{} // an empty list is an error; nil would match every request
		if v.kind == scalar {
			d.fail(v, "must be a list: the domain, and its keys").Hint = "write [" + strings.ReplaceAll(v.text, ".", ", ") + "]"
			return m, descriptor
		}
		descriptor = append(descriptor, d.texts(v, "[edge, tenant=acme, route]")...)
	}
	return m, descriptor
}

// otherDimensions maps names that people use to what a rule counts by.
var otherDimensions = map[string]string{
	"key": "api_key", "apikey": "api_key", "user_id": "user", "org_id": "org", "organization": "org", "organisation": "org",
	"client_ip": "ip", "address": "ip", "route": "endpoint", "url": "path", "uri": "path", "plan": "tier",
}

// by reads what a rule counts by. An empty list means one counter for all, and differs from nil.
func (d *decoder) by(v value) []string {
	if v.node == nil {
		return nil
	}
	by := []string{}
	known := private.Dimensions()
	for _, item := range d.items(v, "[user]") {
		name := d.text(item)
		if !slices.Contains(known, name) {
			hint := guess.Hint(cmp.Or(otherDimensions[name], name), known)
			if kind, rest, ok := strings.Cut(name, ":"); ok && slices.Contains([]string{"path", "header", "claim", "attr"}, strings.ToLower(kind)) && kind != strings.ToLower(kind) {
				hint = fmt.Sprintf("did you mean %q?", strings.ToLower(kind)+":"+rest)
			}
			d.hints[item.path] = cmp.Or(hint, guessAttribute(shorten(name)))
		}
		by = append(by, name)
	}
	return by
}

// guessAttribute returns a hint for an attribute without its kind, such as header: or claim:.
func guessAttribute(name string) string {
	switch {
	case name == "" || strings.Contains(name, ":"):
		return ""
	case name == "model":
		return `write "attr:model"`
	case strings.Contains(name, "-") || unicode.IsUpper(rune(name[0])):
		return fmt.Sprintf("write %q", "header:"+name)
	}
	return fmt.Sprintf("write %q, %q or %q, depending on where it comes from", "header:"+name, "claim:"+name, "attr:"+name)
}

var statusClass = regexp.MustCompile(`^[1-5][xX][xX]$`)

// statuses reads which answers count: 401, or 4xx for all from 400 to 499, which a Rule represents as 4.
func (d *decoder) statuses(v value) []int {
	if !d.given(v) {
		return nil
	}
	if v.kind == scalar {
		p := d.fail(v, "must be which answers count, {status: [401, 403]}, got %s", v.describe())
		if !isLiteral(v.text) {
			p.Hint = "write amount: " + shorten(v.text)
		}
		return nil
	}
	f := d.fields(v, &countFields)
	status, ok := f["status"]
	if !ok && v.kind == mapping && len(v.children) == 0 {
		d.fail(v, "needs the statuses that count: {status: [401, 403]}")
	}
	var list []int
	for _, item := range d.items(status, "[401, 403] or [4xx]") {
		if item.kind == scalar && statusClass.MatchString(item.text) {
			list = append(list, int(item.text[0]-'0'))
			continue
		}
		n, err := strconv.Atoi(item.text)
		if item.kind != scalar || item.quoted || err != nil || n < 100 || n > 599 {
			d.fail(item, "must be an HTTP status such as 401, or a class such as 4xx, got %s", item.describe())
			continue
		}
		list = append(list, n)
	}
	if status.node != nil && status.kind == sequence && len(status.children) == 0 {
		d.fail(status, "needs at least one status: with none, no answer would count")
	}
	return list
}

// algorithm reads the algorithm and its mode. After a mistake it returns LeakyQueue: only that algorithm also allows max_delay,
// so the mistake doesn't make a max_delay another problem.
func (d *decoder) algorithm(v, mode value) counter.Algorithm {
	i := d.choice(v, algorithms...)
	if i < 0 || v.node != nil && v.kind == empty {
		return weir.LeakyQueue
	}
	a := algorithmValues[i]
	if mode.node != nil && a != weir.LeakyBucket {
		d.fail(mode, "only leaky_bucket has modes: %s has none", a)
	} else if d.choice(mode, "meter", "queue") != 0 {
		return weir.LeakyQueue
	}
	return a
}

// maxDelay reads how long a request may wait in a queue.
func (d *decoder) maxDelay(v value, a counter.Algorithm) time.Duration {
	delay, ok := d.duration(v)
	if !ok {
		return 0
	}
	if delay < time.Millisecond {
		d.fail(v, "must be at least 1ms, got %s: without it, requests wait as long as the queue is", delay)
		return 0
	}
	limit := weir.Limit{Algorithm: a, Count: 1, Window: time.Second, MaxDelay: delay}
	if wrong, ok := errors.AsType[counter.Problem](limit.Validate()); ok {
		d.fail(v, "%s", wrong.Text)
		return 0
	}
	return delay
}
