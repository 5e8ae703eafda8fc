package serve

import (
	"context"
	"crypto/tls"
	"errors"
)

// reload has files read again whenever the operator asks for it, until ctx is done: certificates, and those that are followed
// anyway, now instead of when a change is noticed; and the decision log opened again. What can't be used changes nothing.
func (n *node) reload(ctx context.Context, ports []*port) error {
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
		if n.known != nil {
			select {
			case n.known.look <- struct{}{}:
			default: // it holds one
			}
		}
		if n.decided != nil {
			n.decided.Reopen()
		}
		if n.config.TLSCert != "" {
			n.reloadCertificates(ports)
		}
	}
}

// reloadCertificates has new connections use the certificates that the files hold now: on all ports, or on none if one of the
// files can't be used.
func (n *node) reloadCertificates(ports []*port) {
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
	for i, p := range ports {
		p.tls.Store(fresh[i])
	}
	n.log.Info("certificates applied", "file", n.config.TLSCert, "expires", fresh[0].Certificates[0].Leaf.NotAfter)
}
