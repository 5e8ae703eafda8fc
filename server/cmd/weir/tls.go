package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// tlsFlags are the flags for the certificates that a command uses in requests to a node.
type tlsFlags struct {
	ca, cert, key string
	keyFlag       string // name of the flag for key

	own *http.Client // created by the first call of client
}

// clientVariables are environment variables of commands that talk to nodes, in addition to the variables for settings.
var clientVariables = []string{"WEIR_CA", "WEIR_CERT", "WEIR_KEY"}

// register adds the flags. If a command has a --key for API keys, the flag for the certificate's key is --cert-key.
func (t *tlsFlags) register(f *pflag.FlagSet) {
	t.keyFlag = "key"
	if f.Lookup("key") != nil {
		t.keyFlag = "cert-key"
	}
	f.StringVar(&t.ca, "ca", os.Getenv("WEIR_CA"), "file of the CA that signed the node's certificate, in place of those that this machine knows (WEIR_CA)")
	f.StringVar(&t.cert, "cert", os.Getenv("WEIR_CERT"), "file of the certificate to show to the node (WEIR_CERT)")
	f.StringVar(&t.key, t.keyFlag, os.Getenv("WEIR_KEY"), "file of the certificate's private key, if --cert doesn't hold it (WEIR_KEY)")
	for _, name := range []string{"ca", "cert", t.keyFlag} {
		_ = cobra.MarkFlagFilename(f, name) // the flag exists, so there is no error
	}
}

// given reports whether any of the flags is set. If so, addresses without a scheme mean https.
func (t *tlsFlags) given() bool { return t.ca != "" || t.cert != "" || t.key != "" }

// withScheme adds a scheme to an address that has none: https if certificates are given, otherwise http.
func (t *tlsFlags) withScheme(address string) string {
	if strings.Contains(address, "://") {
		return address
	}
	return cmp.Or(given(t.given(), "https://"), "http://") + address
}

// address converts a node's address, which is host:port or a URL, to a URL.
func (t *tlsFlags) address(flag, s string) (string, error) {
	text := t.withScheme(s)
	u, err := url.Parse(text)
	switch {
	case isNumber(s):
		return "", fmt.Errorf("--%s: must be host:port or a URL, got %q: write 127.0.0.1:%s", flag, s, s)
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("--%s: must be host:port or a URL, such as 127.0.0.1:8080 or https://weir.example.com, got %q", flag, s)
	}
	return strings.TrimRight(text, "/"), nil
}

// config reads the files and returns a TLS configuration, or nil if no flag is set.
func (t *tlsFlags) config() (*tls.Config, error) {
	if !t.given() {
		return nil, nil
	}
	c := &tls.Config{}
	if t.ca != "" {
		text, err := readFlag("ca", t.ca)
		if err != nil {
			return nil, err
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
	keyFile := cmp.Or(t.key, t.cert)
	pair, err := tls.LoadX509KeyPair(t.cert, keyFile)
	if err != nil {
		return nil, fmt.Errorf("--cert, --%s: %w: %s must hold a certificate, and %s its private key, in PEM and not encrypted", t.keyFlag, err, t.cert, keyFile)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

func readFlag(flag, name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return text, nil
}

func (t *tlsFlags) client() (*http.Client, error) {
	if t.own == nil {
		c, err := t.config()
		if err != nil {
			return nil, err
		}
		t.own = client
		if c != nil {
			transport := http.DefaultTransport.(*http.Transport).Clone()
			transport.TLSClientConfig = c
			t.own = &http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}
		}
	}
	return t.own, nil
}

// unreached returns the error for a request that got no response.
func (t *tlsFlags) unreached(to, flag string, err error) error {
	if why, err := t.reason(to, "--"+flag, err); why != "" {
		return fmt.Errorf("%s: %w", why, err)
	}
	return fmt.Errorf("no node answers: %w: weir serve starts one, and --%s says where one is", err, flag)
}

// reason returns a text that says why TLS failed, or "" for other failures. place is the argument or flag with the URL.
func (t *tlsFlags) reason(to, place string, err error) (string, error) {
	if alert := t.alert(to, err); alert != nil {
		err = alert
	}
	switch {
	case is[x509.UnknownAuthorityError](err) && t.ca != "":
		return "the node's certificate isn't signed by the CA in " + t.ca, err
	case is[x509.UnknownAuthorityError](err):
		return "this machine doesn't know the CA that signed the node's certificate: give its file as --ca, or in WEIR_CA", err
	case is[x509.HostnameError](err):
		return "the node's certificate is for another name: write one of its names in " + place, err
	case is[x509.CertificateInvalidError](err):
		return "the node's certificate can't be used", err
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"),
		strings.Contains(err.Error(), "first record does not look like a TLS handshake"):
		return "the node doesn't speak TLS: write http://, and give no certificates", err
	case strings.Contains(err.Error(), "malformed HTTP response"):
		// Don't show the bytes of another protocol, which don't help the user and may look like a URL with a password.
		return place + ": this port doesn't speak HTTP/1.1; a node's --grpc port doesn't either", errors.New("malformed HTTP response")
	case refusesCertificate(err) && t.cert == "":
		return "the node asks for a client certificate: give it as --cert and --" + t.keyFlag + ", or in WEIR_CERT and WEIR_KEY", err
	case refusesCertificate(err):
		return "the node doesn't take the certificate in " + t.cert + ": is it signed by the node's client CA, and still valid?", err
	}
	return "", err
}

// is reports whether err contains an error of type E.
func is[E error](err error) bool {
	_, found := errors.AsType[E](err)
	return found
}

// alert returns the alert with which a node rejects the client's certificate, or nil. In TLS 1.3, the node sends the
// alert after the handshake, so a request may fail before the client reads it. For that reason, this function connects
// again, and only reads.
func (t *tlsFlags) alert(to string, err error) error {
	u, bad := url.Parse(to)
	var op *net.OpError
	if bad != nil || u.Scheme != "https" || refusesCertificate(err) || os.IsTimeout(err) || errors.As(err, &op) && op.Op == "dial" {
		return nil
	}
	c, bad := t.config()
	if bad != nil {
		return nil
	}
	const patience = time.Second
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")), c)
	if err == nil {
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(patience)) // a node that accepts the certificate sends nothing before it gets a request
		_, err = conn.Read(make([]byte, 1))
	}
	if err == nil || !refusesCertificate(err) {
		return nil
	}
	return err
}

// refusesCertificate reports whether the node ended the handshake with an alert about the client's certificate.
func refusesCertificate(err error) bool {
	_, alert, ok := strings.Cut(err.Error(), "remote error: tls: ")
	return ok && (strings.Contains(alert, "certificate") || strings.Contains(alert, "handshake failure"))
}

// wantsTLS reports whether a response is the one that Go's server sends to a request without TLS on a TLS port.
func wantsTLS(status int, body []byte) bool {
	return status == http.StatusBadRequest && strings.Contains(string(body), "HTTP request to an HTTPS server")
}

// errWantsTLS returns the error for the response that wantsTLS recognizes. place is the argument or flag with the URL.
func errWantsTLS(place string) error {
	return fmt.Errorf("the node speaks TLS: write https:// in %s; --ca names the file of a CA that this machine doesn't know", place)
}
