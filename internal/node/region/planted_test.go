package region

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

// planted are bugs that are easy to make when tokens move between regions. Each has a schedule that always finds it.
var planted = []struct {
	name     string
	bug      func() *bug
	schedule func(*simulation)
	least    int // least percentage of random worlds that find the bug
}{
	{"capacity that comes back brings tokens", func() *bug {
		return &bug{wrote: func(_ *simulation, c *counted, _ int, before, after *stake.Stake, _ int64) {
			for of, l := range after.Lent {
				if was := before.Lent[of]; c.isBucket() && was != nil && was.ID == l.ID {
					after.Level += (l.Spent - was.Spent) * c.unit
				}
			}
		}}
	}, spent, 20},
	{"a lender doesn't debit what it gives", func() *bug {
		return &bug{wrote: func(_ *simulation, c *counted, _ int, before, after *stake.Stake, _ int64) {
			for of, l := range after.Lent {
				given := l.Given
				if was := before.Lent[of]; was != nil && was.ID == l.ID {
					given -= was.Given
				}
				c.raise(after, given)
			}
		}}
	}, half, 60},
	{"tokens are told as differences", differences, doubled, 40},
	{"the newest message wins, whatever its loan", func() *bug {
		return &bug{heard: func(s *simulation, c *counted, by, from int, m *stake.Message) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if l := c.stakes[by].Held[s.names[from]]; l != nil && m.Lent != nil {
				m.Lent.ID, m.Lent.Sent = l.ID, l.Sent
			}
		}}
	}, reordered, 2},
	{"what was lent comes back full", func() *bug {
		return &bug{wrote: func(_ *simulation, c *counted, _ int, before, after *stake.Stake, now int64) {
			for of, l := range before.Lent {
				if c.isBucket() && l.Until <= now && (after.Lent[of] == nil || after.Lent[of].ID != l.ID) {
					after.Level += out(l) * c.unit
				}
			}
		}}
	}, silent, 0},
	{"a loan's term begins when the answer comes", func() *bug {
		return &bug{heard: func(s *simulation, c *counted, by, _ int, m *stake.Message) {
			if m.Lent != nil && m.Lent.Sent != 0 {
				m.Lent.Sent = s.clocks[by].now()
			}
		}}
	}, lateAnswer, 0},
	{"a borrower keeps a loan for too long", func() *bug {
		return &bug{wrote: func(_ *simulation, _ *counted, _ int, before, after *stake.Stake, _ int64) {
			for of, l := range after.Held {
				if was := before.Held[of]; l.Until != 0 && (was == nil || l.Until != was.Until) {
					l.Until += 2 * stake.Margin.Microseconds()
				}
			}
		}}
	}, silent, 5},
	{"a lender has no margin", func() *bug {
		return &bug{wrote: func(_ *simulation, _ *counted, _ int, before, after *stake.Stake, _ int64) {
			for of, l := range after.Lent {
				if was := before.Lent[of]; l.Until != 0 && (was == nil || l.Until != was.Until) {
					l.Until -= stake.Margin.Microseconds()
				}
			}
		}}
	}, steps, 1},
	{"void loans keep their tokens", func() *bug {
		return &bug{wrote: func(_ *simulation, c *counted, _ int, before, after *stake.Stake, _ int64) {
			for of := range before.Held {
				if after.Held[of] == nil && before.Time == after.Time && !c.isBucket() { // a bucket's level is limited by its capacity anyway
					after.Level = before.Level
				}
			}
		}}
	}, forgetful, 0},
	{"what is asked back is there at once", func() *bug {
		return &bug{wrote: func(_ *simulation, c *counted, _ int, before, after *stake.Stake, _ int64) {
			for of, l := range after.Lent {
				if held, was := after.Held[of], before.Held[of]; held != nil && (was == nil || held.Sent != was.Sent) {
					c.raise(after, out(l))
					l.Back += out(l)
				}
			}
		}}
	}, askedBack, 60},
	{"what was borrowed is lent on", func() *bug {
		return &bug{served: func(s *simulation, c *counted, by, from int, ask, answer *stake.Message) {
			if answer.Lent == nil || answer.Void || !answer.Short || !c.isBucket() {
				return
			}
			s.edit(by, c, func(k *stake.Stake) {
				if l := k.Lent[s.names[from]]; l != nil && l.ID == answer.Lent.ID && k.Level > 0 {
					n := min(k.Level/c.unit, ask.Need+ask.Want)
					l.Given += n
					k.Level -= n * c.unit
					answer.Lent.Given = l.Given
				}
			})
		}}
	}, lentOn, 0},
}

