package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

// With --tls-client-ca, connections without a client certificate fail.
func TestTLSWithClientCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	server := ca.issue(t, dir, "server")
	client := ca.issue(t, dir, "client")
	n := serve(t, "--tls-cert", server.cert, "--tls-key", server.key, "--tls-client-ca", ca.file)
	pair, err := tls.LoadX509KeyPair(client.cert, client.key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	with := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}}
	defer with.CloseIdleConnections()
	res, err := with.Post(n.HTTP+"/v1/check", "application/json", strings.NewReader(`{"key": "k"}`))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 200 || res.ProtoMajor != 2 {
		t.Errorf("%s over %s", res.Status, res.Proto)
	}
	without := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	if res, err := without.Get(n.HTTP + "/healthz"); err == nil {
		res.Body.Close()
		t.Error("a client without a certificate was served")
	}
}

// The gRPC port can have its own certificate, CA and name, while the other ports have none. The files are watched: new
// connections use their current contents, without a SIGHUP.
func TestCertificatesOfGRPCAreFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := newAuthority(t, t.TempDir()), newAuthority(t, t.TempDir())
	cert, key, ca := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
	put := func(a *authority) {
		t.Helper()
		i := a.issue(t, t.TempDir(), "server")
		for from, to := range map[string]string{i.cert: cert, i.key: key, a.file: ca} {
			write(t, to, read(t, from))
		}
	}
	put(first)
	n := serve(t, "--grpc-tls-cert", cert, "--grpc-tls-key", key, "--grpc-client-ca", ca, "--grpc-client-san", "envoy.test", "--metrics", "127.0.0.1:0")
	if !strings.HasPrefix(n.HTTP, "http://") {
		t.Errorf("HTTP is at %s", n.HTTP)
	}
	served := func(by, from *authority, name string) error {
		t.Helper()
		if name == "" {
			from = nil
		}
		_, err := shouldLimit(t.Context(), dialEnvoy(t, n.GRPC, credentials.NewTLS(clientTLS(t, by, from, name))), "api_key", "a")
		return err
	}
	if err := served(first, first, "envoy.test"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", "other.test"} {
		if err := served(first, first, name); err == nil {
			t.Errorf("a client with a certificate for %q was served", name)
		}
	}
	put(second)
	until(t, func() error { return served(second, second, "envoy.test") })
	if err := served(second, first, "envoy.test"); err == nil {
		t.Error("a client of a CA that isn't trusted any more was served")
	}
	if res, err := http.Get(n.HTTP + "/healthz"); err != nil {
		t.Error(err)
	} else {
		res.Body.Close()
	}

	// While the certificate and the key don't match, as between two writes, the old pair stays in use.
	write(t, key, read(t, first.issue(t, t.TempDir(), "server").key))
	n.await("certificates rejected: the ones in use stay", func(l map[string]any) bool {
		return strings.HasPrefix(l["error"].(string), "--grpc-tls-cert: ")
	})
	if err := served(second, second, "envoy.test"); err != nil {
		t.Error(err)
	}

	metrics, _ := n.await("serving", always)["metrics"].(string)
	if res, text := call(t, "GET", metrics, ""); res.StatusCode != 200 || !strings.Contains(text, "\nweir_build_info{") {
		t.Errorf("%s: %s %s", metrics, res.Status, text)
	}
	if res, text := call(t, "GET", strings.Replace(metrics, "/metrics", "/v1/rules", 1), ""); res.StatusCode != 404 {
		t.Errorf("the port for metrics has rules: %s %s", res.Status, text)
	}
}

// clientTLS trusts one authority's servers and, if of isn't nil, presents a certificate from that authority for the
// name.
func clientTLS(t *testing.T, trusts, of *authority, name string) *tls.Config {
	t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AddCert(trusts.cert)
	if of != nil {
		i := of.issue(t, t.TempDir(), name)
		pair, err := tls.LoadX509KeyPair(i.cert, i.key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

type issued struct{ cert, key string }

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, file: filepath.Join(dir, "ca.pem")}
	a.cert = a.sign(t, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, &key.PublicKey, a.file)
	return a
}

func (a *authority) sign(t *testing.T, template *x509.Certificate, pub *ecdsa.PublicKey, file string) *x509.Certificate {
	t.Helper()
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, a.key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (a *authority) issue(t *testing.T, dir, name string) issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := issued{filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")}
	a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, &key.PublicKey, i.cert)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, i.key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	return i
}
