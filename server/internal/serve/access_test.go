package serve

import (
	"crypto/x509"
	"net"
	"net/url"
	"testing"
)

// A certificate's names are DNS names, with wildcards, IP addresses, and URIs, which are compared as a whole.
func TestNamesOfCertificates(t *testing.T) {
	cert := &x509.Certificate{
		DNSNames: []string{"*.envoy-gateway-system", "envoy.test"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)},
		URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/envoy/sa/envoy"}},
	}
	for name, want := range map[string]bool{
		"envoy.test": true, "x.envoy-gateway-system": true, "192.0.2.1": true, "spiffe://cluster.local/ns/envoy/sa/envoy": true,
		"test": false, "x.y.envoy-gateway-system": false, "192.0.2.2": false, "spiffe://cluster.local/ns/envoy/sa/env": false,
		"spiffe://cluster.local/ns/envoy/sa/envoy/x": false, "://": false,
	} {
		if err := bears(cert, name); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
