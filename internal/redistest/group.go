package redistest

import (
	"errors"
	"iter"
	"sync"
)

// newServers starts n servers at the same time. Before that, it calls configure for each server to change its
// configuration. The servers are closed when the test ends.
func newServers(tb TB, o Options, n int, configure func(*Server)) (all []*Server) {
	tb.Helper()
	for range n {
		s, err := newServer(o)
		keep(tb, s)
		check(tb, err)
		configure(s)
		all = append(all, s)
	}
	check(tb, each(all, (*Server).RestartEmpty))
	return all
}

// each calls do for all servers at the same time.
func each(servers []*Server, do func(*Server) error) error {
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() { errs[i] = do(s) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func addrs(servers []*Server) (all []string) {
	for _, s := range servers {
		all = append(all, s.Addr)
	}
	return all
}

// up yields the servers whose process is running and not stopped.
func up(servers []*Server) iter.Seq[*Server] {
	return func(yield func(*Server) bool) {
		for _, s := range servers {
			if s.up() && !yield(s) {
				return
			}
		}
	}
}
