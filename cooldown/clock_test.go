package cooldown

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
)

// clock is a Shared of which only the clock is used.
type clock struct {
	Shared
	off time.Duration
}

func (c *clock) Now() time.Time { return time.Now().Add(c.off) }

func (*clock) Nodes() int { return 1 }

// A cooldown lasts 10 s by the clock of each node, whatever the clock that nodes share does meanwhile: on the node that began
// the cooldown, on a node that heard of it before the step, and on a node that hears of it, perhaps again, after a step back.
func TestTheSharedClockSteps(t *testing.T) {
	for name, step := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const lasts = 10 * time.Second
				p, err := counter.NewPolicy("api", counter.PerHour(100))
				if err != nil {
					t.Fatal(err)
				}
				p = p.With(func(d *counter.Definition) {
					d.Abuse = &counter.Abuse{Refusals: 1, Window: time.Hour, Cooldown: lasts, Grow: 2, Most: time.Hour, Forgive: time.Hour}
				})
				c := &counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte("k")}, N: 1}

				shared := &clock{off: 5 * time.Minute} // the clocks never agreed
				join := func() *Guard {
					g := New(Options{Shared: shared})
					g.SetSecret([]byte("0123456789abcdef"))
					return g
				}
				nodes := []*Guard{join(), join()}
				for range 4 {
					nodes[0].Decided(c, time.Minute)
					time.Sleep(2 * time.Second)
				}
				all := nodes[0].All()
				if len(all) != 1 {
					t.Fatalf("%+v", all)
				}
				word := all[0]
				left := nodes[0].Cooldown(c)
				if said := word.Ends.Sub(shared.Now()); left <= 0 || left > lasts || said != left {
					t.Fatalf("%s are left, announced as %s", left, said)
				}
				nodes[1].hear(&word, 0)

				shared.off += step
				after := time.Now()
				if step < 0 {
					nodes = append(nodes, join())
				}
				for _, n := range nodes {
					n.hear(&word, 1)
				}
				longest := func(i int) time.Duration {
					if i == 2 {
						return lasts // all that it knows is that the cooldown has begun
					}
					return left
				}
				for i, n := range nodes {
					if got := n.Cooldown(c); got < left || got > longest(i) {
						t.Errorf("node %d: %s are left after the step, and %s before it", i, got, left)
					}
					if got := n.All(); len(got) != 1 || got[0].Ends.Sub(shared.Now()) != n.Cooldown(c) {
						t.Errorf("node %d shows %+v at %s", i, got, shared.Now())
					}
				}
				time.Sleep(left - time.Microsecond)
				for i, n := range nodes {
					if n.Cooldown(c) == 0 {
						t.Errorf("node %d: it ended %s after the step", i, time.Since(after))
					}
				}
				time.Sleep(time.Microsecond)
				for i, n := range nodes {
					time.Sleep(time.Until(after.Add(longest(i))))
					if got := n.Cooldown(c); got > 0 {
						t.Errorf("node %d: another %s, %s after the step", i, got, time.Since(after))
					}
				}
			})
		})
	}
}
