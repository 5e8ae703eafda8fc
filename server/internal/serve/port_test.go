package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/server/internal/edge/guard"
)

// shouter is a server of another protocol than HTTP: once goOn is closed, it returns each line in capitals.
type shouter struct {
	goOn  chan struct{}
	asked chan struct{}

	mu    sync.Mutex // guards conns
	conns []net.Conn
	wg    sync.WaitGroup
}

func (s *shouter) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		s.wg.Go(func() {
			defer c.Close()
			line, err := bufio.NewReader(c).ReadString('\n')
			if err != nil {
				return
			}
			s.asked <- struct{}{}
			<-s.goOn
			fmt.Fprint(c, strings.ToUpper(line))
		})
	}
}

func (s *shouter) Drain() {}

func (s *shouter) Shutdown(ctx context.Context) error {
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range s.conns {
			c.Close()
		}
		return ctx.Err()
	}
}

// TestAPortOfAnotherProtocol checks that a port of another protocol is opened, served and drained like those of HTTP.
func TestAPortOfAnotherProtocol(t *testing.T) {
	for _, inTime := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := &node{config: Config{DrainTimeout: time.Minute}}
		if !inTime {
			n.config.DrainTimeout = time.Millisecond
		}
		s := &shouter{goOn: make(chan struct{}), asked: make(chan struct{}, 1)}
		ports, err := openAll(ctx, &n.config, []*port{{name: "shout", addr: "127.0.0.1:0", server: s}, {name: "unused"}})
		if err != nil || len(ports) != 1 {
			t.Fatal(ports, err)
		}
		at := ports[0].where().String()
		closed := make(chan bool, 1)
		ports[0].Listener = &noticed{ports[0].Listener, func() { closed <- n.draining.Load() }}
		ended := make(chan error, 1)
		go func() { ended <- ports[0].serve(ctx, n) }()
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintln(c, "hello")
		<-s.asked // in flight
		cancel()
		if inTime {
			if !<-closed {
				t.Error("the port was closed before the node said that it isn't ready")
			}
			close(s.goOn)
		}
		answer, err := bufio.NewReader(c).ReadString('\n')
		if (answer == "HELLO\n") != inTime {
			t.Errorf("in time %v: answered %q, %v", inTime, answer, err)
		}
		err = <-ended
		if inTime && err != nil || !inTime && (err == nil || err.Error() != "shout: requests were still in flight after 1ms") {
			t.Errorf("in time %v: ended with %v", inTime, err)
		}
		if !inTime {
			close(s.goOn)
		}
		s.wg.Wait()
	}
}

// noticed is a listener that calls closed before it closes.
type noticed struct {
	net.Listener
	closed func()
}

func (l *noticed) Close() error {
	l.closed()
	return l.Listener.Close()
}

// TestPortsOpenTogetherOrNotAtAll checks that if one port can't be opened, the others are closed.
func TestPortsOpenTogetherOrNotAtAll(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	first := &port{name: "http", addr: "127.0.0.1:0"}
	_, err = openAll(t.Context(), &Config{}, []*port{first, {name: "admin", addr: taken.Addr().String()}})
	if err == nil || !strings.HasPrefix(err.Error(), "--admin: ") || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("got %v", err)
	}
	if _, err := first.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the first port is still open: %v", err)
	}
	_, err = openAll(t.Context(), &Config{}, []*port{{name: "region", addr: taken.Addr().String()}})
	if err == nil || !strings.HasPrefix(err.Error(), "regions.listen: "+taken.Addr().String()+" is in use") { // this port has no flag
		t.Errorf("got %v", err)
	}
	_, err = openAll(t.Context(), &Config{}, []*port{{name: "region", addr: "192.0.2.1:0"}})
	if err == nil || !strings.HasPrefix(err.Error(), "regions.listen: ") {
		t.Errorf("an address of another machine: %v", err)
	}
	for onlyEnvoy, canClose := range map[bool]bool{false: true, true: false} { // variables of envoyproxy/ratelimit can't turn off a port
		_, err := openAll(t.Context(), &Config{OnlyEnvoy: onlyEnvoy}, []*port{{name: "http", addr: taken.Addr().String()}})
		if err == nil || strings.Contains(err.Error(), "to open none") != canClose {
			t.Errorf("with OnlyEnvoy %v: %v", onlyEnvoy, err)
		}
	}
}

// TestOptionsOfAServer checks that OPTIONS * gets 400 from the handler, and not net/http's own response.
func TestOptionsOfAServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{log: slog.New(slog.DiscardHandler)}
	s := newHTTP(n.api(nil, nil, guard.New(guard.Options{AnyName: true})), bodyTimeout, n.log)
	go s.Serve(l)
	defer s.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
	if answer, err := bufio.NewReader(c).ReadString('\n'); answer != "HTTP/1.1 400 Bad Request\r\n" {
		t.Errorf("answered %q, %v", answer, err)
	}
}
