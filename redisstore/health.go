package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Health is the state of a store at one moment. It contains no password.
type Health struct {
	// URL is the store's URL without passwords.
	URL string
	// Up means that every shard can be reached. Charges that need a shard that can't be reached fail.
	Up bool
	// Since is when the first of the shards that can't be reached was lost; zero if all can be reached.
	Since time.Time
	// Nodes is how many nodes use this Redis. See [Store.Nodes].
	Nodes int
	// Shards are the primaries of a Cluster in the order of their hash slots, or else the only server. Hash slots that no
	// server serves come last, as one entry.
	Shards []ShardHealth
	// Rejected is why the newest credentials in the files that the URL names aren't in use, or "". The previous ones stay in
	// use.
	Rejected string
	// Unserved is how many of the hash slots in use have no server.
	Unserved int
}

// ShardHealth is the state of one server.
type ShardHealth struct {
	// Name is the server's address. Under Sentinels it is their name for the primary.
	Name string
	Up   bool
	// Since is when Up last changed; zero if it never did.
	Since time.Time
	// Error is why the server can't be reached, or "".
	Error string
	// Doubted means that the server is called as usual, but its last call failed, or none has succeeded yet. After three
	// failures in a row, it is no longer Up.
	Doubted bool
	// Keys is roughly how many keys the server's database has, as of the last heartbeat that it answered; 0 if it answered
	// none. For hash slots that no server serves, it is their share of all keys.
	Keys int64
	// Evicts is the maxmemory-policy by which the server evicts keys when it is full, such as allkeys-lru. An evicted counter
	// starts from zero, so a blocked client is free again. It is "" if the policy is noeviction, or isn't known.
	Evicts string
	ShardStats
}

// Health returns the store's state, as its charges and probes last found it. It makes no call and never waits.
func (s *Store) Health() Health {
	h := Health{URL: s.address.shown, Up: true, Nodes: s.Nodes()}
	if why := s.rejected.Load(); why != nil {
		h.Rejected = *why
	}
	for _, sh := range s.shards() {
		one := s.shardHealth(sh)
		h.Shards = append(h.Shards, one)
		if one.Up {
			continue
		}
		h.Up = false
		if h.Since.IsZero() || !one.Since.IsZero() && one.Since.Before(h.Since) {
			h.Since = one.Since
		}
	}
	if lost, n := s.unservedSlots(); n > 0 {
		if h.Up || lost.Since.Before(h.Since) {
			h.Since = lost.Since
		}
		h.Up, h.Unserved, h.Shards = false, n, append(h.Shards, lost)
	}
	return h
}

// shards returns the shards that the joiners use now, in the order of their hash slots.
func (s *Store) shards() (all []*shard) {
	seen := map[*shard]bool{}
	for i := range s.joiners {
		if sh := s.joiners[i].shard.Load(); !seen[sh] {
			seen[sh] = true
			all = append(all, sh)
		}
	}
	return all
}

// String is the store's URL without passwords.
func (s *Store) String() string { return s.address.shown }

// reached reports whether Redis was ever reached. Until then, no shard decides anything.
func (s *Store) reached() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

func (s *Store) shardHealth(sh *shard) ShardHealth {
	reached := s.reached()
	h := ShardHealth{Name: sh.name, Up: reached && !sh.open.Load(), Keys: max(0, sh.keys.Load()), ShardStats: sh.tally.stats()}
	if evicts := sh.evicts.Load(); evicts != nil {
		h.Evicts = *evicts
	}
	if !reached {
		sh = s.first // a Cluster's shards may be known before any of them can be used
	}
	if at := sh.since.Load(); at != 0 {
		h.Since = time.UnixMicro(at)
	}
	if h.Up {
		h.Doubted = sh.fails.Load() > 0
		return h
	}
	if cause := sh.cause.Load(); cause != nil {
		h.Error = *cause
	}
	return h
}

// server names the only server of a store without a Cluster: see [ShardHealth].
func (a *address) server() string {
	if a.option.Sentinel.MasterSet != "" {
		return a.option.Sentinel.MasterSet
	}
	return strings.Join(a.option.InitAddress, ",")
}

// CPU returns the processor time that Redis has used since it started, from INFO over a connection of its own. It returns an
// error under Sentinels and in a Cluster, which have several servers.
func (s *Store) CPU(ctx context.Context) (time.Duration, error) {
	if !s.address.option.ForceSingleClient {
		return 0, errors.New("not measured for Sentinels and Clusters: there are several servers")
	}
	o := s.address.option
	if end, ok := ctx.Deadline(); ok { // the client's own timeouts must not end before the caller's, also while it connects
		left := time.Until(end)
		o.ConnWriteTimeout, o.Dialer.Timeout = max(o.ConnWriteTimeout, left), max(o.Dialer.Timeout, left)
	}
	c, err := rueidis.NewClient(o)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer c.Close()
	all, err := info(ctx, c, "cpu")
	if err != nil {
		return 0, fmt.Errorf("INFO cpu: %w", err)
	}
	sys, errSys := strconv.ParseFloat(all["used_cpu_sys"], 64)
	user, errUser := strconv.ParseFloat(all["used_cpu_user"], 64)
	if err := errors.Join(errSys, errUser); err != nil {
		return 0, fmt.Errorf("INFO cpu: %w", err)
	}
	return time.Duration((sys + user) * float64(time.Second)), nil
}
