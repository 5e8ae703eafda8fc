package redisstore

import (
	"sync/atomic"
	"time"
)

// clock is Redis' time as this node knows it. It goes by the node's monotonic clock, so steps of the node's own time don't
// move it.
type clock struct {
	last atomic.Pointer[sight] // nil: none yet
}

// sight is what Redis' time was when this node's was mine.
type sight struct{ redis, mine time.Time }

func (c *clock) now() time.Time {
	s := c.last.Load()
	if s == nil {
		return time.Now()
	}
	return s.redis.Add(time.Since(s.mine))
}

// see takes in a time that Redis told between sent and back. By back it is as old as the call was long at most. A time that
// agrees with what is known already changes nothing: a slow answer tells less than a quick one did. It is called by one
// goroutine only.
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

// Now is the time by Redis' clock, for dates that nodes share, since their own clocks may be wrong. It makes no call: heartbeats
// tell the time, and it is off by at most half of what the first one took. Until Redis was reached, it is this node's time.
func (s *Store) Now() time.Time {
	if s.clock != nil {
		return s.clock()
	}
	return s.reckoned.now()
}

// offBy is how wrong a node's clock may be before it is worth a warning.
const offBy = time.Second

// setClock takes in Redis' time, and warns once if this node's is another.
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
