package redistest

import "testing"

// New is [Start] for a test, which it fails when the server doesn't start. The
// server is closed when the test ends; its log is shown when the test failed.
func New(tb testing.TB, o Options) *Server {
	tb.Helper()
	s, err := Start(o)
	if err != nil {
		tb.Fatal(err)
	}
	end(tb, s.Close, s)
	return s
}

// NewSentinel is [StartSentinel] for a test.
func NewSentinel(tb testing.TB, o Options) *Sentinel {
	tb.Helper()
	s, err := StartSentinel(o)
	if err != nil {
		tb.Fatal(err)
	}
	end(tb, s.Close, append(s.Servers[:2:2], s.Sentinels...)...)
	return s
}

// NewCluster is [StartCluster] for a test.
func NewCluster(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	c, err := StartCluster(o)
	if err != nil {
		tb.Fatal(err)
	}
	end(tb, c.Close, c.Nodes...)
	return c
}

// NewProxy is [StartProxy] for a test.
func NewProxy(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	p, err := StartProxy(upstream)
	if err != nil {
		tb.Fatal(err)
	}
	end(tb, p.Close)
	return p
}

func end(tb testing.TB, close func() error, servers ...*Server) {
	tb.Cleanup(func() {
		if tb.Failed() {
			for _, s := range servers {
				tb.Logf("redis-server on %s:\n%s", s.Addr, s.Log())
			}
		}
		if err := close(); err != nil {
			tb.Error(err)
		}
	})
}
