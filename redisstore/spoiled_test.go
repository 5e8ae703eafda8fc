package redisstore

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/storetest"
)

// lines is a log that tests can read.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// wantOneAMinute checks that the text was logged at least once since began, and at most once a minute.
func (l *lines) wantOneAMinute(t *testing.T, what string, began time.Time) {
	t.Helper()
	if n, most := l.count(what), 1+int(time.Since(began)/time.Minute); n < 1 || n > most {
		t.Errorf("%d lines say %q, want 1 to %d", n, what, most)
	}
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// TestASpoiledCounterConcernsNobodyElse checks that a counter with invalid data starts over. The acts in the same call are
// counted once, and the breaker counts no failure.
func TestASpoiledCounterConcernsNobodyElse(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	var log lines
	began := time.Now()
	s := open(t, Options{URL: "redis://" + r.Addr, Logger: log.logger()})
	for _, a := range storetest.Algorithms {
		p := policy(t, fmt.Sprint("p", a), a, 10, time.Hour)
		f := field(p)
		name := string(f[:])
		if a == counter.SlidingLog {
			name = "h"
		}
		spoils := map[string][]string{"text": {"SET", "x"}, "list": {"RPUSH", "a", "b"}, "set": {"ZADD", "1", "a"}}
		for _, n := range []int{0, 1, 7, 8, 11, 13, 14, 17, 24, 27, 41, 1000} {
			if a == counter.SlidingLog && n > 29 && (n-29)%13 == 0 {
				continue
			}
			spoils[fmt.Sprint(n, " bytes")] = []string{"HSET", name, strings.Repeat("\xff", n)}
		}
		for what, command := range spoils {
			for _, kind := range []kind{kindTake, kindGiveBack, kindReset} {
				spoiled := fmt.Sprint(a, what, kind)
				key := keyOf(s, p, spoiled)
				do(t, r, append([]string{command[0], key}, command[1:]...)...)
				var acts []*act
				for i := range 64 {
					one := &act{charges: []charge{{policy: p, key: keyOf(s, p, fmt.Sprint(spoiled, i)), n: 1}}}
					if i == 31 {
						one = &act{kind: kind, charges: []charge{{policy: p, key: key, n: 1, slot: 1}}}
					}
					acts = append(acts, one)
				}
				if err := s.call(t.Context(), &s.joiners[0], acts); err != nil {
					t.Fatalf("%s, %s, act %d: %v", a, what, kind, err)
				}
				for i := range 64 {
					if got := used(t, s, p, fmt.Sprint(spoiled, i)); got != 1 && i != 31 {
						t.Fatalf("%s, %s: a neighbour has %d used", a, what, got)
					}
				}
				mustTake(t, s, charge1(p, spoiled))
				want := int64(1)
				if kind == kindTake {
					want = 2
				}
				if got := used(t, s, p, spoiled); got != want {
					t.Errorf("%s, %s, act %d: %d used afterwards, want %d", a, what, kind, got, want)
				}
			}
		}
	}
	if h := s.Health(); !h.Up || s.joiners[0].shard.Load().fails.Load() != 0 {
		t.Errorf("spoiled counters are held against Redis: %+v", h)
	}
	log.wantOneAMinute(t, "made no sense", began)
	lasting(t, r)
}

// TestALogOfRubbishEnds checks that every act on a log of random bytes gets a result.
func TestALogOfRubbishEnds(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
	p := policy(t, "p", counter.SlidingLog, 10_000, time.Hour)
	key := keyOf(s, p, "s")
	rnd := rand.New(rand.NewPCG(*seed, 1))
	for i := range 300 {
		do(t, r, "DEL", key)
		fill(t, s, p, "s", now.UnixMicro(), 1000, 1+rnd.IntN(600))
		now = now.Add(time.Second)
		all := do(t, r, "HGETALL", key).([]any)
		for range 1 + rnd.IntN(3) {
			at := 2 * rnd.IntN(len(all)/2)
			if rnd.IntN(3) == 0 {
				for all[at] != "h" {
					at = (at + 2) % len(all)
				}
			}
			if rnd.IntN(4) == 0 && all[at] != "h" {
				do(t, r, "HDEL", key, all[at].(string))
				continue
			}
			text := []byte(all[at+1].(string))
			for range 1 + rnd.IntN(8) {
				text[rnd.IntN(len(text))] = byte(rnd.IntN(256))
			}
			do(t, r, "HSET", key, all[at].(string), string(text))
		}
		for range 8 {
			c := charge1(p, "s")
			c.N = 1 + rnd.Int64N(10_000)
			if res := take(t.Context(), s, c)[0]; res.Err != nil {
				t.Fatalf("log %d, seed %d: %v", i, *seed, res.Err)
			}
			back := counter.Return{Counter: c.Counter, N: 1, Slot: now.UnixMicro() - rnd.Int64N(700_000)}
			if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{back}); err != nil {
				t.Fatalf("log %d, seed %d: %v", i, *seed, err)
			}
			now = now.Add(time.Duration(rnd.IntN(2000)-500) * time.Second)
		}
	}
}

// TestASpoiledSecretIsReplaced checks that nodes start and count although the secret in Redis is invalid.
func TestASpoiledSecretIsReplaced(t *testing.T) {
	for what, commands := range map[string][][]string{
		"empty":          {{"SET", "weir{nodes}secret", ""}},
		"short":          {{"SET", "weir{nodes}secret", "short"}},
		"a list":         {{"RPUSH", "weir{nodes}secret", "a"}},
		"nodes as text":  {{"SET", "weir{nodes}", "x"}},
		"both as a hash": {{"HSET", "weir{nodes}", "a", "b"}, {"HSET", "weir{nodes}secret", "a", "b"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := redistest.New(t, redistest.Options{})
			for _, c := range commands {
				do(t, r, c...)
			}
			var log lines
			a := open(t, Options{URL: "redis://" + r.Addr, Logger: log.logger()})
			b := open(t, Options{URL: "redis://" + r.Addr})
			if len(a.Secret()) < 16 || string(a.Secret()) != string(b.Secret()) {
				t.Errorf("secrets of %d and %d bytes", len(a.Secret()), len(b.Secret()))
			}
			p := policy(t, "p", counter.TokenBucket, 10, time.Hour)
			mustTake(t, a, charge1(p, "s"))
			mustTake(t, b, charge1(p, "s"))
			if got := used(t, a, p, "s"); got != 2 {
				t.Errorf("%d used, want 2", got)
			}
			if want := strings.Contains(commands[len(commands)-1][1], "secret"); (log.count("secret in redis was") == 1) != want {
				t.Errorf("said so: %v, want %v", !want, want)
			}
		})
	}
	if _, err := New(Options{URL: "redis://127.0.0.1:1", Secret: []byte{}}); err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("an empty secret was given: %v", err)
	}
}
