package redistest

// TB is what this package needs of a test, or of a program that measures.
type TB interface {
	Helper()
	Fatal(args ...any)
	Error(args ...any)
	Logf(format string, args ...any)
	Failed() bool
	Cleanup(f func())
}

// keep closes what a test has started when the test ends, and shows the servers' logs if it failed.
func keep(tb TB, started interface {
	servers() []*Server
	Close() error
}) {
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
}
