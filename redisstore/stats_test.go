package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

// TestStats checks the counts of calls, acts and times of each server, and that the statistics contain no password.
func TestStats(t *testing.T) {
	r := redistest.New(t, redistest.Options{Password: "hunter2secret"})
	s := open(t, Options{URL: "redis://:hunter2secret@" + r.Addr})
	if got := s.Health(); len(got.Shards) != 1 || got.Shards[0].Name != r.Addr || got.Shards[0].ShardStats != (ShardStats{}) {
		t.Errorf("of a new store: %+v", got)
	}
	p := policy(t, "p", counter.TokenBucket, 1_000_000, time.Hour)
	before := time.Now()
	for range 10 {
		mustTake(t, s, charge1(p, "s"))
	}
	took := time.Since(before)
	got := s.Health().Shards[0]
	if got.Calls != 10 || got.Acts != 10 || got.Errors != [len(Failures)]uint64{} || got.Time.Sum <= 0 || got.Time.Sum > took {
		t.Errorf("%+v in %v", got, took)
	}
	storm(100, 10_000, func(i int) bool { return mustTake(t, s, charge1(p, fmt.Sprint(i))) })
	got = s.Health().Shards[0]
	if got.Acts != 10_010 || got.Calls <= 10 || got.Calls >= got.Acts {
		t.Errorf("takes that share calls: %+v", got)
	}
	sum, times := uint64(0), time.Duration(0)
	for i, n := range got.Time.Buckets {
		sum += n
		if i > 0 {
			times += time.Duration(n) * TimeBounds[i-1]
		}
	}
	if sum != got.Calls || times > got.Time.Sum {
		t.Errorf("%d calls are in the buckets, and took %v at least: %+v", sum, times, got)
	}
	if text := fmt.Sprintf("%+v", got); strings.Contains(text, "hunter2secret") {
		t.Errorf("the password is shown: %s", text)
	}
	r.Kill()
	until(t, lost(s))
	if got := s.Health().Shards[0]; got.Up || failed(got, "connection")+failed(got, "timeout") == 0 || failed(got, "reply")+failed(got, "slot") > 0 {
		t.Errorf("a server that is gone: %+v", got)
	}
}

func TestTimeBounds(t *testing.T) {
	for i, b := range TimeBounds {
		var c tally
		for _, took := range []time.Duration{b, b + 1} {
			c.count(1, took, nil)
		}
		if c.buckets[i].Load() != 1 || c.buckets[i+1].Load() != 1 {
			t.Errorf("%v isn't the bound of a bucket", b)
		}
	}
	// An alert needs the bound of 5 ms, and native histograms need every power of two.
	powers := slices.DeleteFunc(slices.Clone(TimeBounds[:]), func(b time.Duration) bool { return b == 5*time.Millisecond })
	for i, b := range powers {
		if len(powers) != len(TimeBounds)-1 || i > 0 && b/2 != powers[i-1] {
			t.Errorf("%v isn't twice the bound before it", b)
		}
	}
}

// failed returns how many calls to a shard have failed for a cause.
func failed(h ShardHealth, cause string) uint64 { return h.Errors[slices.Index(Failures[:], cause)] }
