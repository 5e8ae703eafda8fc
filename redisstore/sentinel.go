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

// sentinels finds the primary by asking Sentinels. Only one goroutine uses it at a time.
//
// We don't use rueidis' own client for Sentinels: while there is no primary, it starts more and more goroutines that look for
// one.
type sentinels struct {
	servers rueidis.ClientOption // to connect to the servers that the Sentinels watch
	option  rueidis.ClientOption // to connect to Sentinels; the first of InitAddress is asked next
	master  string               // the name of the primary
	open    rueidis.Client       // connected to the Sentinel that was asked last, or nil
	primary string               // the address of the primary in use
	client  rueidis.Client       // connected to primary
	old     string               // the address of the primary before it
	moved   time.Time            // when primary replaced old

	selected atomic.Pointer[string] // the address of a replica that Sentinels are about to promote; nil if there is none
}

// staleFor is how long after a failover some Sentinels may still name the old primary, which accepts writes for up to 11 s.
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

// find returns a client of the primary if the primary has moved, and otherwise nil. It asks one Sentinel after another
// until one names a server that calls itself a primary. If a Sentinel has selected a replica, find waits until the
// replica is a primary, which takes about 100 ms. The Sentinels name it only about a second later, and writes to the
// old primary in that second are lost.
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

// next puts the current Sentinel last, so that another one is asked.
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

// use returns a client of a server if the server is a primary. If it soon will be, use waits for that.
func (s *sentinels) use(ctx context.Context, addr string, soon bool) (rueidis.Client, error) {
	c, err := dialOne(s.servers, addr)
	if err != nil {
		return nil, err
	}
	err = isPrimary(ctx, c)
	// Also try again when the connection is lost: a Sentinel closes all connections of a server that it promotes.
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

// hearFailovers listens to one Sentinel. The store listens to all of them, because only the one that conducts a failover
// announces which replica it will promote.
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
