package redistest

import (
	"errors"
	"iter"
	"sync"
)

// newServers prepares the servers of a group. The caller must close them, also after an error.
func newServers(o Options, n int) (all []*Server, err error) {
	for range n {
		s, err := newServer(o)
		if all = append(all, s); err != nil {
			return all, err
		}
	}
	return all, nil
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

// up yields the servers whose process can answer, because it is neither gone nor stopped.
func up(servers []*Server) iter.Seq[*Server] {
	return func(yield func(*Server) bool) {
		for _, s := range servers {
			if s.up() && !yield(s) {
				return
			}
		}
	}
}
