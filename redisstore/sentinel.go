package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/rueidis"
)

// sentinels asks Sentinels for the primary that they watch over. It is used by one goroutine at a time.
//
// rueidis has a client that does. But while there is no primary, each of its
// attempts to find one starts more of them, which all go on until there is one: its
// goroutines grow for as long as an outage lasts.
type sentinels struct {
	servers rueidis.ClientOption // of the servers that they watch over
	option  rueidis.ClientOption // of Sentinels; the first of InitAddress is asked next
	master  string               // the name of the primary
	open    rueidis.Client       // to the Sentinel that was asked last; nil: to none
	primary string               // the address that they gave last
}

func newSentinels(o rueidis.ClientOption) *sentinels {
	s := &sentinels{servers: o, option: o, master: o.Sentinel.MasterSet}
	s.servers.Sentinel, s.servers.ForceSingleClient = rueidis.SentinelOption{}, true
	s.option.Sentinel, s.option.ForceSingleClient = rueidis.SentinelOption{}, true
	s.option.Username, s.option.Password, s.option.AuthCredentialsFn = o.Sentinel.Username, o.Sentinel.Password, nil
	s.option.Dialer, s.option.TLSConfig, s.option.SelectDB = o.Sentinel.Dialer, o.Sentinel.TLSConfig, 0
	return s
}

// find returns a client of the primary if it isn't where it was, and otherwise nil. It asks
// one Sentinel after the other until one of them names a server that agrees.
func (s *sentinels) find(ctx context.Context) (client rueidis.Client, err error) {
	for range s.option.InitAddress {
		if client, err = s.ask(ctx); err == nil {
			return client, nil
		}
		s.next()
	}
	return nil, err
}

// next has the next Sentinel asked, and this one last.
func (s *sentinels) next() {
	if s.open != nil {
		s.open.Close()
		s.open = nil
	}
	all := s.option.InitAddress
	s.option.InitAddress = append(all[1:len(all):len(all)], all[0])
}

var errNotPrimary = errors.New("the server that the Sentinel names isn't a primary yet")

func (s *sentinels) ask(ctx context.Context) (rueidis.Client, error) {
	if s.open == nil {
		c, err := dialOne(s.option, s.option.InitAddress[0])
		if err != nil {
			return nil, err
		}
		s.open = c
	}
	at, err := s.open.Do(ctx, s.open.B().SentinelGetMasterAddrByName().Master(s.master).Build()).AsStrSlice()
	switch {
	case rueidis.IsRedisNil(err) || err == nil && len(at) != 2:
		return nil, fmt.Errorf("the Sentinel %s knows no primary named %q", s.option.InitAddress[0], s.master)
	case err != nil:
		return nil, err
	}
	addr := net.JoinHostPort(at[0], at[1])
	if addr == s.primary {
		return nil, nil
	}
	c, err := dialOne(s.servers, addr)
	if err != nil {
		return nil, err
	}
	role, err := c.Do(ctx, c.B().Role().Build()).ToArray()
	if err == nil {
		var name string
		if name, err = role[0].ToString(); err == nil && name != "master" {
			err = errNotPrimary
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	s.primary = addr
	return c, nil
}

func dialOne(o rueidis.ClientOption, addr string) (rueidis.Client, error) {
	o.InitAddress = []string{addr}
	return rueidis.NewClient(o)
}

// followPrimary keeps the client where the primary is.
func (s *Store) followPrimary() {
	for s.await(mapEvery) {
		if s.lanes[0].shard.Load().open.Load() {
			s.sentinels.next() // the one that was asked last may be cut off itself, and not know
		}
		ctx, cancel := context.WithTimeout(s.life, time.Second)
		c, err := s.sentinels.find(ctx)
		cancel()
		if err != nil || c == nil {
			continue // what was known stays
		}
		s.logger.Info("redis has another primary", "store", s.address.shown, "primary", s.sentinels.primary)
		old := *s.client.Swap(&c)
		s.background(old.Close) // which may wait a second for a server that is silent
	}
}

func (s *sentinels) close() {
	if s.open != nil {
		s.open.Close()
	}
}