// raise adds tokens to a stake.
func (c *counted) raise(k *stake.Stake, n int64) {
	if c.isBucket() {
		k.Level += n * c.unit
	} else {
		k.Level -= n
	}
}

// differences is a bug in which each response has the tokens given since the last response, instead of their total.
func differences() *bug {
	type pair struct {
		c        *counted
		by, from int
		id       int64
	}
	told := map[pair]int64{}
	return &bug{
		served: func(s *simulation, c *counted, by, from int, _, answer *stake.Message) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if l := answer.Lent; l != nil {
				at := pair{c, from, by, l.ID}
				given := l.Given
				l.Given -= told[at]
				told[at] = given
			}
		},
		heard: func(s *simulation, c *counted, by, from int, m *stake.Message) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if l := c.stakes[by].Held[s.names[from]]; l != nil && m.Lent != nil && m.Need+m.Want == 0 {
				m.Lent.Given += l.Given
			}
		},
	}
}

// edit changes a region's stake.
func (s *simulation) edit(i int, c *counted, change func(*stake.Stake)) {
	s.mu.Lock()
	key := ""
	for name, of := range s.counters {
		if of == c {
			key = name
		}
	}
	s.mu.Unlock()
	_ = s.sites[i].stakes.cells.Update(context.Background(), []string{key}, func(values [][]byte, _ int64) []Cell {
		k := stake.Decode(values[0])
		change(k)
		return []Cell{{k.Encode(), time.Minute}}
	})
}

func (s *simulation) limit(l counter.Limit) *counted {
	p, err := counter.NewPolicy("p", l)
	if err != nil {
		s.t.Fatal(err)
	}
	p = p.With(func(d *counter.Definition) { d.Floor = 5 })
	return s.count(p, "s")
}

// slowly adds a bucket of 100, of which the home owns 90, that hardly refills. A region that borrows 45 is lent all
// that the home has.
func slowly(s *simulation) *counted {
	return s.limit(counter.Limit{Count: 1, Window: time.Second, Burst: 100})
}

const home, away, third = 0, 1, 2

// until sleeps until a time after the start.
func (s *simulation) until(after time.Duration) {
	time.Sleep(after - time.Since(s.clocks[0].start))
}

// eager makes a region keep what it has borrowed until a time after the start, through requests for more than that.
func (s *simulation) eager(i int, c *counted, until time.Duration) {
	for time.Since(s.clocks[0].start) < until-time.Second {
		s.take(i, c, 100)
		time.Sleep(500 * time.Millisecond)
	}
	s.until(until)
}

// asks sets what happens to messages from region away to the home. All other messages are fast.
func (s *simulation) asks(ways ...way) {
	quick := []way{{out: 75 * time.Millisecond, back: 75 * time.Millisecond}}
	s.fate = func(from, to int) []way {
		if from == away && to == home {
			return ways
		}
		return quick
	}
}

// spent makes a region spend what it has borrowed and report it.
func spent(s *simulation) {
	c := slowly(s)
	s.take(away, c, 45)
	s.take(away, c, 50)
	s.until(3 * time.Second) // until the home rests (isn't asked)
	s.take(away, c, 1)
	s.take(home, c, 20)
}

// half makes the home lend most of what it has left after it has spent some tokens.
func half(s *simulation) {
	c := slowly(s)
	s.take(home, c, 50)
	s.take(away, c, 20)
	s.take(away, c, 23)
	s.take(home, c, 39)
}

// doubled makes a response arrive twice.
func doubled(s *simulation) {
	c := slowly(s)
	s.asks(way{out: 75 * time.Millisecond, back: 75 * time.Millisecond, again: time.Second})
	s.take(away, c, 45)
	s.until(3 * time.Second)
}

