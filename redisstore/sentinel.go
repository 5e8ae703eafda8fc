package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/rediscall"
)

// sentinels asks Sentinels for the primary that they watch over. It is used by one goroutine at a time.
//
// The client of rueidis for Sentinels starts more and more goroutines that look for a primary while there is none.
type sentinels struct {
	servers rueidis.ClientOption // of the servers that they watch over
	option  rueidis.ClientOption // of Sentinels; the first of InitAddress is asked next
	master  string               // the name of the primary
	open    rueidis.Client       // to the Sentinel that was asked last; nil: to none
	primary string               // the address of the server in use
	client  rueidis.Client       // of that server
	old     string               // the address of the server before it
	moved   time.Time            // when primary took the place of old

	selected atomic.Pointer[string] // the address of a replica that Sentinels are about to promote; nil if there is none
}

// staleFor is how long it may take until all Sentinels know of a failover. Until then some name the old primary, which stays
// writable for up to 11 s.
const staleFor = 10 * time.Second

func newSentinels(o rueidis.ClientOption, current func() *rueidis.ClientOption) *sentinels {
	s := &sentinels{servers: o, option: o, master: o.Sentinel.MasterSet}
	s.servers.Sentinel, s.servers.ForceSingleClient = rueidis.SentinelOption{}, true
	s.option.Sentinel, s.option.ForceSingleClient = rueidis.SentinelOption{}, true
	s.option.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{Username: o.Sentinel.Username, Password: current().Sentinel.Password}, nil
	}
	s.option.Dialer, s.option.TLSConfig, s.option.SelectDB = o.Sentinel.Dialer, o.Sentinel.TLSConfig, 0
	return s
}

// find returns a client of the primary if it isn't where it was, and otherwise nil. It asks
// one Sentinel after the other until one of them names a server that agrees.
//
// A replica that a Sentinel has selected is taken as soon as it is a primary, which it is in about 100 ms. The Sentinels name it
// about a second later, and all that is written to the old primary meanwhile is lost.
func (s *sentinels) find(ctx context.Context) (client rueidis.Client, err error) {
	if addr := s.selected.Swap(nil); addr != nil && *addr != s.primary {
		return s.use(ctx, *addr, true)
	}
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
	return s.use(ctx, addr, false)
}

// use returns a client of a primary, and waits until it is one if it soon will be.
func (s *sentinels) use(ctx context.Context, addr string, soon bool) (rueidis.Client, error) {
	c, err := dialOne(s.servers, addr)
	if err != nil {
		return nil, err
	}
	err = isPrimary(ctx, c)
	// Also when the connection is lost: a Sentinel ends all of them when it promotes a server.
	for err != nil && soon && rediscall.Sleep(ctx, rediscall.Jittered(5*time.Millisecond)) {
		err = isPrimary(ctx, c)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	s.old, s.moved, s.primary, s.client = s.primary, time.Now(), addr, c
	return c, nil
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

func dialOne(o rueidis.ClientOption, addr string) (rueidis.Client, error) {
	o.InitAddress = []string{addr}
	return rueidis.NewClient(o)
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

// heardOfFailover has the store look for the primary at once. These are the messages:
//
//	+selected-slave: slave NAME IP PORT @ MASTER IP PORT
//	+switch-master: MASTER OLD-IP OLD-PORT NEW-IP NEW-PORT
func (s *Store) heardOfFailover(m rueidis.PubSubMessage) {
	master := s.address.option.Sentinel.MasterSet
	f := strings.Fields(m.Message)
	switch {
	case m.Channel == "+selected-slave" && len(f) == 8 && f[5] == master:
		addr := net.JoinHostPort(f[2], f[3])
		s.sentinels.selected.Store(&addr)
		s.lost.set()
	case m.Channel == "+switch-master" && len(f) == 5 && f[0] == master:
		s.lost.set()
	}
}

func (s *sentinels) close() {
	if s.open != nil {
		s.open.Close()
	}
}
