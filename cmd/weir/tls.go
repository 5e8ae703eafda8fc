package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// tlsFlags are the certificates with which a command talks to a node over TLS.
type tlsFlags struct {
	ca, cert, key string
	keyFlag       string // the name of the flag of key

	own *http.Client // once it was asked for
}

// clientVariables are what commands that talk to nodes take from the environment, beside settings of nodes.
var clientVariables = []string{"WEIR_CA", "WEIR_CERT", "WEIR_KEY"}

// register adds the flags. A command with a --key that is an API key has --cert-key instead.
func (t *tlsFlags) register(f *pflag.FlagSet) {
	t.keyFlag = "key"
	if f.Lookup("key") != nil {
		t.keyFlag = "cert-key"
	}
	f.StringVar(&t.ca, "ca", os.Getenv("WEIR_CA"), "file of the CA that signed the node's certificate, in place of those that this machine knows (WEIR_CA)")
	f.StringVar(&t.cert, "cert", os.Getenv("WEIR_CERT"), "file of the certificate to show to the node (WEIR_CERT)")
	f.StringVar(&t.key, t.keyFlag, os.Getenv("WEIR_KEY"), "file of the certificate's private key, if --cert doesn't hold it (WEIR_KEY)")
}

// given reports whether the command is to use TLS.
func (t *tlsFlags) given() bool { return t.ca != "" || t.cert != "" || t.key != "" }

// address is a node's address made a URL. One without a scheme is https if certificates are given.
func (t *tlsFlags) address(flag, s string) (string, error) {
	if t.given() && !strings.Contains(s, "://") && !isNumber(s) {
		s = "https://" + s
	}
	return address(flag, s)
}

// config reads the files. It is nil if there are none.
func (t *tlsFlags) config() (*tls.Config, error) {
	if !t.given() {
		return nil, nil
	}
	c := &tls.Config{}
	if t.ca != "" {
		text, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--ca: %s has no certificate: it must be a PEM file", t.ca)
		}
	}
	switch {
	case t.cert == "" && t.key != "":
		return nil, fmt.Errorf("--%s: belongs to a certificate: give that as --cert", t.keyFlag)
	case t.cert == "":
		return c, nil
	}
	pair, err := tls.LoadX509KeyPair(t.cert, cmp.Or(t.key, t.cert))
	if err != nil && t.key == "" {
		return nil, fmt.Errorf("--cert: %w: give the private key as --%s", err, t.keyFlag)
	} else if err != nil {
		return nil, fmt.Errorf("--cert, --%s: %w", t.keyFlag, err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// client is for requests to the node.
func (t *tlsFlags) client() (*http.Client, error) {
	if t.own != nil {
		return t.own, nil
	}
	c, err := t.config()
	if err != nil {
		return nil, &exit{exitUsage, err}
	}
	own := *client
	if c != nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = c
		own.Transport = transport
	}
	t.own = &own
	return t.own, nil
}

// unreached is the error of a request that no node has answered. If a node is there, it says why the two don't understand each other.
func (t *tlsFlags) unreached(err error, flag string) error {
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	what := ""
	switch {
	case errors.As(err, &authority) && t.ca != "":
		what = "the node's certificate isn't signed by the CA in " + t.ca
	case errors.As(err, &authority):
		what = "this machine doesn't know the CA that signed the node's certificate: give its file as --ca, or in WEIR_CA"
	case errors.As(err, &name):
		what = "the node's certificate is for another name: write one of its names in --" + flag
	case errors.As(err, &invalid):
		what = "the node's certificate can't be used"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		what = "the node doesn't speak TLS: write http://, and give no certificates"
	case refusesCertificate(err) && t.cert == "":
		what = "the node asks for a client certificate: give it as --cert and --" + t.keyFlag + ", or in WEIR_CERT and WEIR_KEY"
	case refusesCertificate(err):
		what = "the node doesn't take the certificate in " + t.cert + ": is it signed by the node's client CA, and still valid?"
	default:
		return fmt.Errorf("no node answers: %w: weir serve starts one, and --%s says where one is", err, flag)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// refusesCertificate: the node has ended the handshake with an alert about the client's certificate. Package tls has no type for it.
func refusesCertificate(err error) bool {
	_, alert, ok := strings.Cut(err.Error(), "remote error: tls: ")
	return ok && (strings.Contains(alert, "certificate") || strings.Contains(alert, "handshake failure"))
}

// wantsTLS: the answer is Go's to a request without TLS at a port that has it.
func (a *answer) wantsTLS() bool {
	return a.status == http.StatusBadRequest && strings.Contains(string(a.body), "HTTP request to an HTTPS server")
}

// errWantsTLS says what to do then.
func errWantsTLS(flag string) error {
	return fmt.Errorf("the node speaks TLS: write https:// in --%s; --ca names the file of a CA that this machine doesn't know", flag)
}
