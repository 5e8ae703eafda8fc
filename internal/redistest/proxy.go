package redistest

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/loopback"
)

// Proxy simulates an unreliable network in front of one server. It doesn't work for Sentinels or a Cluster, because
// they send clients addresses that bypass it. Faults are cumulative until [Proxy.Heal], and apply to open connections
// at once.
//
// Don't call Down, Up, Redirect and Close concurrently. All other methods are safe for concurrent use.
type Proxy struct {
	Addr string

	running sync.WaitGroup // all goroutines started since Up

	mu       sync.Mutex // guards the fields below; Heal and Down hold it while they close connections
	upstream string
	listener net.Listener // nil while the proxy is down
	links    map[*link]struct{}
	faults   [2]faults // indexed by commands and replies
}

// The directions of data through a proxy.
const (
	commands = 0
	replies  = 1
)

// faults say what happens to data in one direction. The zero value lets data pass.
type faults struct {
	delay       time.Duration
	rate        int64 // kilobytes per second; 0 means unlimited
	drop, reset bool
}

// link has the two connections of a client: to the client, from which commands come, and to the server, from which
// replies come.
type link [2]net.Conn

// close ends both connections. It may be called more than once.
func (l *link) close() {
	l[commands].Close()
	l[replies].Close()
}

// chunk is data that was read from a connection, and the time at which it was read.
type chunk struct {
	data []byte
	at   time.Time
}

// ahead is how many chunks may wait in one direction of a connection. If there are more, the sender has to wait.
const ahead = 1024

// NewProxy starts a proxy in front of an address, without faults. The proxy is closed when the test ends.
func NewProxy(tb TB, upstream string) *Proxy {
	tb.Helper()
	addrs, err := freeAddrs(loopback.Host(), 1)
	check(tb, err)
	p := &Proxy{Addr: addrs[0], upstream: upstream, links: map[*link]struct{}{}}
	tb.Cleanup(p.Down)
	check(tb, p.Up())
	return p
}

// Delay holds each reply back for the given time.
func (p *Proxy) Delay(by time.Duration) error {
	return p.change(func() { p.faults[replies].delay = by })
}

// Throttle limits each direction to the given number of kilobytes per second.
func (p *Proxy) Throttle(kilobytes int64) error {
	return p.change(func() { p.faults[commands].rate, p.faults[replies].rate = kilobytes, kilobytes })
}

// DropCommands drops what clients send, so commands never run. Connections stay open.
func (p *Proxy) DropCommands() error { return p.change(func() { p.faults[commands].drop = true }) }

// DropReplies drops the replies of Redis. Commands run, but clients don't learn of it. Connections stay open.
func (p *Proxy) DropReplies() error { return p.change(func() { p.faults[replies].drop = true }) }

// ResetCommands ends a connection when a command arrives, which then doesn't run. Connections that were opened after
// this call end with a reset; older ones are closed.
func (p *Proxy) ResetCommands() error { return p.change(func() { p.faults[commands].reset = true }) }

// ResetReplies ends a connection when a reply arrives, after the command has run. See ResetCommands.
func (p *Proxy) ResetReplies() error { return p.change(func() { p.faults[replies].reset = true }) }

// Heal removes all faults. If data was being dropped, Heal closes all connections, because neither side could parse
// what follows a gap.
func (p *Proxy) Heal() {
	_ = p.change(func() {
		if p.faults[commands].drop || p.faults[replies].drop {
			p.closeLinks()
		}
		p.faults = [2]faults{}
	})
}

// change changes the faults under the lock. It always returns nil, so that the methods for faults have the same type as
// others that may fail.
func (p *Proxy) change(f func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	return nil
}

// closeLinks closes all connections. The caller holds the lock.
func (p *Proxy) closeLinks() {
	for l := range p.links {
		l.close()
	}
}

// Down closes all connections and refuses new ones. When it returns, all goroutines of the proxy have ended.
func (p *Proxy) Down() {
	p.mu.Lock()
	if p.listener != nil {
		p.listener.Close()
		p.closeLinks()
		p.listener = nil
	}
	p.mu.Unlock()
	p.running.Wait()
}

// Up starts the proxy again after Down.
func (p *Proxy) Up() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var listener net.Listener
	// Retry: a child process that is being forked keeps the last listener open until it executes another program.
	err := Until(ctx, func(context.Context) (err error) {
		listener, err = net.Listen("tcp", p.Addr)
		return err
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = listener
	upstream := p.upstream
	p.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.serve(client, upstream) })
		}
	})
	return nil
}

// Redirect sends new connections to another server, and closes the current ones.
func (p *Proxy) Redirect(upstream string) error {
	p.Down()
	p.upstream = upstream // no goroutine reads it now
	return p.Up()
}

// serve connects a client to the server, until one of them closes its connection, or until a fault closes both.
func (p *Proxy) serve(client net.Conn, upstream string) {
	defer client.Close()
	server, err := net.DialTimeout("tcp", upstream, time.Second)
	if err != nil {
		return
	}
	l := &link{client, server}
	defer l.close()

	p.mu.Lock()
	if p.listener == nil {
		p.mu.Unlock()
		return
	}
	p.links[l] = struct{}{}
	if p.faults[commands].reset || p.faults[replies].reset {
		for _, end := range l {
			_ = end.(*net.TCPConn).SetLinger(0) // makes Close send a reset; fails only if the connection is closed
		}
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	}()

	var ways sync.WaitGroup
	for way := range l {
		queue := make(chan chunk, ahead)
		ways.Go(func() { l.read(way, queue) })
		ways.Go(func() { p.write(l, way, queue) })
	}
	ways.Wait()
}

// read queues the data from one end, until that end is closed.
func (l *link) read(way int, queue chan<- chunk) {
	defer close(queue)
	buf := make([]byte, 32<<10)
	for {
		n, err := l[way].Read(buf)
		if n > 0 {
			queue <- chunk{slices.Clone(buf[:n]), time.Now()}
		}
		if err != nil {
			return
		}
	}
}

// write sends queued data to the other end, subject to the faults. When the queue is closed, it closes the connections.
func (p *Proxy) write(l *link, way int, queue <-chan chunk) {
	defer func() {
		l.close()
		for range queue { // drain the queue, so that read doesn't block
		}
	}()
	var free time.Time // when the last piece of data has passed a throttled connection
	for c := range queue {
		for len(c.data) > 0 {
			p.mu.Lock()
			f, down := p.faults[way], p.listener == nil // once Heal has ended a drop, l is closed, so no data passes that should have been dropped
			p.mu.Unlock()
			if f.reset || down {
				return
			}
			if f.drop {
				break
			}
			piece, due := c.data, c.at.Add(f.delay)
			if f.rate > 0 {
				piece = piece[:min(len(piece), int(f.rate)*100)]
				if free.After(due) {
					due = free
				}
				due = due.Add(time.Duration(len(piece)) * time.Millisecond / time.Duration(f.rate))
			}
			if wait := time.Until(due); wait > 0 {
				time.Sleep(min(wait, 5*time.Millisecond)) // faults may change in the meantime
				continue
			}
			if _, err := l[1-way].Write(piece); err != nil {
				return
			}
			c.data, free = c.data[len(piece):], due
		}
	}
}
