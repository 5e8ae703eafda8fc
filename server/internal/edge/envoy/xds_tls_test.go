package envoy_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// certs writes certificates of a new authority.
func certs(t *testing.T) *redistest.Certs {
	t.Helper()
	c, err := redistest.NewCerts(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// asks returns the TLS of a server that requires client certificates.
func asks(t *testing.T, c *redistest.Certs) grpc.ServerOption {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(c.ServerCert, c.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}))
}

// install replaces the client's files, as a rotation does, each atomically.
func install(t *testing.T, dir string, c *redistest.Certs) {
	t.Helper()
	for name, from := range map[string]string{"ca.crt": c.CA, "tls.crt": c.ClientCert, "tls.key": c.ClientKey} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		fresh := filepath.Join(dir, name+".new")
		if err := os.WriteFile(fresh, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(fresh, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestXDSOverTLS checks mutual TLS, and that both sides can rotate to another authority.
func TestXDSOverTLS(t *testing.T) {
	old, fresh := certs(t), certs(t)
	dir := t.TempDir()
	install(t, dir, old)
	// The certificates are for localhost and 127.0.0.1, and the server needs the same port again.
	files := &envoy.TLSFiles{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), ServerName: "localhost"}

	c := newControl()
	c.set("1", resource(t, shared))
	addr, stop := c.listen(t, loopback.Host()+":0", asks(t, old))
	s, f := follow(t, envoy.XDS{Server: addr, TLS: files}, envoy.Options{})
	until(t, s, "no configuration", func(now envoy.Source) bool { return now.Version == "1" })

	stop()
	c.set("2", resource(t, shared))
	c.listen(t, addr, asks(t, fresh))
	now := until(t, s, "a server of another authority is believed", func(now envoy.Source) bool { return strings.Contains(now.Lost, "certificate") })
	if now.Version != "1" {
		t.Errorf("%+v", now)
	}
	install(t, dir, fresh)
	f.Look()
	until(t, s, "the new certificates aren't used", func(now envoy.Source) bool { return now.Connected && now.Version == "2" })
}

// TestXDSOverTLSRefuses checks that neither side accepts a peer that it can't verify.
func TestXDSOverTLSRefuses(t *testing.T) {
	ours, theirs := certs(t), certs(t)
	for name, c := range map[string]struct {
		tls  *envoy.TLSFiles
		want string
	}{
		"plain text":            {nil, ""},
		"no client certificate": {&envoy.TLSFiles{CA: ours.CA}, "certificate required"},
		"another authority's":   {&envoy.TLSFiles{CA: ours.CA, Cert: theirs.ClientCert, Key: theirs.ClientKey}, "certificate"},
		"the system's":          {&envoy.TLSFiles{Cert: ours.ClientCert, Key: ours.ClientKey}, "unknown authority"},
		"another name":          {&envoy.TLSFiles{CA: ours.CA, Cert: ours.ClientCert, Key: ours.ClientKey, ServerName: "elsewhere"}, "not elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			control := newControl()
			control.set("1", resource(t, shared))
			addr, _ := control.listen(t, "127.0.0.1:0", asks(t, ours))
			s, _ := follow(t, envoy.XDS{Server: addr, TLS: c.tls}, envoy.Options{})
			now := until(t, s, "it connects", func(now envoy.Source) bool {
				return !now.Connected && now.Lost != "not connected yet" && strings.Contains(now.Lost, c.want)
			})
			if !now.Since.IsZero() {
				t.Errorf("%+v", now)
			}
		})
	}
	control := newControl()
	control.set("1", resource(t, shared))
	addr, _ := control.listen(t, "127.0.0.1:0", asks(t, ours))
	for _, name := range []string{"", "localhost"} { // the certificate also covers the address
		s, _ := follow(t, envoy.XDS{Server: addr, TLS: &envoy.TLSFiles{CA: ours.CA, Cert: ours.ClientCert, Key: ours.ClientKey, ServerName: name}}, envoy.Options{})
		until(t, s, "the right name is refused", func(now envoy.Source) bool { return now.Version == "1" })
	}
}
