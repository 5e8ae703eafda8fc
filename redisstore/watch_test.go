package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

// TestALossIsNoticedWithinThreeSeconds adds up the times: the pause before a probe, and three tries, each with the budget of a
// check, the time to open a connection, and a pause after it.
func TestALossIsNoticedWithinThreeSeconds(t *testing.T) {
	a, err := parseAddress("redis://127.0.0.1:6379")
	if err != nil {
		t.Fatal(err)
	}
	if longest := lookEvery + opensAfter*(a.option.Dialer.Timeout+DefaultTimeout+probeEvery); longest > 2*time.Second {
		t.Errorf("a loss is noticed after %v, and has to be shown after 3 s", longest)
	}
}

// TestIdleShardsAreLookedAt checks that every shard is probed again and again while the store has no checks.
func TestIdleShardsAreLookedAt(t *testing.T) {
	t.Parallel()
	oneServerAndACluster(t, func(t *testing.T, url string) {
		s := open(t, Options{URL: url})
		for _, sh := range s.shards() {
			for range 3 {
				sh.fails.Store(1) // a look that succeeds forgets it
				until(t, func(context.Context) error {
					if sh.fails.Load() != 0 {
						return fmt.Errorf("%s isn't looked at", sh.name)
					}
					return nil
				})
			}
		}
	})
}

// TestLostSinceTheFirstFailure checks that a loss is dated from the first failure in a row: not from the one that opens the
// breaker, from a probe's, or from one before a success.
func TestLostSinceTheFirstFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh, err := newShard("s"), errors.New("e")
		at := func() int64 { return time.Now().UnixMicro() }
		fail := func(opens bool) {
			t.Helper()
			if sh.failed(err) != opens {
				t.Errorf("after %d failures: open is %v", sh.fails.Load(), !opens)
			}
			time.Sleep(time.Second)
		}
		sh.succeeded()
		fail(false)
		sh.succeeded()
		time.Sleep(time.Hour)
		since := at()
		fail(false)
		fail(false)
		fail(true)
		fail(false) // calls that were under way
		if got := sh.since.Load(); got != since {
			t.Errorf("lost since %v, want %v", got, since)
		}
		sh.close()
		if got := sh.since.Load(); got != at() {
			t.Errorf("found at %v, want %v", got, at())
		}
		time.Sleep(time.Hour)
		since = at()
		for range opensAfter {
			fail(sh.fails.Load() == opensAfter-1)
		}
		if got := sh.since.Load(); got != since {
			t.Errorf("lost again since %v, want %v", got, since)
		}
		fresh := newShard("never reached")
		since = at()
		fresh.failed(err)
		time.Sleep(time.Second)
		if !fresh.failed(err) || fresh.since.Load() != since {
			t.Errorf("a new one is lost since %v, want %v", fresh.since.Load(), since)
		}
	})
}

// TestWhatALossIsWorth checks that the log and the health say how many keys a lost server had, why it is lost, and since when.
func TestWhatALossIsWorth(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	var log lines
	s := open(t, Options{URL: "redis://" + r.Addr + "/3", Timeout: well, Logger: log.logger()})
	p := policy(t, "p", counter.TokenBucket, 10, year)
	for i := range 40 {
		mustTake(t, s, charge1(p, fmt.Sprint(i)))
	}
	keys := func(least, most int64) func(context.Context) error {
		return func(context.Context) error {
			if h := s.Health().Shards[0]; h.Keys < least || h.Keys > most {
				return fmt.Errorf("%+v", h)
			}
			return nil
		}
	}
	until(t, keys(40, 50))
	before := time.Now()
	r.Kill()
	until(t, health(s, false))
	h := s.Health()
	if err := keys(40, 50)(t.Context()); err != nil {
		t.Error(err)
	}
	if h.Since.Before(before.Truncate(time.Microsecond)) || h.Since.After(time.Now()) || !h.Since.Equal(h.Shards[0].Since) {
		t.Errorf("killed at %v: %+v", before, h)
	}
	text := fmt.Sprint("shard=", r.Addr, " since=", h.Since.Format("2006-01-02T15:04:05.000Z07:00"))
	if log.count(text) != 1 || log.count("keys_affected="+strconv.FormatInt(h.Shards[0].Keys, 10)) != 1 {
		t.Errorf("want %s in the log:\n%s", text, log.text.String())
	}
	for range 3 { // probes don't make it a later one
		was := s.joiners[0].shard.Load().cause.Load()
		until(t, func(context.Context) error {
			if s.joiners[0].shard.Load().cause.Load() == was {
				return errors.New("not probed yet")
			}
			return nil
		})
		if now := s.Health(); !now.Since.Equal(h.Since) {
			t.Errorf("lost since %v, and now since %v", h.Since, now.Since)
		}
	}
	if err := r.RestartEmpty(); err != nil {
		t.Fatal(err)
	}
	until(t, health(s, true))
	if log.count("redis is back") != 1 || log.count("lost_for=") != 1 {
		t.Errorf("%s", log.text.String())
	}
	until(t, keys(0, 10))
}

