package redisstore

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// ShardStats are statistics of the calls to one server since the store was made. Heartbeats and probes aren't counted.
type ShardStats struct {
	// Calls counts script calls. Acts counts what they carried: one for each take, return or reset that has keys on the
	// server. Acts that are under way at the same moment share a call.
	Calls, Acts uint64
	// Errors counts the calls that failed, by their cause: see [Failures].
	Errors [len(Failures)]uint64
	// Time is how long calls took, including those that failed.
	Time TimeStats
}

// Failures are the causes of failed calls: no answer within the budget; no connection could be made, or it was lost; Redis
// answered with an error; no server serves the hash slot.
var Failures = [...]string{"timeout", "connection", "reply", "slot"}

// TimeStats is a histogram of durations.
type TimeStats struct {
	Sum time.Duration
	// Buckets count durations up to each of [TimeBounds] and above the bound before it. The last one counts those above all
	// bounds.
	Buckets [len(TimeBounds) + 1]uint64
}

// TimeBounds are powers of two of a second, from about 61 µs to half a second, and 5 ms. Redis is called slow above 5 ms, and
// an estimate between 4 and 8 ms would be too inexact.
var TimeBounds = [15]time.Duration{
	time.Second >> 14, time.Second >> 13, time.Second >> 12, time.Second >> 11, time.Second >> 10, time.Second >> 9, time.Second >> 8,
	5 * time.Millisecond,
	time.Second >> 7, time.Second >> 6, time.Second >> 5, time.Second >> 4, time.Second >> 3, time.Second >> 2, time.Second >> 1,
}

// tally counts the calls to a shard. Each call writes to it a few times, which costs little beside a round trip.
type tally struct {
	acts    atomic.Uint64
	failed  [len(Failures)]atomic.Uint64
	sum     atomic.Int64 // ns
	buckets [len(TimeBounds) + 1]atomic.Uint64
}

// failureOf returns the cause of a failed call.
func failureOf(err error) string {
	var re *rueidis.RedisError
	var slow net.Error
	switch {
	case ofSlot(err):
		return "slot"
	case errors.As(err, &re):
		return "reply"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		return "timeout"
	}
	return "connection"
}

// count records a call.
func (t *tally) count(acts int, took time.Duration, err error) {
	t.acts.Add(uint64(acts))
	t.sum.Add(int64(took))
	at := 0
	for at < len(TimeBounds) && took > TimeBounds[at] {
		at++
	}
	t.buckets[at].Add(1)
	if err != nil {
		t.failed[slices.Index(Failures[:], failureOf(err))].Add(1)
	}
}

// answered returns how many calls succeeded.
func (t *tally) answered() (n uint64) {
	for i := range t.buckets {
		n += t.buckets[i].Load()
	}
	for i := range t.failed {
		n -= t.failed[i].Load()
	}
	return n
}

func (t *tally) stats() (out ShardStats) {
	out.Acts, out.Time.Sum = t.acts.Load(), time.Duration(t.sum.Load())
	for i := range t.buckets {
		out.Time.Buckets[i] = t.buckets[i].Load()
		out.Calls += out.Time.Buckets[i]
	}
	for i := range t.failed {
		out.Errors[i] = t.failed[i].Load()
	}
	return out
}
