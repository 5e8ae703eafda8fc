package redistest

import (
	"slices"
	"testing"
)

// New is [Start] for a test. If the server doesn't start, the test fails. The server is closed when
// the test ends, and its log is shown if the test failed.
func New(tb testing.TB, o Options) *Server {
	tb.Helper()
	s, err := Start(o)
	return kept(tb, s, err)
}

// NewSentinel is [StartSentinel] for a test.
func NewSentinel(tb testing.TB, o Options) *Sentinel {
	tb.Helper()
	s, err := StartSentinel(o)
	return kept(tb, s, err)
}

// NewCluster is [StartCluster] for a test.
func NewCluster(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	c, err := StartCluster(o)
	return kept(tb, c, err)
}

// NewProxy is [StartProxy] for a test.
func NewProxy(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	p, err := StartProxy(upstream)
	return kept(tb, p, err)
}

func (s *Server) servers() []*Server   { return []*Server{s} }
func (s *Sentinel) servers() []*Server { return slices.Concat(s.Servers, s.Sentinels) }
func (c *Cluster) servers() []*Server  { return c.Nodes }
func (p *Proxy) servers() []*Server    { return nil }

// kept fails a test if a group of servers didn't start, and otherwise closes it when the test ends.
func kept[T interface {
	servers() []*Server
	Close() error
}](tb testing.TB, started T, err error) T {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			for _, s := range started.servers() {
				tb.Logf("redis-server on %s:\n%s", s.Addr, s.Log())
			}
		}
		if err := started.Close(); err != nil {
			tb.Error(err)
		}
	})
	return started
}
