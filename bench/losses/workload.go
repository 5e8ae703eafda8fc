package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	keys  = 500
	nodes = 4
)

// workload describes how clients send requests. Each client has its own limit.
type workload struct {
	name      string
	perMinute int64         // the limit per minute
	first     int64         // cost of a client's first request, which the results ignore; 0 means that there is no such request
	times     float64       // the number of requests divided by what the limit refills in that time
	spree     time.Duration // how long a client sends; 0 means all the time
	route     func(*rand.Rand) func(at time.Duration) int
}

// loads are the workloads in which leases lost the most, because nodes held tokens that other nodes needed.
var loads = []workload{
	{name: "a fresh 100/minute spent in 15 s, round robin", perMinute: 100, times: 6, spree: 15 * time.Second, route: roundRobin},
	{name: "a fresh 100/minute spent in 15 s, random nodes", perMinute: 100, times: 6, spree: 15 * time.Second, route: random},
	{name: "100/minute at 0.9×, near empty, moving every 3 s", perMinute: 100, first: 98, times: 0.9, route: moving(3 * time.Second)},
	{name: "600/minute at 1.3×, empty, moving every 4 s", perMinute: 600, first: 600, times: 1.3, route: moving(4 * time.Second)},
	{name: "600/minute at 0.9×, after 590, moving every 3 s", perMinute: 600, first: 590, times: 0.9, route: moving(3 * time.Second)},
}

func roundRobin(rng *rand.Rand) func(time.Duration) int {
	n := rng.IntN(nodes)
	return func(time.Duration) int { n++; return n % nodes }
}

func random(rng *rand.Rand) func(time.Duration) int {
	return func(time.Duration) int { return rng.IntN(nodes) }
}

// moving returns a route that sends a client to one node for some time, and then to the next. Clients move at different times.
func moving(every time.Duration) func(*rand.Rand) func(time.Duration) int {
	return func(rng *rand.Rand) func(time.Duration) int {
		n, ahead := rng.IntN(nodes), time.Duration(rng.Int64N(int64(every)))
		return func(at time.Duration) int { return (n + int((at+ahead)/every)) % nodes }
	}
}

// alone is the time between a client's first request and its other requests, so that the first request is decided
// first.
const alone = 300 * time.Millisecond

// request is a scheduled request and its decisions.
type request struct {
	at      time.Duration // when the request is due; once it is sent, the time when it was sent
	key     int
	node    int
	cost    int64
	counts  bool
	answers [rules]answer
}

type answer struct {
	at       time.Duration // when the decision arrived
	admitted bool
}

// ruleFile returns a rule file with two rules for the same requests: one with leases, and a strict one.
func (w *workload) ruleFile() string {
	text := "rules:\n"
	for r := range rules {
		text += fmt.Sprintf("  - {id: %s, match: {endpoint: /%s}, limit: %d/minute, strict: %v}\n", r, r, w.perMinute, r == strict)
	}
	return text
}

// requests returns the requests of a run in order of time. Each client sends at random times, as people do.
func (w *workload) requests(duration time.Duration, seed uint64) (all []request) {
	gap := time.Minute.Seconds() / float64(w.perMinute) / w.times
	for key := range keys {
		rng := rand.New(rand.NewPCG(seed, uint64(key)))
		route := w.route(rng)
		spree := min(duration, cmp.Or(w.spree, duration))
		begin := time.Duration(rng.Int64N(int64(max(duration-spree, time.Second))))
		end := min(begin+spree, duration)
		next := func() time.Duration { return time.Duration(rng.ExpFloat64() * gap * float64(time.Second)) }
		if w.first > 0 {
			all = append(all, request{at: begin, key: key, node: route(begin), cost: w.first})
			begin += alone
		}
		for at := begin + next(); at < end; at += next() {
			all = append(all, request{at: at, key: key, node: route(at), cost: 1, counts: true})
		}
	}
	slices.SortStableFunc(all, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	return all
}
