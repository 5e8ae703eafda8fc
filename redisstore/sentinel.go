package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/rediscall"
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
	primary string               // the address of the server in use
	client  rueidis.Client       // of that server
	old     string               // the address of the server before it
	moved   time.Time            // when primary took the place of old
}

// staleFor is how long it may take until all Sentinels know of a failover. Until then some name the old primary, which stays
// writable for up to 11 s.
const staleFor = 10 * time.Second

func newSentinels(o rueidis.ClientOption, current func() *credentials) *sentinels {
	s := &sentinels{servers: o, option: o, master: o.Sentinel.MasterSet}
	s.servers.Sentinel, s.servers.ForceSingleClient = rueidis.SentinelOption{}, true
	s.option.Sentinel, s.option.ForceSingleClient = rueidis.SentinelOption{}, true
	s.option.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{Username: o.Sentinel.Username, Password: current().sentinelPassword}, nil
	}
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
	if addr == s.primary || addr == s.old && time.Since(s.moved) < staleFor && isPrimary(ctx, s.client) == nil {
		return nil, nil
	}
	c, err := dialOne(s.servers, addr)
	if err != nil {
		return nil, err
	}
	if err := isPrimary(ctx, c); err != nil {
		c.Close()
		return nil, err
	}
	return s.use(c, addr), nil
}

func (s *sentinels) use(c rueidis.Client, addr string) rueidis.Client {
	s.old, s.moved, s.primary, s.client = s.primary, time.Now(), addr, c
	return c
}

// isPrimary returns nil if a server says that it is a primary.
func isPrimary(ctx context.Context, c rueidis.Client) error {
	role, err := c.Do(ctx, c.B().Role().Build()).ToArray()
	if err != nil {
		return err
	}
	name, err := role[0].ToString()
	if err == nil && name != "master" {
		err = errNotPrimary
	}
	return err
}

// promotion waits until a replica that a Sentinel has selected is a primary, and returns a client of it. The Sentinels name it
// about a second later, and all that is written to the old primary meanwhile is lost.
func (s *sentinels) promotion(ctx context.Context, addr string) (rueidis.Client, error) {
	if addr == s.primary {
		return nil, nil
	}
	c, err := dialOne(s.servers, addr)
	if err != nil {
		return nil, err
	}
	for isPrimary(ctx, c) != nil { // also when the connection is lost: a Sentinel ends all of them when it promotes a server
		if !rediscall.Sleep(ctx, rediscall.Jittered(5*time.Millisecond)) {
			c.Close()
			return nil, errNotPrimary
		}
	}
	return s.use(c, addr), nil
}

func dialOne(o rueidis.ClientOption, addr string) (rueidis.Client, error) {
	o.InitAddress = []string{addr}
	return rueidis.NewClient(o)
}

// followPrimary keeps the client where the primary is.
func (s *Store) followPrimary() {
	for _, addr := range s.sentinels.option.InitAddress {
		o := s.sentinels.option
		s.running.Go(func() { s.hearFailovers(o, addr) })
	}
	for s.await(mapEvery) {
		var c rueidis.Client
		var err error
		if addr := s.selected.Swap(nil); addr != nil {
			ctx, cancel := context.WithTimeout(s.life, 3*time.Second) // a promotion takes about 100 ms
			c, err = s.sentinels.promotion(ctx, *addr)
			cancel()
		} else {
			if s.joiners[0].shard.Load().open.Load() {
				s.sentinels.next() // the one that was asked last may be cut off itself, and not know
			}
			ctx, cancel := context.WithTimeout(s.life, time.Second)
			c, err = s.sentinels.find(ctx)
			cancel()
		}
		if err != nil || c == nil {
			continue // what was known stays
		}
		s.logger.Info("redis has another primary", "store", s.address.shown, "primary", s.sentinels.primary)
		old := *s.client.Swap(&c)
		s.background(func() {
			rediscall.Sleep(s.life, 100*time.Millisecond) // so that calls which have just got this client can still be sent
			old.Close()                                   // which may wait a second for a server that is silent
		})
	}
}

// hearFailovers listens to a Sentinel. Only the one that conducts a failover tells which replica it is about to promote, so the
// store listens to all of them.
func (s *Store) hearFailovers(o rueidis.ClientOption, addr string) {
	for {
		c, err := dialOne(o, addr)
		if err == nil {
			err = c.Receive(s.life, c.B().Subscribe().Channel("+selected-slave", "+switch-master").Build(), s.heardOfFailover)
			c.Close()
		}
		if s.life.Err() != nil {
			return
		}
		s.tell("can't listen to a sentinel: a planned failover may lose more charges", "sentinel", addr, "error", err)
		if !rediscall.Sleep(s.life, rediscall.Jittered(time.Second)) {
			return
		}
	}
}

// heardOfFailover has followPrimary look for the primary at once. These are the messages:
//
//	+selected-slave: slave NAME IP PORT @ MASTER IP PORT
//	+switch-master: MASTER OLD-IP OLD-PORT NEW-IP NEW-PORT
func (s *Store) heardOfFailover(m rueidis.PubSubMessage) {
	master := s.address.option.Sentinel.MasterSet
	f := strings.Fields(m.Message)
	switch {
	case m.Channel == "+selected-slave" && len(f) == 8 && f[5] == master:
		addr := net.JoinHostPort(f[2], f[3])
		s.selected.Store(&addr)
		s.lookAgain()
	case m.Channel == "+switch-master" && len(f) == 5 && f[0] == master:
		s.lookAgain()
	}
}

func (s *sentinels) close() {
	if s.open != nil {
		s.open.Close()
	}
}
