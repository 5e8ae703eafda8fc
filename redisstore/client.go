package redisstore

import "github.com/redis/rueidis"

// Client returns the store's current client, for callers that keep other data beside the counters, or ErrUnavailable until Redis
// was reached. Ask for it each time, since Sentinels may name another primary, and don't close it.
func (s *Store) Client() (rueidis.Client, error) {
	c := s.client.Load()
	if c == nil {
		return nil, s.joiners[0].shard.Load().unavailable()
	}
	return *c, nil
}

// Place names where the keys are: hosts, under Sentinels the primary's name, and database. It
// doesn't depend on user, password or certificate.
func (s *Store) Place() string { return s.address.place() }

// Prefix begins the name of every key.
func (s *Store) Prefix() string { return s.prefix }

// Lost is why nothing can be kept now, or nil. In a Cluster it is always nil, though some servers may be lost.
func (s *Store) Lost() error {
	if sh := s.joiners[0].shard.Load(); len(s.joiners) == 1 && sh.open.Load() {
		return sh.unavailable()
	}
	return nil
}

// Full has the log say that Redis has no memory for something new, and is the error of that: ErrUnavailable, and
// counter.ErrNoRoom.
func (s *Store) Full() error {
	s.tell(shortOfMemory)
	return errFull
}
