package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Certs are PEM files: a certificate authority, and certificates that it signed. They are valid for a day.
type Certs struct {
	CA                    string
	ServerCert, ServerKey string // for localhost, 127.0.0.1 and the hosts passed to NewCerts
	ClientCert, ClientKey string
}

// Client returns the TLS configuration of a client.
func (c *Certs) Client() (*tls.Config, error) {
	ca, errCA := os.ReadFile(c.CA)
	pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}, errors.Join(errCA, err)
}

// NewCerts writes the files to a folder. hosts are additional IP addresses in the server's certificate.
func NewCerts(dir string, hosts ...string) (*Certs, error) {
	in := func(name string) string { return filepath.Join(dir, name) }
	ca, err := issue(in("authority"), nil, nil)
	if err != nil {
		return nil, err
	}
	_, errServer := issue(in("server"), ca, hosts)
	_, errClient := issue(in("client"), ca, hosts)
	return &Certs{in("authority.pem"), in("server.pem"), in("server.key"), in("client.pem"), in("client.key")}, errors.Join(errServer, errClient)
}

type issued struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue writes a certificate and its key to file.pem and file.key. The issuer by signs it. If by is nil, the
// certificate is that of an authority, and signs itself.
func issue(file string, by *issued, hosts []string) (*issued, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: filepath.Base(file)},
		NotBefore:    time.Now().Add(-time.Hour), // clocks in tests jump
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	for _, host := range hosts {
		cert.IPAddresses = append(cert.IPAddresses, net.ParseIP(host))
	}
	if by == nil {
		cert.Subject.CommonName += " " + serial.Text(16) // OpenSSL tells authorities apart by their names
		cert.IsCA, cert.BasicConstraintsValid, cert.KeyUsage = true, true, x509.KeyUsageCertSign
		by = &issued{cert, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, by.cert, &key.PublicKey, by.key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &issued{cert, key}, errors.Join(
		writePEM(file+".pem", "CERTIFICATE", der),
		writePEM(file+".key", "PRIVATE KEY", secret),
	)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
