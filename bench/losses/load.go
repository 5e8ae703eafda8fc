package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirhq/weir/counter"
)

const (
	keys  = 500
	nodes = 4
)

// load is how clients ask, each under a limit of its own.
type load struct {
	name      string
	perMinute int64
	first     int64         // what a client takes in a request of its own before; it isn't counted
	times     float64       // how much it asks for, beside what refills
	spree     time.Duration // how long it comes; 0: all the time
	route     func(*rand.Rand) func(at time.Duration) int
}

// loads are the ones that lost most when nodes held tokens that others needed.
var loads = []load{
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

// moving is to one node for some time, and then to the next. Clients don't move at the same moment.
func moving(every time.Duration) func(*rand.Rand) func(time.Duration) int {
	return func(rng *rand.Rand) func(time.Duration) int {
		n, ahead := rng.IntN(nodes), time.Duration(rng.Int64N(int64(every)))
		return func(at time.Duration) int { return (n + int((at+ahead)/every)) % nodes }
	}
}

// alone is how long a client's first request has to be decided before the others: it is another matter which of them
// are admitted, if they come before it.
const alone = 300 * time.Millisecond

// request is one that is due, and what became of it.
type request struct {
	at      time.Duration // when it is due; then, when it was sent
	key     int
	node    int
	cost    int64
	counts  bool
	answers [arms]answer
}

type answer struct {
	at       time.Duration // when it came
	admitted bool
}

func (l *load) limit() counter.Limit { return counter.PerMinute(l.perMinute) }

// requests draws all of a run, in their order. A client's come at random moments, as those of many people do.
func (l *load) requests(duration time.Duration, seed uint64) (all []request) {
	gap := time.Minute.Seconds() / float64(l.perMinute) / l.times
	for key := range keys {
		rng := rand.New(rand.NewPCG(seed, uint64(key)))
		route := l.route(rng)
		spree := min(duration, l.spree)
		if l.spree == 0 {
			spree = duration
		}
		begin := time.Duration(rng.Int64N(int64(max(duration-spree, time.Second))))
		end := min(begin+spree, duration)
		next := func() time.Duration { return time.Duration(rng.ExpFloat64() * gap * float64(time.Second)) }
		if l.first > 0 {
			all = append(all, request{at: begin, key: key, node: route(begin), cost: l.first})
			begin += alone
		}
		for at := begin + next(); at < end; at += next() {
			all = append(all, request{at: at, key: key, node: route(at), cost: 1, counts: true})
		}
	}
	slices.SortStableFunc(all, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	return all
}

// exact is what one limiter admits of requests, of which each has a moment.
func (l *load) exact(all []request, moment func(*request) time.Duration) (admitted []bool, err error) {
	p, err := counter.NewPolicy("exact", l.limit())
	if err != nil {
		return nil, err
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(moment(&all[i]), moment(&all[j])) })
	var states [keys]counter.State
	admitted = make([]bool, len(all))
	for _, i := range order {
		r := &all[i]
		now := time.Hour.Microseconds() + moment(r).Microseconds() // 0 would be a counter that nobody has touched
		states[r.key], admitted[i] = p.Try(states[r.key], now, r.cost)
	}
	return admitted, nil
}
