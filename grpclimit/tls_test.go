package grpclimit_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/grpclimit"
	"github.com/weirhq/weir/httplimit"
)

// authority issues certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func (a *authority) issue(t *testing.T, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert == nil {
		a.cert, a.key = cert, key
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: cert}
}

// TestCertificates checks that a verified certificate names the user, unless the options name another source of users.
// An unverified certificate names no user.
func TestCertificates(t *testing.T) {
	var ca authority
	ca.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	server := ca.issue(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	spiffe := &url.URL{Scheme: "spiffe", Host: "example.org", Path: "/ns/shop/sa/cart"}
	var seen atomic.Pointer[weir.Request]
	observe := weir.Options{Observe: func(o *weir.Observation) { r := *o.Request; seen.Store(&r) }}
	for name, c := range map[string]struct {
		client *x509.Certificate
		auth   tls.ClientAuthType
		opts   grpclimit.Options
		want   string
	}{
		"a URI":         {&x509.Certificate{URIs: []*url.URL{spiffe}, DNSNames: []string{"cart.shop"}}, tls.RequireAndVerifyClientCert, grpclimit.Options{}, spiffe.String()},
		"a DNS name":    {&x509.Certificate{DNSNames: []string{"cart.shop"}, Subject: pkix.Name{CommonName: "x"}}, tls.RequireAndVerifyClientCert, grpclimit.Options{}, "cart.shop"},
		"a subject":     {&x509.Certificate{Subject: pkix.Name{CommonName: "cart", Organization: []string{"shop"}}}, tls.RequireAndVerifyClientCert, grpclimit.Options{}, "CN=cart,O=shop"},
		"nobody looked": {&x509.Certificate{DNSNames: []string{"cart.shop"}}, tls.RequireAnyClientCert, grpclimit.Options{}, ""},
		"none":          {nil, tls.VerifyClientCertIfGiven, grpclimit.Options{}, ""},
		"users are elsewhere": {&x509.Certificate{DNSNames: []string{"cart.shop"}}, tls.RequireAndVerifyClientCert, grpclimit.Options{
			Identity: httplimit.Identity{User: httplimit.Source{Header: "X-User"}},
		}, "42"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, compile(t, weir.Rules{}), c.opts, observe, grpc.Creds(credentials.NewTLS(&tls.Config{
				Certificates: []tls.Certificate{server}, ClientCAs: pool, ClientAuth: c.auth,
			})))
			config := &tls.Config{RootCAs: pool}
			if c.client != nil {
				c.client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
				config.Certificates = []tls.Certificate{ca.issue(t, c.client)}
			}
			w.dial(t, grpc.WithTransportCredentials(credentials.NewTLS(config)))
			seen.Store(nil)
			if got := w.call(t, "x-user", "42"); got.Err() != nil || seen.Load() == nil || seen.Load().User != c.want {
				t.Errorf("%v, seen %v", got.Status, seen.Load())
			}
		})
	}
}
