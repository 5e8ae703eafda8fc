package redisstore

import "github.com/redis/rueidis"

// Client returns the store's current client, for callers that keep other data beside the counters. Until Redis is reached, it
// returns ErrUnavailable. Call Client each time, since Sentinels may name another primary, and don't close the client.
func (s *Store) Client() (rueidis.Client, error) {
	c := s.client.Load()
	if c == nil {
		return nil, s.joiners[0].shard.Load().unavailable()
	}
	return *c, nil
}

// Place identifies where the keys are: the hosts, under Sentinels the name of the primary, and the database. It doesn't depend
// on user, password or certificate.
func (s *Store) Place() string { return s.address.place() }

// Prefix returns the text that the name of every key begins with.
func (s *Store) Prefix() string { return s.prefix }

// Lost returns why Redis can't be reached now, or nil. For a Cluster it is always nil, even if some servers are lost.
func (s *Store) Lost() error {
	if sh := s.joiners[0].shard.Load(); len(s.joiners) == 1 && sh.open.Load() {
		return sh.unavailable()
	}
	return nil
}

// Full logs that Redis has no memory for new keys, and returns the error for that. For errors.Is, it is both ErrUnavailable
// and counter.ErrNoRoom.
func (s *Store) Full() error {
	s.tell(shortOfMemory)
	return errFull
}
