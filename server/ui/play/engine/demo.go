package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// demo is a demonstration. It has arrivals that show an effect, whatever the numbers are, and texts about it.
type demo struct {
	Demo
	arrive func(e *Engine, window int64)
	// watch returns the text that is shown while the demonstration runs, and seen returns the text that is shown
	// afterward.
	watch, seen func(e *Engine, n Numbers) string
}

// Demo describes a demonstration: the text on its button, the lane that it is about, and the time to watch.
type Demo struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	Lane  string `json:"lane"`
	// From and Until are the beginning and the end of the time to watch. In the results of [Demos] they are numbers of
	// windows, and in the results of [Engine.Show] they are in µs.
	From  float64 `json:"from"`
	Until float64 `json:"until"`
}

// Demos returns all demonstrations, in the order of their buttons.
func Demos() []Demo {
	var out []Demo
	for _, d := range demos {
		out = append(out, d.Demo)
	}
	return out
}

// Show discards all arrivals, and starts a demonstration.
func (e *Engine) Show(id string) (Demo, error) {
	i := slices.IndexFunc(demos, func(d *demo) bool { return d.ID == id })
	switch {
	case i < 0:
		return Demo{}, fmt.Errorf("demonstration: there is none named %q", id)
	case e.own != nil:
		return Demo{}, errors.New("demonstrations compare the algorithms: leave your own rules first")
	}
	e.Clear()
	d := *demos[i]
	window := e.numbers.Window * 1000
	if d.arrive(e, window); d.ID == "queue" {
		d.Until *= float64(e.capacity()) / float64(e.numbers.Limit) // in proportion to the time that a full bucket takes to drain
	}
	d.From *= float64(window)
	d.Until *= float64(window)
	e.order()
	e.demo = &d
	e.replay(int64(d.From))
	return d.Demo, nil
}

