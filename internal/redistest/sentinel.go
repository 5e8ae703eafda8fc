package redistest

import (
	"context"
	"fmt"
)

// MasterName is the name of the primary in the Sentinels' configuration.
const MasterName = "weir"

// Sentinel has a primary and its replica, watched by three Sentinels. If the primary has been silent for a second, two
// of the Sentinels can replace it.
type Sentinel struct {
	Servers   []*Server // the first one starts as the primary
	Sentinels []*Server
}

// NewSentinel starts all five servers. When it returns, each Sentinel knows the other Sentinels and the replica. The
// servers are closed when the test ends.
func NewSentinel(tb TB, o Options) *Sentinel {
	tb.Helper()
	s := &Sentinel{}
	primary := ""
	s.Servers = newServers(tb, o, 2, func(one *Server) {
		if primary == "" {
			primary = hostOf(one.Addr) + " " + portOf(one.Addr)
		} else {
			one.conf = append(one.conf, "replicaof "+primary)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// Start the Sentinels last: they ask for replicas when they start, and then only every ten seconds. The server that
	// starts last is closed first, so the Sentinels don't react when the other servers are closed.
	check(tb, Until(ctx, s.Servers[1].linked))
	s.Sentinels = newServers(tb, Options{}, 3, func(one *Server) {
		one.sentinel = true
		one.conf = append(one.conf[:4:4], // keep the lines with the address and the folder; the others are for servers that keep data
			"sentinel announce-ip "+hostOf(one.Addr),
			"sentinel monitor "+MasterName+" "+primary+" 2",
			"sentinel down-after-milliseconds "+MasterName+" 1000",
			"sentinel failover-timeout "+MasterName+" 10000",
		)
		if o.Password != "" {
			one.conf = append(one.conf, fmt.Sprintf("sentinel auth-pass %s %q", MasterName, o.Password))
		}
	})
	check(tb, Until(ctx, s.Healthy))
	return s
}

// Addrs returns the Sentinels' addresses.
func (s *Sentinel) Addrs() []string { return addrs(s.Sentinels) }

// Primary returns the server that every running Sentinel names as the primary, if the server also calls itself the
// primary. While they disagree, for example during a failover, Primary returns an error.
func (s *Sentinel) Primary(ctx context.Context) (*Server, error) {
	addr := ""
	for sentinel := range up(s.Sentinels) {
		at, err := ask[[]any](ctx, sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
		if err != nil {
			return nil, err
		}
		named := fmt.Sprintf("%v:%v", at...)
		if addr != "" && named != addr {
			return nil, fmt.Errorf("the Sentinels disagree: %s or %s", addr, named)
		}
		addr = named
	}
	for server := range up(s.Servers) {
		if server.Addr != addr {
			continue
		}
		role, err := ask[[]any](ctx, server, "ROLE")
		if err == nil && role[0] != "master" {
			err = fmt.Errorf("%s is %v yet", addr, role[0])
		}
		return server, err
	}
	return nil, fmt.Errorf("no server that is up is the primary that the Sentinels name: %q", addr)
}

// Healthy returns nil if all servers are up, the Sentinels know each other and agree, and the replica follows the primary.
func (s *Sentinel) Healthy(ctx context.Context) error {
	primary, err := s.Primary(ctx)
	if err != nil {
		return err
	}
	for _, sentinel := range s.Sentinels {
		flat, err := ask[[]any](ctx, sentinel, "SENTINEL", "MASTER", MasterName)
		if err != nil {
			return err
		}
		m := pairs(flat)
		if m["flags"] != "master" || m["num-other-sentinels"] != "2" || m["num-slaves"] != "1" {
			return fmt.Errorf("%s: %s, %s other Sentinels, %s replicas", sentinel.Addr, m["flags"], m["num-other-sentinels"], m["num-slaves"])
		}
		replicas, err := ask[[]any](ctx, sentinel, "SENTINEL", "REPLICAS", MasterName)
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

// pairs makes a map from a list of alternating names and values.
func pairs(flat []any) map[string]string {
	m := map[string]string{}
	for i := 0; i+1 < len(flat); i += 2 {
		m[fmt.Sprint(flat[i])] = fmt.Sprint(flat[i+1])
	}
	return m
}
