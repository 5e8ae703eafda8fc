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
)

// leastSecret is how many bytes a secret has at least.
const leastSecret = 32

// Secret is what all regions share. Keys of the link are made of it, and the names of clients.
type Secret struct {
	key     ed25519.PrivateKey
	subject []byte
}

// ReadSecret reads a secret from a file. Blanks around it don't count.
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

// NewSecret makes keys of a secret.
func NewSecret(text []byte) *Secret {
	derive := func(what string, n int) []byte {
		b, err := hkdf.Key(sha256.New, text, nil, "weir region "+what, n)
		if err != nil {
			panic(err) // of a length that is too large
		}
		return b
	}
	return &Secret{ed25519.NewKeyFromSeed(derive("link", ed25519.SeedSize)), derive("subjects", 32)}
}

// TLS is for both ends of a link. Each shows a certificate for the key that all regions have, and has to prove that it
// has it; no authority says who is who, and no name is looked at.
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
		InsecureSkipVerify: true, // the key is compared instead
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

// name is what a client of a limit is called between regions: none learns more of another's clients.
func (s *Secret) name(to []byte, policy uint64, subject []byte) []byte {
	h := hmac.New(sha256.New, s.subject)
	h.Write(binary.BigEndian.AppendUint64(to[:0], policy))
	h.Write(subject)
	return h.Sum(to[:0])[:16]
}