// TestAnIdleStoreKnowsOfUnservedSlots also checks that all of them are logged in one line.
func TestAnIdleStoreKnowsOfUnservedSlots(t *testing.T) {
	c := redistest.NewCluster(t, redistest.Options{Config: []string{"cluster-require-full-coverage no"}})
	var log lines
	s := open(t, Options{URL: clusterURL(c), Timeout: well, Logger: log.logger()})
	var slots []string
	for tag := range 20 {
		if s.joiners[tag].shard.Load().name == c.Nodes[0].Addr {
			slots = append(slots, strconv.Itoa(slotOf(tagNames[tag])))
		}
	}
	if len(slots) < 2 {
		t.Fatalf("the first server has only the slots %v", slots)
	}
	unserved := func(n int) func(context.Context) error {
		return func(context.Context) error {
			h := s.Health()
			if h.Unserved != n || h.Up != (n == 0) || h.Since.IsZero() != (n == 0) {
				return fmt.Errorf("want %d slots: %+v", n, h)
			}
			return nil
		}
	}
	until(t, unserved(0))
	until(t, func(ctx context.Context) error {
		for _, node := range c.Nodes { // an error where gossip was faster
			for _, slot := range slots {
				_, _ = node.Do(ctx, "CLUSTER", "DELSLOTS", slot)
			}
		}
		return unserved(len(slots))(ctx)
	})
	last := s.Health().Shards
	if h := last[len(last)-1]; h.Up || !strings.HasPrefix(h.Name, strconv.Itoa(len(slots))+" of 1024 slots") {
		t.Errorf("%+v", h)
	}
	if n := log.count("no server serves"); n == 0 || n > 5 { // gossip may spread them over some looks
		t.Errorf("%d lines for %d slots:\n%s", n, len(slots), log.text.String())
	}
	do(t, c.Nodes[0], append([]string{"CLUSTER", "ADDSLOTS"}, slots...)...)
	until(t, unserved(0))
}

// TestWhatWasHeardIsRemembered checks that a store remembers the other nodes while Redis is lost, and says how old that list
// is.
func TestWhatWasHeardIsRemembered(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	url := "redis://" + r.Addr
	a, b := open(t, Options{URL: url, Name: "a", Timeout: well}), open(t, Options{URL: url, Name: "b", Timeout: well})
	a.Say("one")
	b.Say("two")
	heard := func(stale bool) func(context.Context) error {
		return func(context.Context) error {
			h := a.Heard()
			said := map[string]string{}
			for _, p := range h.Peers {
				said[p.Name] = p.Says
			}
			if !maps.Equal(said, map[string]string{"a": "one", "b": "two"}) || h.Stale != stale || time.Since(h.At) > time.Minute {
				return fmt.Errorf("%+v", h)
			}
			return nil
		}
	}
	until(t, heard(false))
	r.Kill()
	until(t, heard(true))
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, heard(false))
	if h := openLate(t, Options{URL: "redis://127.0.0.1:1"}).Heard(); len(h.Peers) > 0 || !h.At.IsZero() || !h.Stale {
		t.Errorf("heard from nobody: %+v", h)
	}
}
