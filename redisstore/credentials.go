package redisstore

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/rediscall"
)

// filesEvery is how often the files are read.
const filesEvery = time.Second

// connectionOption returns a parsed option for a client. Its new connections use the passwords, the authority and the client's
// certificate of the current option.
func (s *Store) connectionOption(parsed rueidis.ClientOption, current func() *rueidis.ClientOption) rueidis.ClientOption {
	o := parsed
	// The client must not give up before the caller does, nor while it connects for one.
	o.ConnWriteTimeout = max(o.ConnWriteTimeout, s.timeout)
	o.Dialer.Timeout = max(o.Dialer.Timeout, s.timeout)
	o.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{Username: parsed.Username, Password: current().Password}, nil
	}
	o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		if t != nil {
			t = current().TLSConfig
		}
		return parsed.DialCtxFn(ctx, addr, d, t)
	}
	return o
}

// Look reads the files of the password and of the certificates now, instead of within a second.
func (s *Store) Look() { s.reread.set() }

// notInUse is logged once a minute, and for each change of the files.
const notInUse = "new redis credentials aren't in use: those before them stay"

// followFiles has new connections use what the files hold, soon after they change. New credentials are used once Redis has
// accepted them on a connection. So it doesn't matter whether the files or Redis are changed first, and a file with a mistake
// does no harm while the old credentials are good.
func (s *Store) followFiles(url string) {
	used := s.address.files
	last := used
	for {
		select {
		case <-s.life.Done():
			return
		case <-time.After(filesEvery):
		case <-s.reread:
			s.told.Delete(notInUse)
		}
		held, err := s.readStable(used)
		if s.life.Err() != nil {
			return
		}
		if !maps.Equal(held, last) {
			s.told.Delete(notInUse)
		}
		last = held
		if err == nil && !maps.Equal(held, used) {
			var a address
			if a, err = parseAddress(url); err == nil {
				err = s.accepted(a.option)
			}
			if err == nil {
				s.credentials.Store(&a.option)
				used = a.files
				s.logger.Info("redis credentials applied", "store", s.address.shown)
			}
		}
		if err != nil {
			text := err.Error()
			s.rejected.Store(&text)
			s.tell(notInUse, "store", s.address.shown, "error", text)
			continue
		}
		s.rejected.Store(nil)
	}
}

// accepted returns nil if a client with this parsed option can connect.
func (s *Store) accepted(parsed rueidis.ClientOption) error {
	current := func() *rueidis.ClientOption { return &parsed }
	o := s.connectionOption(parsed, current)
	ctx, cancel := context.WithTimeout(s.life, 2*o.Dialer.Timeout)
	defer cancel()
	var all *sentinels
	if o.Sentinel.MasterSet != "" {
		all = newSentinels(o, current)
		defer all.close()
	}
	c, err := newClient(ctx, o, all)
	if err == nil {
		c.Close()
	}
	return err
}

// readStable reads the files until two readings, a moment apart, agree. Many programs truncate a file before they write it.
func (s *Store) readStable(files map[string]string) (map[string]string, error) {
	before, err := readFiles(files)
	for err == nil && rediscall.Sleep(s.life, 20*time.Millisecond) {
		var after map[string]string
		if after, err = readFiles(files); err == nil && maps.Equal(before, after) {
			return after, nil
		}
		before = after
	}
	return nil, err
}

// readFiles reads the named files again.
func readFiles(files map[string]string) (map[string]string, error) {
	held := map[string]string{}
	for name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		held[name] = string(text)
	}
	return held, nil
}
