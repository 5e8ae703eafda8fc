package region

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/redisstore"
)

// fill makes servers run out of memory, or undoes that.
func fill(t *testing.T, full bool, servers ...*redistest.Server) {
	t.Helper()
	for _, r := range servers {
		if _, err := r.Do(t.Context(), "CONFIG", "SET", "maxmemory", map[bool]string{true: "1", false: "0"}[full]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCellsOfAFullRedis checks that in a full Redis, existing values can change, with their TTLs. If a call would also
// add a value, nothing changes.
func TestCellsOfAFullRedis(t *testing.T) {
	one, alone := openRedis(t)
	cluster := redistest.NewCluster(t, redistest.Options{})
	many, err := redisstore.New(redisstore.Options{URL: "redis-cluster://" + strings.Join(cluster.Addrs(), ","), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(many.Close)
	<-many.Tried()
	for name, c := range map[string]struct {
		store   *redisstore.Store
		servers []*redistest.Server
	}{"alone": {alone, []*redistest.Server{one}}, "cluster": {many, cluster.Nodes[:3]}} {
		t.Run(name, func(t *testing.T) {
			cells := RedisCells(c.store)
			keys := []string{"{k}", "{k}:a", "{k}:b"}
			write := func(want error, texts ...string) {
				t.Helper()
				err := cells.Update(t.Context(), keys, func(values [][]byte, _ int64) (out []Cell) {
					for i, text := range texts {
						ttl := time.Hour
						if text == "long" {
							ttl *= 2
						}
						if text == "=" {
							text = string(values[i])
						}
						out = append(out, Cell{[]byte(text), ttl})
					}
					return out
				})
				if !errors.Is(err, want) {
					t.Errorf("%q: %v, want %v", texts, err, want)
				}
			}
			read := func(want ...string) {
				t.Helper()
				_ = cells.Update(t.Context(), keys, func(values [][]byte, _ int64) (out []Cell) {
					if got := fmt.Sprintf("%s", values); got != fmt.Sprint(want) {
						t.Errorf("%s is there, want %s", got, want)
					}
					for _, v := range values {
						out = append(out, Cell{Value: v})
					}
					return out
				})
			}
			write(nil, "1", "2", "")
			fill(t, true, c.servers...)
			write(nil, "3", "4", "")
			read("3", "4", "")
			write(nil, "long", "=", "")
			write(nil, "5", "=", "")
			for key, least := range map[string]time.Duration{"{k}": 2 * time.Hour, "{k}:a": time.Hour} {
				if d := keptFor(t, c.servers, c.store.Prefix()+key); d > least || d < least-time.Minute {
					t.Errorf("%s is kept for %v, want %v", key, d, least)
				}
			}
			for _, texts := range [][]string{{"6", "=", "7"}, {"6", "", "7"}, {"", "", "7"}, {"=", "=", "7"}} {
				write(counter.ErrNoRoom, texts...)
				read("5", "4", "")
			}
			write(nil, "8", "", "")
			read("8", "", "")
			write(counter.ErrNoRoom, "9", "9", "")
			read("8", "", "")
			fill(t, false, c.servers...)
			write(nil, "9", "9", "9")
			read("9", "9", "9")
		})
	}
}

// keptFor returns a key's TTL from the server that has it.
func keptFor(t *testing.T, servers []*redistest.Server, key string) time.Duration {
	t.Helper()
	for _, r := range servers {
		if ms, err := r.Do(t.Context(), "PTTL", key); err == nil {
			return time.Duration(ms.(int64)) * time.Millisecond
		}
	}
	t.Fatal("no server has", key)
	return 0
}

// TestSharedLimitsOfAFullRedis checks that in a full Redis, shared limits still hold for clients that have a stake.
// Requests that need a new stake fail, without affecting others.
func TestSharedLimitsOfAFullRedis(t *testing.T) {
	redis, store := openRedis(t)
	us := world(t, time.Now, "us", "eu")[0]
	us.cut.Store(true)
	s := NewStore(us.own, us.link, RedisCells(store))
	defer s.stakes.close()
	for i, limit := range []counter.Limit{budget, {Algorithm: counter.TokenBucket, Count: 1000, Window: 1000 * time.Hour}} {
		fill(t, false, redis)
		p := sharedPolicy(t, "p", limit)
		p = p.With(func(d *counter.Definition) { d.ID = uint64(i + 1) })
		take(s, asks(p, "known", 900))
		take(s, asks(p, "blocked", 950))
		fill(t, true, redis)
		if r := take(s, asks(p, "known", 1))[0]; r.Err != nil || !r.Allowed || r.Remaining != 49 {
			t.Errorf("known: %+v", r)
		}
		if r := take(s, asks(p, "known", 50))[0]; r.Err != nil || r.Allowed {
			t.Errorf("known, and too much: %+v", r)
		}
		if r := take(s, asks(p, "blocked", 1))[0]; r.Err != nil || r.Allowed || r.RetryAfter <= 0 {
			t.Errorf("blocked: %+v", r)
		}
		if r := take(s, asks(p, "new", 1))[0]; !errors.Is(r.Err, counter.ErrNoRoom) {
			t.Errorf("new: %+v", r)
		}
		held := asks(p, "known", 1)
		held.Hold = &counter.Hold{ID: counter.Once{1}, For: time.Hour}
		if r := take(s, held)[0]; !errors.Is(r.Err, counter.ErrNoRoom) {
			t.Errorf("with a hold that can't be kept: %+v", r)
		}
		if r := take(s, asks(p, "known", 49))[0]; r.Err != nil || !r.Allowed || r.Remaining != 0 {
			t.Errorf("what couldn't be kept was taken: %+v", r)
		}
		if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{{Counter: held.Counter, N: 9}}); err != nil {
			t.Error(err)
		}
	}
	if !store.Health().Up {
		t.Error("held against Redis")
	}
}

// TestChangesTogetherInAFullRedis checks that of changes that share a call, one that needs a new record fails, and the
// others succeed.
func TestChangesTogetherInAFullRedis(t *testing.T) {
	redis, store := openRedis(t)
	us := world(t, time.Now, "us", "eu")[0]
	s := newStakes(us.link, RedisCells(store))
	defer s.close()
	p := sharedPolicy(t, "p", budget)
	take := func(k *stake.Stake, share stake.Share, now int64, records []*Cell) {
		k.Take(p, share, now, 1)
		for _, r := range records {
			*r = Cell{[]byte("1"), time.Hour}
		}
	}
	if err := s.updateWith(t.Context(), "{k}", p, nil, take); err != nil {
		t.Fatal(err)
	}
	fill(t, true, redis)
	var list []*change
	for _, records := range [][]string{nil, {"{k}:new"}, nil} {
		list = append(list, &change{p, records, take, make(chan error, 1)})
	}
	s.mu.Lock() // the previous change may not have left the queue yet
	s.queues["{k}"] = list
	s.mu.Unlock()
	s.work("{k}")
	for i, c := range list {
		if err := <-c.done; errors.Is(err, counter.ErrNoRoom) != (i == 1) || i != 1 && err != nil {
			t.Errorf("change %d: %v", i, err)
		}
	}
	var used int64
	if err := s.update(t.Context(), "{k}", p, func(k *stake.Stake, _ stake.Share, _ int64) { used = k.Level }); err != nil || used != 3 {
		t.Errorf("%d are used, want 3: %v", used, err)
	}
}
