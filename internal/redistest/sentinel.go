package redistest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// MasterName is the name under which Sentinels know the primary.
const MasterName = "weir"

// Sentinel is a primary and its replica, watched by three Sentinels, two of
// which suffice to replace the primary a second after it fell silent.
type Sentinel struct {
	Servers   []*Server // the first began as the primary
	Sentinels []*Server
}

// StartSentinel starts all five; when it returns, each Sentinel knows the
// others and the replica.
func StartSentinel(o Options) (_ *Sentinel, err error) {
	if o.TLS || o.ACL != nil {
		return nil, errors.New("redistest: TLS and ACL are for a server alone")
	}
	s := &Sentinel{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for range 2 {
		server, err := newServer(o)
		if err != nil {
			return nil, err
		}
		s.Servers = append(s.Servers, server)
	}
	primary, replica := s.Servers[0], s.Servers[1]
	host := strings.Replace(primary.Addr, ":", " ", 1)
	replica.conf = append(replica.conf, "replicaof "+host)
	if err := beginAll(s.Servers); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The Sentinels come last: they ask for replicas as they start, and then every ten seconds.
	if err := Until(ctx, replica.linked); err != nil {
		return nil, err
	}
	for range 3 {
		sentinel, err := newServer(Options{})
		if err != nil {
			return nil, err
		}
		s.Sentinels = append(s.Sentinels, sentinel)
		sentinel.sentinel = true
		sentinel.conf = append(sentinel.conf[:4:4], // ports and folder; the rest is for servers that keep data
			"sentinel monitor "+MasterName+" "+host+" 2",
			"sentinel down-after-milliseconds "+MasterName+" 1000",
			"sentinel failover-timeout "+MasterName+" 10000",
		)
		if o.Password != "" {
			sentinel.conf = append(sentinel.conf, fmt.Sprintf("sentinel auth-pass %s %q", MasterName, o.Password))
		}
	}
	if err := beginAll(s.Sentinels); err != nil {
		return nil, err
	}
	return s, Until(ctx, s.Healthy)
}

func beginAll(servers []*Server) error { return each(servers, (*Server).begin) }

// each does something to all servers at the same time.
func each(servers []*Server, do func(*Server) error) error {
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() { errs[i] = do(s) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Addrs are the Sentinels' addresses.
func (s *Sentinel) Addrs() []string { return addrs(s.Sentinels) }

func addrs(servers []*Server) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr)
	}
	return all
}

// Primary is the server that every Sentinel names which is up, and that says itself that it is
// the primary. While they disagree, as during a failover, it is an error.
func (s *Sentinel) Primary(ctx context.Context) (*Server, error) {
	addr := ""
	for _, sentinel := range s.Sentinels {
		if !sentinel.up() {
			continue
		}
		at, err := sentinel.list(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
		if err != nil {
			return nil, err
		}
		named := fmt.Sprintf("%v:%v", at...)
		if addr != "" && named != addr {
			return nil, fmt.Errorf("the Sentinels disagree: %s or %s", addr, named)
		}
		addr = named
	}
	for _, server := range s.Servers {
		if server.Addr != addr {
			continue
		}
		if !server.up() {
			return nil, fmt.Errorf("the primary, %s, is down", addr)
		}
		role, err := server.list(ctx, "ROLE")
		if err != nil {
			return nil, err
		}
		if role[0] != "master" {
			return nil, fmt.Errorf("%s is %v yet", addr, role[0])
		}
		return server, nil
	}
	return nil, fmt.Errorf("no server is the primary that the Sentinels name: %q", addr)
}

// Healthy returns nil when all are up, the Sentinels know each other and agree, and
// the replica follows the primary.
func (s *Sentinel) Healthy(ctx context.Context) error {
	primary, err := s.Primary(ctx)
	if err != nil {
		return err
	}
	for _, sentinel := range s.Sentinels {
		flat, err := sentinel.list(ctx, "SENTINEL", "MASTER", MasterName)
		if err != nil {
			return err
		}
		m := pairs(flat)
		if m["flags"] != "master" || m["num-other-sentinels"] != "2" || m["num-slaves"] != "1" {
			return fmt.Errorf("%s: %s, %s other Sentinels, %s replicas", sentinel.Addr, m["flags"], m["num-other-sentinels"], m["num-slaves"])
		}
		replicas, err := sentinel.list(ctx, "SENTINEL", "REPLICAS", MasterName)
		if err != nil {
			return err
		}
		for _, flat := range replicas {
			r := pairs(flat.([]any))
			if r["flags"] != "slave" || r["master-link-status"] != "ok" {
				return fmt.Errorf("%s: replica %s: %s, link %s", sentinel.Addr, r["name"], r["flags"], r["master-link-status"])
			}
		}
		if _, err := sentinel.Do(ctx, "SENTINEL", "CKQUORUM", MasterName); err != nil {
			return err
		}
	}
	for _, server := range s.Servers {
		if server == primary {
			continue
		}
		if err := server.linked(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pairs reads a list of names and values in turn.
func pairs(flat []any) map[string]string {
	m := map[string]string{}
	for i := 0; i+1 < len(flat); i += 2 {
		m[fmt.Sprint(flat[i])] = fmt.Sprint(flat[i+1])
	}
	return m
}

// Close closes all five.
func (s *Sentinel) Close() error {
	// Sentinels first: they would raise the alarm about the others.
	return errors.Join(closeAll(s.Sentinels), closeAll(s.Servers))
}

func closeAll(servers []*Server) error { return each(servers, (*Server).Close) }
