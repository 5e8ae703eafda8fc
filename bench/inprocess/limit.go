package main

import "time"

// limit is what every contender enforces: a bucket of tokens, one of which comes
// back at every step. Those that count in windows get the same tokens for the
// time that the whole bucket takes to fill.
type limit struct {
	tokens int64
	every  time.Duration
}

var (
	// hotLimit admits what any machine can ask of one key during a measurement.
	hotLimit = limit{tokens: 1_000_000_000, every: time.Microsecond}
	// wideLimit admits everything, too, and refills so slowly that every key is still worth
	// keeping at the end: a store that forgets full buckets must not get away with an empty table.
	wideLimit = limit{tokens: 5_000_000, every: 20 * time.Second}
	// spentLimit admits one request.
	spentLimit = limit{tokens: 1, every: 1000 * time.Second}
)

func (l limit) perSecond() float64    { return 1 / l.every.Seconds() }
func (l limit) window() time.Duration { return time.Duration(l.tokens) * l.every }
