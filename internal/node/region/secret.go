package region

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"

	"github.com/weirhq/weir/counter"
)

const leastSecret = 32

// Secret is shared by all regions. The keys of the links and the pseudonyms of clients are derived from it.
type Secret struct {
	key     ed25519.PrivateKey
	subject []byte
}

// ReadSecret reads a secret from a file and trims the whitespace around it.
func ReadSecret(file string) (*Secret, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	text = bytes.TrimSpace(text)
	if len(text) < leastSecret {
		return nil, fmt.Errorf("%s: a secret has at least %d bytes: make one with openssl rand -hex 32, and give all regions the same", file, leastSecret)
	}
	return NewSecret(text), nil
}

// NewSecret derives the keys from a secret.
func NewSecret(text []byte) *Secret {
	derive := func(what string, n int) []byte {
		b, err := hkdf.Key(sha256.New, text, nil, "weir region "+what, n)
		if err != nil {
			panic(err) // can't happen: n is small
		}
		return b
	}
	return &Secret{ed25519.NewKeyFromSeed(derive("link", ed25519.SeedSize)), derive("subjects", 32)}
}

// TLS returns the configuration for both ends of a link. Each end shows a certificate for the key that all regions
// share, and proves that it has the private key. No authority is consulted, and no host name is checked.
func (s *Secret) TLS() (*tls.Config, error) {
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weir region"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.AddDate(100, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	public := s.key.Public().(ed25519.PublicKey)
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, s.key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: s.key}},
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true, // VerifyConnection compares the key instead
		VerifyConnection: func(c tls.ConnectionState) error {
			if len(c.PeerCertificates) == 1 {
				if key, ok := c.PeerCertificates[0].PublicKey.(ed25519.PublicKey); ok && key.Equal(public) {
					return nil
				}
			}
			return errSecret
		},
		NextProtos: []string{"h2"},
	}, nil
}

var errSecret = errors.New("it has another secret: give all regions the same")

// name returns the pseudonym by which regions name a client to each other, so that no region learns who the clients of
// another region are.
func (s *Secret) name(policy uint64, subject []byte) []byte {
	to := make([]byte, 0, 64)
	h := hmac.New(sha256.New, s.subject)
	h.Write(binary.BigEndian.AppendUint64(to, policy))
	h.Write(subject)
	return h.Sum(to)[:16]
}

// rename replaces the subject of a global counter with the name that all regions use for it.
func (l *Link) rename(c *counter.Counter) {
	if c.Policy.Global {
		c.Subject = l.secret.name(c.Policy.ID, c.Subject)
	}
}
