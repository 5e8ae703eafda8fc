package watch

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// KeyPair reads a certificate and its key, in PEM.
func KeyPair(cert, key string) (tls.Certificate, error) {
	chain, err := ReadSmall(cert)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cert: %w", err)
	}
	secret, err := ReadSmall(key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("key: %w", err)
	}
	pair, err := tls.X509KeyPair(chain, secret)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cert: %s: %w", cert, err)
	}
	return pair, nil
}

// Authorities reads the certificates of authorities, in PEM.
func Authorities(file string) (*x509.CertPool, error) {
	pem, err := ReadSmall(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}
