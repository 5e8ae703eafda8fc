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
)

// TLS with client certificates: without one, no connection.
func TestTLSWithClientCertificates(t *testing.T) {
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
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, &key.PublicKey, i.cert)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, i.key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	return i
}
