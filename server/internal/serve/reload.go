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

// reload has files looked at whenever the operator asks for it, until ctx is done: they are followed anyway, but a change may take
// two seconds to be noticed; and the decision log opened again. What can't be used changes nothing.
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
		nudge(n.certificates)
		nudge(n.tokens)
		if n.known != nil {
			nudge(n.known.look)
		}
		if n.decided != nil {
			n.decided.Reopen()
		}
	}
}

// nudge has a follower look at its files, if there is one.
func nudge(look chan<- struct{}) {
	select {
	case look <- struct{}{}:
	default: // it holds one
	}
}

// certificateFiles are what the files of certificates, keys and CAs hold, by their names.
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

// followCertificates has new connections use the certificates that the files hold, soon after they change: whoever renews them need
// not know of this node. Last is what they held before those in use were read.
func (n *node) followCertificates(ctx context.Context, ports []*port, last certificateFiles) error {
	_, cert, _ := n.config.certificate("grpc") // all others are mostly in the same folder
	return watch.Dir(ctx, filepath.Dir(cert), n.config.readCertificates, maps.Equal[certificateFiles, certificateFiles], last, n.certificates,
		func(certificateFiles) { n.useCertificates(ports) },
		func(err error) { n.log.Error("certificates can't be read: the ones in use stay", "error", err) })
}

// useCertificates has new connections use the certificates that the files hold now: on all ports, or on none if one of them can't be
// used.
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
	var expires time.Time // the first of them
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
