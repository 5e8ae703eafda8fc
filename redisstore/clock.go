package redisstore

import (
	"sync/atomic"
	"time"
)

// clock estimates Redis' time. It advances with the node's monotonic clock, so changes of the node's wall clock don't affect
// it.
type clock struct {
	last atomic.Pointer[sight] // nil: none yet
}

// sight is one observation: Redis' time was redis when the node's time was mine.
type sight struct{ redis, mine time.Time }

func (c *clock) now() time.Time {
	s := c.last.Load()
	if s == nil {
		return time.Now()
	}
	return s.redis.Add(time.Since(s.mine))
}

// see takes in the time that Redis reported in a call that was sent and came back at the given times. When the call came back,
// Redis' time was between redis and redis plus the length of the call. An estimate within that range stays as it is, since a
// slow call says less than a quick one before it. Only one goroutine may call see.
func (c *clock) see(redis, sent, back time.Time) {
	latest := redis.Add(back.Sub(sent))
	known := redis.Add(back.Sub(sent) / 2)
	if s := c.last.Load(); s != nil {
		switch known = s.redis.Add(back.Sub(s.mine)); {
		case known.Before(redis):
			known = redis
		case known.After(latest):
			known = latest
		default:
			return
		}
	}
	c.last.Store(&sight{known, back})
}

// Now returns the time by Redis' clock, for dates that nodes share, since the nodes' own clocks may be wrong. It makes no call,
// because heartbeats report the time. It is off by at most half the length of the first heartbeat. Until Redis is reached, Now
// returns this node's time.
func (s *Store) Now() time.Time {
	if s.clock != nil {
		return s.clock()
	}
	return s.reckoned.now()
}

// offBy is how far a node's clock may be off before a warning is logged.
const offBy = time.Second

// setClock takes in Redis' time, and logs a warning once when this node's clock is off by more than offBy.
func (s *Store) setClock(redis, sent time.Time) {
	s.reckoned.see(redis, sent, time.Now())
	off := time.Until(s.reckoned.now()).Round(100 * time.Millisecond)
	if wrong := off.Abs() > offBy; wrong != s.clockOff {
		s.clockOff = wrong
		if wrong {
			s.logger.Warn("the clock of this node isn't redis': what nodes share goes by redis', but tokens and certificates are checked by this one", "redis is ahead by", off.String())
		}
	}
}