var demos = []*demo{
	{
		Demo: Demo{ID: "edge", Title: "Fixed window: 2× at the edge", Lane: weir.FixedWindow.String(), From: 0.92, Until: 1.1},
		arrive: func(e *Engine, window int64) {
			n := int(e.numbers.Limit)
			for i := range 2 * n {
				e.add(arrival{at: around(window, window, n, i)})
			}
		},
		watch: func(e *Engine, n Numbers) string {
			return fmt.Sprintf("Watch the fixed window: %d requests come around its edge at %s.", 2*n.Limit, seconds(n.window()))
		},
		seen: func(e *Engine, n Numbers) string {
			fixed, log := e.of(weir.FixedWindow), e.of(weir.SlidingLog)
			return fmt.Sprintf("The fixed window admitted %d requests within %s, %s its limit of %d in %s, because at the edge its count went back to 0; the sliding log, which has no edge, admitted %d.",
				fixed.Admitted, seconds(n.window()*2/25), times(fixed.Admitted, n.Limit), n.Limit, seconds(n.window()), log.Admitted)
		},
	},
	{
		Demo: Demo{ID: "weight", Title: "Sliding counter: the weight", Lane: weir.SlidingCounter.String(), From: 0.55, Until: 1.5},
		arrive: func(e *Engine, window int64) {
			n := int(e.numbers.Limit)
			e.burst(window*6/10, n, window/25)
			for i := range n + 1 { // twice as many as the limit admits
				e.add(arrival{at: window + window*int64(i)/int64(2*n)})
			}
		},
		watch: func(e *Engine, n Numbers) string {
			return fmt.Sprintf("Watch the sliding counter: %d requests fill a window; in the next one they count less and less.", n.Limit)
		},
		seen: func(e *Engine, n Numbers) string {
			l := e.laneOf(weir.SlidingCounter)
			w, weight := l.policy.Windows(l.state, e.begin+e.at)
			value, _ := l.value(e.begin + e.at)
			return fmt.Sprintf("Halfway through the second window, %s %% of the %d requests before its edge still count: %d × %s %% + %d = %s of %d, so the counter has admitted %d since the edge; the log, which knows each request's moment, %d.",
				short(weight*100), w.Prev, w.Prev, short(weight*100), w.Level, short(value), n.Limit, w.Level, int64(e.of(weir.SlidingLog).Admitted)-w.Prev)
		},
	},
	{
		Demo: Demo{ID: "burst", Title: "Token bucket: the burst", Lane: weir.TokenBucket.String(), From: 0.05, Until: 0.75},
		arrive: func(e *Engine, window int64) {
			n, b := e.numbers.Limit, e.capacity()
			e.burst(window/10, int(2*b), window/100)
			for i := range n { // at twice the refill rate, for half a window
				e.add(arrival{at: window*15/100 + window*(i+1)/(2*n)})
			}
		},
		watch: func(e *Engine, n Numbers) string {
			return fmt.Sprintf("Watch the token bucket: %d requests come at once, twice what it holds, and then twice as many as it refills.", 2*e.capacity())
		},
		seen: func(e *Engine, n Numbers) string {
			first, after, all := e.split(weir.TokenBucket, int(2*e.capacity()))
			_, fixed, _ := e.split(weir.FixedWindow, int(2*e.capacity()))
			return fmt.Sprintf("The full bucket admitted %d of %d requests at once, and then %d of %d, because a token comes back every %s; the fixed window admitted %d of those.",
				first, 2*e.capacity(), after, all-int(2*e.capacity()), seconds(n.window()/time.Duration(n.Limit)), fixed)
		},
	},
	{
		Demo: Demo{ID: "queue", Title: "Leaky queue: the smoothing", Lane: weir.LeakyQueue.String(), From: 0.05, Until: 1.1},
		arrive: func(e *Engine, window int64) {
			e.burst(window/10, int(e.capacity()), window/100)
		},
		watch: func(e *Engine, n Numbers) string {
			return fmt.Sprintf("Watch the leaky queue: %d requests come at once, and leave one by one.", e.capacity())
		},
		seen: func(e *Engine, n Numbers) string {
			l := e.laneOf(weir.LeakyQueue)
			longest := 0.0
			for i := 2; i < len(l.marks); i += 3 {
				longest = max(longest, l.marks[i])
			}
			return fmt.Sprintf("Of %d requests within %s the queue admitted %d and let them go one every %s, so the last one waited %s; the token bucket let %d pass at once.",
				len(e.schedule), seconds(n.window()/100), e.of(weir.LeakyQueue).Admitted, seconds(n.window()/time.Duration(n.Limit)), seconds(micros(int64(longest))), e.of(weir.TokenBucket).Admitted)
		},
	},
}

// laneOf returns the lane that belongs to an algorithm.
func (e *Engine) laneOf(a counter.Algorithm) *lane { return e.lanes[slices.Index(algorithms, a)] }

// of returns how many requests an algorithm has admitted, refused and delayed so far.
func (e *Engine) of(a counter.Algorithm) Counts { return e.laneOf(a).now(e.at) }

// capacity returns how many requests a bucket holds.
func (e *Engine) capacity() int64 { return e.laneOf(weir.TokenBucket).policy.Limit.Max() }

// split looks at what an algorithm admitted. of is how many of the first requests it admitted, and after is how many of
// the later ones. all is the number of all requests.
func (e *Engine) split(a counter.Algorithm, first int) (of, after, all int) {
	l := e.laneOf(a)
	for i := 0; i < len(l.marks); i += 3 {
		if v := verdict(l.marks[i+1]); v != admitted && v != delayed {
			continue
		}
		if i/3 < first {
			of++
		} else {
			after++
		}
	}
	return of, after, len(l.marks) / 3
}

// times describes a number as a multiple of the limit.
func times(n int, limit int64) string {
	if int64(n) == 2*limit {
		return "twice"
	}
	return short(float64(n)/float64(limit)) + " times"
}