// reordered makes the response about an ended loan arrive after the next loan's response.
func reordered(s *simulation) {
	c := slowly(s)
	s.asks(way{out: 75 * time.Millisecond, back: 75 * time.Millisecond, again: 20 * time.Second})
	s.take(away, c, 45)
	s.asks(way{out: 75 * time.Millisecond, back: 75 * time.Millisecond})
	s.until(19 * time.Second)
	s.take(away, c, 8)
	s.until(21 * time.Second)
}

// silent cuts off a borrower, which then spends the rest of its loan at the last moment.
func silent(s *simulation) {
	c := slowly(s)
	s.take(away, c, 45)
	s.cutOff(true, [2]int{away, home}, [2]int{home, away})
	s.eager(away, c, 9900*time.Millisecond)
	s.take(away, c, 50)
	s.until(13 * time.Second)
	s.take(home, c, 50)
}

// lateAnswer makes a response arrive when the loan's term is almost over.
func lateAnswer(s *simulation) {
	c := slowly(s)
	s.asks(way{out: 75 * time.Millisecond, back: 9 * time.Second})
	s.take(away, c, 45)
	s.cutOff(true, [2]int{away, home})
	s.until(14 * time.Second)
	s.take(home, c, 1)
}

// steps sets the borrower's clock back and the lender's clock forward.
func steps(s *simulation) {
	c := slowly(s)
	s.take(away, c, 45)
	s.cutOff(true, [2]int{away, home}, [2]int{home, away})
	s.step(away, -time.Second)
	s.step(home, time.Second)
	s.until(10500 * time.Millisecond)
	s.take(home, c, 1)
}

// forgetful makes the lender's store forget a loan.
func forgetful(s *simulation) {
	c := s.limit(counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Minute})
	s.take(away, c, 45)
	s.mu.Lock()
	c.excused = true
	s.mu.Unlock()
	s.edit(home, c, func(k *stake.Stake) { *k = stake.Stake{} })
	s.take(away, c, 51) // the response says that the loan is unknown
	s.mu.Lock()
	c.excused = false
	s.mu.Unlock()
	s.take(home, c, 1)
}

// askedBack makes the home ask for tokens that it has lent.
func askedBack(s *simulation) {
	c := slowly(s)
	s.take(away, c, 45)
	s.until(time.Second) // a region that has just asked isn't asked itself
	s.take(home, c, 20)
}

// lentOn lends borrowed tokens on, so that they are still out when the original loan ends.
func lentOn(s *simulation) {
	c := s.limit(counter.Limit{Count: 100, Window: time.Second})
	s.take(away, c, 45)
	s.cutOff(true, [2]int{away, home}, [2]int{home, away})
	s.eager(away, c, 5*time.Second)
	s.take(home, c, 36)  // what the home has kept
	s.take(third, c, 80) // more than it gets
	s.eager(third, c, 14*time.Second)
	s.take(home, c, 1)
}

// TestPlantedBugsAreFound checks that each bug is always found by its schedule, and often enough in random worlds.
func TestPlantedBugsAreFound(t *testing.T) {
	for _, p := range planted {
		t.Run(p.name, func(t *testing.T) {
			if broken := scheduled(t, p.schedule, &bug{}); broken != "" {
				t.Errorf("without the bug: %s", broken)
			}
			broken := scheduled(t, p.schedule, p.bug())
			if t.Log(broken); broken == "" {
				t.Error("the bug isn't found")
			}
			enough := (p.least**seeds + 99) / 100
			if found := len(worlds(t, *seeds, enough, p.bug)); found < enough {
				t.Errorf("found in %d of %d worlds, want %d or more", found, *seeds, enough)
			}
		})
	}
}

// scheduled runs a schedule with three regions and returns how it broke the limit, or "".
func scheduled(t *testing.T, schedule func(*simulation), b *bug) (broken string) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(t, 3)
		s.bug = b
		s.run()
		schedule(s)
		s.end()
		broken = s.broken
	})
	return broken
}
