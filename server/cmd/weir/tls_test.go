package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// secured starts a node with a certificate from a private CA, which requires client certificates if asks is set.
func secured(t *testing.T, certs *redistest.Certs, asks bool) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certs.ServerCert, certs.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(certs.CA)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/v1/check") {
			_, _ = io.WriteString(w, `{"allowed": true, "rule": "all", "limit": 5, "remaining": 4, "limits": []}`)
			return
		}
		w.Header().Set("ETag", `"7"`)
		_, _ = io.WriteString(w, "rules: []\n")
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	if asks {
		s.TLS.ClientCAs, s.TLS.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		s.TLS.ClientCAs.AppendCertsFromPEM(ca)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "https://")
}

// Commands can talk to nodes with a private CA, and with client certificates. If a certificate is missing, the error
// says which flag to use.
func TestCertificates(t *testing.T) {
	t.Setenv("WEIR_ADMIN_TOKEN", "")
	for _, name := range clientVariables {
		t.Setenv(name, "")
	}
	certs, err := redistest.NewCerts(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	strangers, err := redistest.NewCerts(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	open, asks := secured(t, certs, false), secured(t, certs, true)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	ca, client := " --ca "+certs.CA, " --cert "+certs.ClientCert+" --key "+certs.ClientKey
	encrypted := file(t, "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
	for _, c := range []struct {
		args string
		code int
		want string // part of stderr
	}{
		{"rules show --admin " + open + ca, 0, ""}, // https is the default if there are certificates
		{"rules show --admin https://" + open + ca, 0, ""},
		{"rules show --admin " + asks + ca + client, 0, ""},
		{"check k --http " + asks + ca + strings.Replace(client, "--key", "--cert-key", 1), 0, ""},
		{"rules show --admin https://" + open, 3, "doesn't know the CA that signed the node's certificate: give its file as --ca"},
		{"rules show --admin " + open + " --ca " + strangers.CA, 3, "isn't signed by the CA in " + strangers.CA},
		{"rules show --admin http://" + open, 3, "the node speaks TLS: write https://"},
		{"tail --admin http://" + open, 3, "the node speaks TLS: write https://"},
		{"rules show --admin " + strings.TrimPrefix(plain.URL, "http://") + ca, 3, "doesn't speak TLS: write http://"},
		{"rules show --admin " + asks + ca, 3, "asks for a client certificate: give it as --cert and --key"},
		{"check k --http " + asks + ca, 3, "asks for a client certificate: give it as --cert and --cert-key"},
		{"tail --admin " + asks + ca, 3, "asks for a client certificate"},
		{"rules show --admin " + asks + ca + " --cert " + strangers.ClientCert + " --key " + strangers.ClientKey, 3, "doesn't take the certificate in"},
		{"bench " + asks + ca, 3, "asks for a client certificate: give it as --cert and --key"},
		{"bench https://" + open, 3, "doesn't know the CA that signed the node's certificate"},
		{"bench http://" + open, 3, "the node speaks TLS: write https:// in the URL"},
		{"rules show --admin " + open + " --ca none.pem", 2, "--ca: open none.pem"},
		{"rules show --admin " + open + " --ca " + certs.ClientKey, 2, "has no certificate: it must be a PEM file"},
		{"rules show --admin " + open + ca + " --cert " + certs.ClientCert, 2, "--cert, --key: "},
		{"rules show --admin " + open + ca + " --cert " + certs.ClientKey + " --key " + certs.ClientCert, 2, certs.ClientKey + " must hold a certificate, and " + certs.ClientCert + " its private key"},
		{"rules show --admin " + open + ca + " --cert " + certs.ClientCert + " --key " + certs.CA, 2, certs.CA + " its private key, in PEM and not encrypted"},
		{"rules show --admin " + open + ca + " --cert " + certs.ClientCert + " --key none.key", 2, "--key: open none.key"},
		{"rules show --admin " + open + ca + " --cert " + certs.ClientCert + " --key " + encrypted, 2, encrypted + " its private key, in PEM and not encrypted"},
		{"rules show --admin " + open + ca + " --key " + certs.ClientKey, 2, "give that as --cert"},
		{"rules show --admin " + open + ca + " --cert " + certs.ClientCert + " --key " + strangers.ClientKey, 2, "--cert, --key: "},
	} {
		d := runWith(t, "", strings.Fields(c.args)...)
		if d.code != c.code || !strings.Contains(d.stderr, c.want) || strings.Contains(d.stderr, "weir serve starts one") {
			t.Errorf("weir %s: exit %d, want %d with %q\n%s", c.args, d.code, c.code, c.want, d.stderr)
		}
	}
	both := t.TempDir() + "/both.pem"
	var text []byte
	for _, name := range []string{certs.ClientCert, certs.ClientKey} {
		part, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, part...)
	}
	if err := os.WriteFile(both, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEIR_CA", certs.CA)
	t.Setenv("WEIR_CERT", both)
	runWith(t, "", "rules", "show", "--admin", asks).expect(t, 0, "rules: []", "")
	t.Setenv("WEIR_CERT", certs.ClientCert)
	t.Setenv("WEIR_KEY", certs.ClientKey)
	runWith(t, "", "check", "k", "--http", asks).expect(t, 0, "allowed", "")
}

// With TLS 1.3, a node may refuse a certificate while the request is already on its way. However the request then
// fails, the error is about the certificate.
func TestARefusedCertificateIsReported(t *testing.T) {
	certs, err := redistest.NewCerts(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	open, asks := "https://"+secured(t, certs, false), "https://"+secured(t, certs, true)
	flags := &tlsFlags{ca: certs.CA, keyFlag: "key"}
	for _, failed := range []error{
		&net.OpError{Op: "write", Err: syscall.EPIPE},
		&net.OpError{Op: "read", Err: syscall.ECONNRESET},
		errors.New("http2: client conn could not be established"),
	} {
		if err := flags.unreached(asks, "admin", failed); !strings.Contains(err.Error(), "asks for a client certificate") {
			t.Errorf("%v: %v", failed, err)
		}
	}
	broken := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	if err := flags.unreached(open, "admin", broken); !errors.Is(err, broken) || !strings.Contains(err.Error(), "no node answers") {
		t.Errorf("a node that asks for none: %v", err)
	}
}
