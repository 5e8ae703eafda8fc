package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// filesEvery is how often the files that the URL names are read.
const filesEvery = time.Second

// settleFor is how long files must stay the same after a change. Many programs truncate a file before they write it.
const settleFor = 20 * time.Millisecond

// connectionOption returns a parsed option, changed so that new connections of its client use the passwords, the CA and the
// client certificate of the current option.
func (s *Store) connectionOption(parsed rueidis.ClientOption, current func() *rueidis.ClientOption) rueidis.ClientOption {
	o := parsed
	// The client's own timeouts must not end before the caller's, also while it connects.
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

// Look has the files of the password and the certificates read now, instead of within a second.
func (s *Store) Look() { s.reread.set() }

// notInUse is logged once a minute, and after each change of the files.
const notInUse = "new redis credentials aren't in use: those before them stay"

// followFiles reads the files every second. New connections use changed credentials once Redis has accepted them on a trial
// connection. So it doesn't matter whether the files or Redis change first, and a faulty file does no harm while the old
// credentials are valid.
func (s *Store) followFiles(url string) {
	used := s.address.files
	for last, pause := used, filesEvery; ; {
		select {
		case <-s.life.Done():
			return
		case <-time.After(pause):
		case <-s.reread:
			s.told.Delete(notInUse)
		}
		held, err := readFiles(used)
		changed := !maps.Equal(held, last)
		last, pause = held, filesEvery
		if changed {
			s.told.Delete(notInUse)
			if err == nil {
				pause = settleFor
				continue
			}
		}
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

// readFiles reads the files whose names are the keys of a map.
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

// read returns the contents of the file that a parameter names, and records them in p.files.
func (p *parser) read(parameter string) ([]byte, error) {
	file := p.given[parameter]
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", parameter, err)
	}
	p.files[file] = string(text)
	return text, nil
}

// readPassword reads a password from the file that a parameter names, if it is given.
func (p *parser) readPassword(parameter string, password *string) error {
	file := p.given[parameter]
	switch {
	case file == "":
		return nil
	case *password != "":
		return fmt.Errorf("the password is given twice: remove it, or %s", parameter)
	}
	text, err := p.read(parameter)
	if err != nil {
		return err
	}
	if *password = strings.TrimRight(string(text), "\r\n"); *password == "" {
		return fmt.Errorf("%s: %s: must hold the password, but is empty", parameter, file)
	}
	return nil
}

// tls returns the TLS configuration, or nil without TLS. A certificate must be for the name of the host that the client
// connects to, also if a Sentinel or a Cluster named that host. The parameter server_name replaces this name.
func (p *parser) tls() (*tls.Config, error) {
	for _, name := range []string{"tls", "verify_name"} {
		if v := p.given[name]; v != "" && v != "true" && v != "false" {
			return nil, fmt.Errorf("%s: must be true or false", name)
		}
	}
	if p.name != "rediss" && p.given["tls"] != "true" {
		for _, name := range tlsParameters {
			if p.given[name] != "" {
				return nil, fmt.Errorf("%s: needs TLS: add tls=true", name)
			}
		}
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.given["server_name"]}
	if file := p.given["ca"]; file != "" {
		pem, err := p.read("ca")
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s: must hold certificates in PEM", file)
		}
	}
	if (p.given["cert"] == "") != (p.given["key"] == "") {
		return nil, errors.New("cert and key must be given together")
	}
	if p.given["cert"] != "" {
		cert, err := p.read("cert")
		if err != nil {
			return nil, err
		}
		key, err := p.read("key")
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if p.given["verify_name"] == "false" {
		verifyAnyName(c)
	}
	return c, nil
}

// verifyAnyName verifies certificates, but not the name in them: some hosted servers have certificates for names that no client
// can know.
func verifyAnyName(c *tls.Config) {
	c.InsecureSkipVerify = true // VerifyConnection does what this skips, except for the name
	roots := c.RootCAs
	c.VerifyConnection = func(s tls.ConnectionState) error {
		o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, cert := range s.PeerCertificates[1:] {
			o.Intermediates.AddCert(cert)
		}
		_, err := s.PeerCertificates[0].Verify(o)
		return err
	}
}
