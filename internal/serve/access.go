package serve

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/weirhq/weir/internal/guard"
	"github.com/weirhq/weir/internal/watch"
)

// guards decide which callers may use the ports that aren't for everybody.
type guards struct{ http, admin *guard.Guard }

func (c *Config) guards() (g guards, err error) {
	tokens, err := guard.LoadTokens(c.AdminToken, c.AdminTokens)
	if err != nil {
		return g, fmt.Errorf("--admin-tokens: %w", err)
	}
	g.admin = guard.New(guard.Options{Tokens: tokens, Name: hostName(c.Admin)})
	if c.HTTPToken != "" {
		if tokens, err = guard.OneToken("http", c.HTTPToken); err != nil {
			return g, fmt.Errorf("--http-token: %w", err)
		}
	} else {
		tokens = nil
	}
	g.http = guard.New(guard.Options{Tokens: tokens, Name: hostName(c.HTTP), AnyName: !isLoopback(c.HTTP)})
	return g, nil
}

// shortToken is a length below which somebody with time may guess a token.
const shortToken = 16

// warnOfStrangers warns of settings that let strangers use a port. The addresses are those of the check API and of gRPC,
// or nil.
func (n *node) warnOfStrangers(addr, grpc net.Addr) {
	c := &n.config
	for _, t := range []struct{ flag, token string }{{"--http-token", c.HTTPToken}, {"--admin-token", c.AdminToken}} {
		if l := len(t.token); l > 0 && l < shortToken {
			n.log.Warn(fmt.Sprintf("%s is short enough to be guessed: use at least %d random characters, such as: openssl rand -hex 16", t.flag, shortToken), "characters", l)
		}
	}
	for _, p := range c.TrustedProxies {
		if p.Bits() == 0 {
			n.log.Warn("--trusted-proxies trusts everybody: any client chooses its own address, and limits by ip hold for nobody; name your proxies' addresses", "range", p.String())
		}
	}
	if public(addr) && c.HTTPToken == "" && c.clientCA("http") == "" {
		n.log.Warn("anybody who reaches the check API can use it: give it --http-token or --http-client-ca, or an address that only your services reach", "http", addr.String())
	}
	if public(grpc) && c.HTTPToken == "" && c.clientCA("grpc") == "" {
		n.log.Warn("anybody who reaches the rate limit service can use it: give it --http-token or --grpc-client-ca, or an address that only Envoy reaches", "grpc", grpc.String())
	}
}

// public reports whether a port is open to other machines.
func public(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback()
}

// clientCA is the file whose certificates a listener asks of its clients, or "".
func (c *Config) clientCA(listener string) string {
	switch listener {
	case "http":
		return cmp.Or(c.HTTPClientCA, c.TLSClientCA)
	case "grpc":
		return cmp.Or(c.GRPCClientCA, c.TLSClientCA)
	case "admin":
		return cmp.Or(c.AdminClientCA, c.TLSClientCA)
	}
	return c.TLSClientCA
}

// tls is that of a listener, or nil without a certificate.
func (c *Config) tls(listener string) (*tls.Config, error) {
	if c.TLSCert == "" {
		return nil, nil
	}
	cert, err := watch.KeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("--tls-%w", err)
	}
	t := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if file := c.clientCA(listener); file != "" {
		if t.ClientCAs, err = watch.Authorities(file); err != nil {
			return nil, fmt.Errorf("client certificates of --%s: %w", listener, err)
		}
		t.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return t, nil
}
