package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

// TestRedisOwnClockSteps sets Redis' own clock an hour back and then forward, while slots and reservations are held. None of
// them lasts longer than its own length.
func TestRedisOwnClockSteps(t *testing.T) {
	t.Parallel()
	clock := redistest.NewClock(t, 0)
	r := redistest.New(t, clock.Options())
	s := open(t, Options{URL: "redis://" + r.Addr})
	slots, tokens := slotted(t, "slots", 1, time.Second), amounts(t, "tokens", counter.FixedWindow, 10, 300*24*time.Hour)
	tokens = tokens.With(func(d *counter.Definition) { d.GivesBack = true })
	for i, by := range []time.Duration{-time.Hour, 0, time.Hour} {
		subject := fmt.Sprint("s", i)
		slot, reservation := holding(slots, subject, 1, 1), holding(tokens, subject, 10_000_000, 2)
		slot.Hold.For = time.Second
		reservation.Hold.For, reservation.Hold.GiveBack = time.Second, true
		if !mustTake(t, s, slot) || !mustTake(t, s, reservation) {
			t.Fatal("refused")
		}
		clock.Set(t, by)
		for what, c := range map[string]counter.Charge{"slot": holding(slots, subject, 1, 3), "reservation": holding(tokens, subject, 10_000_000, 4)} {
			for begun := time.Now(); !mustTake(t, s, c); time.Sleep(50 * time.Millisecond) {
				if time.Since(begun) > 30*time.Second {
					t.Fatalf("with a clock that is %v off, the %s isn't free again", by, what)
				}
			}
		}
	}
}
