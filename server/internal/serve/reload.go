package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"path/filepath"
	"time"

	"github.com/weirhq/weir/internal/node/watch"
)

// reload checks files whenever the operator asks for it, and reopens the decision log, until ctx is
// done. Without it, a node notices a changed file within two seconds.
func (n *node) reload(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.config.Reload:
		}
		n.log.Info("reading files again")
		n.rules.Look()
		if n.envoyConfig != nil {
			n.envoyConfig.Look()
		}
		if n.redis != nil {
			n.redis.Look()
		}
		n.certificates.Ring()
		n.tokens.Ring()
		if n.known != nil {
			n.known.look.Ring()
		}
		if n.decided != nil {
			n.decided.Reopen()
		}
	}
}

// certificateFiles maps the names of certificate, key and CA files to their contents.
type certificateFiles map[string]string

func (c *Config) readCertificates() (certificateFiles, error) {
	read := certificateFiles{}
	for _, name := range []string{c.TLSCert, c.TLSKey, c.TLSClientCA, c.HTTPClientCA, c.AdminClientCA, c.GRPCTLSCert, c.GRPCTLSKey, c.GRPCClientCA} {
		if name == "" {
			continue
		}
		text, err := watch.ReadSmall(name)
		if err != nil {
			return nil, err
		}
		read[name] = string(text)
	}
	return read, nil
}

// followCertificates applies changed certificate files to new connections, so that tools that renew
// them need not know this node. Last is what the files held before the current certificates were
// read.
func (n *node) followCertificates(ctx context.Context, ports []*port, last certificateFiles) error {
	_, cert, _ := n.config.certificate("grpc") // the other files are usually in the same folder
	return watch.Dir(ctx, filepath.Dir(cert), n.config.readCertificates, maps.Equal[certificateFiles, certificateFiles], last, n.certificates,
		func(certificateFiles) { n.useCertificates(ports) },
		func(err error) { n.log.Error("certificates can't be read: the ones in use stay", "error", err) })
}

// useCertificates reads the certificates again for new connections. If one fails, no port changes.
func (n *node) useCertificates(ports []*port) {
	var failed error
	fresh := make([]*tls.Config, len(ports))
	for i, p := range ports {
		var err error
		fresh[i], err = n.config.tls(p.name)
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		n.log.Error("certificates rejected: the ones in use stay", "error", failed)
		return
	}
	var expires time.Time // the earliest expiry
	for i, p := range ports {
		p.tls.Store(fresh[i])
		if fresh[i] == nil {
			continue
		}
		if end := fresh[i].Certificates[0].Leaf.NotAfter; expires.IsZero() || end.Before(expires) {
			expires = end
		}
	}
	n.log.Info("certificates applied", "expires", expires)
}
