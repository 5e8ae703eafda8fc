package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/rediscall"
)

// credentials are what files hold of a store URL: the passwords, and with TLS the authority and the client's certificate. New
// connections use the ones that Redis accepted last.
type credentials struct {
	password         string
	sentinelPassword string
	tls              *tls.Config // nil without TLS
}

// credentialsOf returns those that an address was parsed with.
func credentialsOf(o rueidis.ClientOption) *credentials {
	return &credentials{o.Password, o.Sentinel.Password, o.TLSConfig}
}

// filesEvery is how often the files are read.
const filesEvery = time.Second

// connectionOption returns a parsed option for a client whose new connections use the current credentials.
func (s *Store) connectionOption(parsed rueidis.ClientOption, current func() *credentials) rueidis.ClientOption {
	o := parsed
	// The client must not give up before the caller does, nor while it connects for one.
	o.ConnWriteTimeout = max(o.ConnWriteTimeout, s.timeout)
	o.Dialer.Timeout = max(o.Dialer.Timeout, s.timeout)
	o.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{Username: parsed.Username, Password: current().password}, nil
	}
	o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		if t != nil {
			t = current().tls
		}
		return parsed.DialCtxFn(ctx, addr, d, t)
	}
	return o
}

// Look reads the files of the password and of the certificates now, instead of within a second.
func (s *Store) Look() {
	select {
	case s.reread <- struct{}{}:
	default: // it holds one
	}
}

// notInUse is logged once a minute, and for each change of the files.
const notInUse = "new redis credentials aren't in use: those before them stay"

// followFiles has new connections use what the files hold, soon after they change. New credentials are used once Redis has
// accepted them on a connection. So it doesn't matter whether the files or Redis are changed first, and a file with a mistake
// does no harm while the old credentials are good. used is the files' content, by parameter, from which the credentials in use
// were read.
func (s *Store) followFiles(url string, used map[string]string) {
	last := used
	for {
		select {
		case <-s.life.Done():
			return
		case <-time.After(filesEvery):
		case <-s.reread:
			s.told.Delete(notInUse)
		}
		held, err := s.readStable()
		if s.life.Err() != nil {
			return
		}
		if !maps.Equal(held, last) {
			s.told.Delete(notInUse)
		}
		last = held
		if err == nil && maps.Equal(held, used) {
			s.rejected.Store(nil)
			continue
		}
		if err == nil {
			err = s.useFiles(url)
		}
		if err != nil {
			text := err.Error()
			s.rejected.Store(&text)
			s.tell(notInUse, "store", s.address.shown, "error", text)
			continue
		}
		used = held
		s.rejected.Store(nil)
		s.logger.Info("redis credentials applied", "store", s.address.shown)
	}
}

// useFiles has new connections use the credentials in the files, if Redis accepts them.
func (s *Store) useFiles(url string) error {
	a, err := parseAddress(url)
	if err != nil {
		return err
	}
	fresh := credentialsOf(a.option)
	if err := s.accepted(a.option, func() *credentials { return fresh }); err != nil {
		return err
	}
	s.credentials.Store(fresh)
	return nil
}

// accepted returns nil if a client with this parsed option can connect.
func (s *Store) accepted(parsed rueidis.ClientOption, current func() *credentials) error {
	o := s.connectionOption(parsed, current)
	if o.Sentinel.MasterSet == "" {
		c, err := rueidis.NewClient(o)
		if err == nil {
			c.Close()
		}
		return err
	}
	ctx, cancel := context.WithTimeout(s.life, 2*o.Dialer.Timeout)
	defer cancel()
	all := newSentinels(o, current)
	defer all.close()
	c, err := all.find(ctx)
	if err == nil {
		c.Close()
	}
	return err
}

// readStable reads the files until two readings, a moment apart, agree. Many programs truncate a file before they write it.
func (s *Store) readStable() (map[string]string, error) {
	before, err := readFiles(s.address.files)
	for err == nil && rediscall.Sleep(s.life, 20*time.Millisecond) {
		var after map[string]string
		if after, err = readFiles(s.address.files); err == nil && maps.Equal(before, after) {
			return after, nil
		}
		before = after
	}
	return nil, err
}

// readAddress parses a store URL. held is what its files held before that, so that followFiles notices a change in between.
func readAddress(url string) (a address, held map[string]string, err error) {
	if a, err = parseAddress(url); err != nil || len(a.files) == 0 {
		return a, nil, err
	}
	if held, err = readFiles(a.files); err != nil {
		return a, nil, fmt.Errorf("store URL: %w", err)
	}
	a, err = parseAddress(url)
	return a, held, err
}

// readFiles returns the content of files, by their parameters in the store URL.
func readFiles(files map[string]string) (map[string]string, error) {
	held := map[string]string{}
	for parameter, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", parameter, err)
		}
		held[parameter] = string(text)
	}
	return held, nil
}
