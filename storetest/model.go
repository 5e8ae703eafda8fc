package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"pgregory.net/rapid"
)

// model is a store without any machinery: the arithmetic of package weir over maps.
type model struct {
	states map[key]weir.State
	logs   map[key]*weir.Log
}

type key struct {
	policy  uint64
	subject string
}

func keyOf(c weir.Counter) key { return key{c.Policy.ID, string(c.Subject)} }

func isLog(c weir.Counter) bool { return c.Policy.Limit.Algorithm == weir.SlidingLog }

func (m *model) log(c weir.Counter) *weir.Log {
	l := m.logs[keyOf(c)]
	if l == nil {
		l = &weir.Log{}
		m.logs[keyOf(c)] = l
	}
	return l
}

func (m *model) take(now int64, charges []weir.Charge) []weir.Result {
	results := make([]weir.Result, len(charges))
	fits := make([]bool, len(charges))
	all := true
	for i, c := range charges {
		if isLog(c.Counter) {
			fits[i] = c.Policy.FitsLog(m.log(c.Counter), now, c.N)
		} else {
			_, fits[i] = c.Policy.Try(m.states[keyOf(c.Counter)], now, c.N)
		}
		all = all && (fits[i] || c.Policy.Shadow)
	}
	for i, c := range charges {
		v := weir.Refused
		if fits[i] && all && !c.Peek {
			v = weir.Taken
		} else if fits[i] {
			v = weir.Fits
		}
		if isLog(c.Counter) {
			if v == weir.Taken {
				c.Policy.TryLog(m.log(c.Counter), now, c.N)
			}
			results[i] = c.Policy.ReportLog(m.log(c.Counter), now, c.N, v)
			continue
		}
		old := m.states[keyOf(c.Counter)]
		state, _ := c.Policy.Try(old, now, c.N)
		if v == weir.Fits {
			state = old
		}
		if v != weir.Fits {
			m.states[keyOf(c.Counter)] = state
		}
		results[i] = c.Policy.Report(state, now, c.N, v)
	}
	return results
}

func (m *model) giveBack(now int64, r weir.Return) {
	if isLog(r.Counter) {
		r.Policy.ReturnLog(m.log(r.Counter), now, r.N, r.Slot)
		return
	}
	m.states[keyOf(r.Counter)] = r.Policy.Return(m.states[keyOf(r.Counter)], now, r.N, r.Slot)
}

func (m *model) reset(c weir.Counter) {
	delete(m.states, keyOf(c))
	delete(m.logs, keyOf(c))
}

// agreesWithModel runs random sequences of takes, peeks, layers, returns, resets,
// changed numbers and time steps, backwards too, on the store and on the model.
func agreesWithModel(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { walk(t, start(t, open), a) })
		})
	}
}

func walk(t *rapid.T, h *harness, a weir.Algorithm) {
	m := &model{states: map[key]weir.State{}, logs: map[key]*weir.Log{}}
	window := rapid.SampledFrom([]time.Duration{time.Second, 7 * time.Second, time.Minute}).Draw(t, "window")
	policies := make([]*weir.Policy, 3)
	number := func(i int) {
		l := weir.Limit{Algorithm: a, Count: rapid.Int64Range(1, 50).Draw(t, "count"), Window: window}
		if a <= weir.LeakyQueue {
			l.Burst = rapid.Int64Range(0, 80).Draw(t, "burst")
		}
		if a == weir.LeakyQueue {
			l.MaxDelay = rapid.SampledFrom([]time.Duration{0, window / 2}).Draw(t, "max delay")
		}
		policies[i] = Policy(t, fmt.Sprint("p", i), l)
		policies[i].Shadow = i == 2
	}
	for i := range policies {
		number(i)
	}
	pick := func() weir.Counter {
		return counter(rapid.SampledFrom(policies).Draw(t, "policy"), rapid.SampledFrom([]string{"s", "t"}).Draw(t, "subject"))
	}
	var taken []weir.Return
	for range rapid.IntRange(1, 300).Draw(t, "steps") {
		now := h.now.UnixMicro()
		switch rapid.SampledFrom([]string{"take", "take", "take", "layers", "peek", "return", "reset", "change", "time", "time", "back"}).Draw(t, "what") {
		case "take", "peek":
			c := weir.Charge{Counter: pick(), N: rapid.Int64Range(1, 20).Draw(t, "n"), Peek: rapid.Bool().Draw(t, "peek")}
			taken = append(taken, compare(t, h, m, now, c)...)
		case "layers":
			n, subject := rapid.Int64Range(1, 10).Draw(t, "n"), rapid.SampledFrom([]string{"s", "t"}).Draw(t, "subject")
			var cs []weir.Charge
			for _, p := range policies {
				cs = append(cs, weir.Charge{Counter: counter(p, subject), N: n})
			}
			taken = append(taken, compare(t, h, m, now, cs...)...)
		case "return":
			if len(taken) > 0 {
				r := rapid.SampledFrom(taken).Draw(t, "return")
				m.giveBack(now, r)
				if err := h.GiveBack(context.Background(), weir.Once{}, 0, []weir.Return{r}); err != nil {
					t.Fatalf("give back: %v", err)
				}
			}
		case "reset":
			c := pick()
			m.reset(c)
			if err := h.Reset(context.Background(), []weir.Counter{c}); err != nil {
				t.Fatalf("reset: %v", err)
			}
		case "change":
			number(rapid.IntRange(0, 2).Draw(t, "changed"))
		case "time":
			h.step(time.Duration(rapid.Int64Range(0, window.Microseconds()).Draw(t, "µs")) * time.Microsecond)
		case "back":
			h.step(-time.Duration(rapid.Int64Range(0, 3*window.Microseconds()).Draw(t, "µs")) * time.Microsecond)
		}
	}
}

func compare(t *rapid.T, h *harness, m *model, now int64, charges ...weir.Charge) (taken []weir.Return) {
	want, got := m.take(now, charges), h.charge(charges...)
	for i, c := range charges {
		if got[i] != want[i] {
			t.Fatalf("at %d, charge %d of %d (%s, %s, %q, n %d): got %+v, want %+v",
				now, i+1, len(charges), c.Policy.Limit, c.Policy.Limit.Algorithm, c.Subject, c.N, got[i], want[i])
		}
		if got[i].Allowed && !c.Peek {
			taken = append(taken, weir.Return{Counter: c.Counter, N: c.N, Slot: got[i].Slot})
		}
	}
	return taken
}
