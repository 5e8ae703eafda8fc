package serve

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// stalled is an HTTP server that accepts no connection until goOn is closed.
type stalled struct {
	*httpServer
	goOn chan struct{}
}

func (s *stalled) Serve(l net.Listener) error {
	<-s.goOn
	return s.httpServer.Serve(l)
}

func (s *stalled) Drain() {
	s.httpServer.Drain()
	close(s.goOn)
}

// Connections that the kernel has accepted but the node hasn't are served before the port is closed, because closing it
// would reset them.
func TestQueuedConnectionsAreAnswered(t *testing.T) {
	n := &node{config: Config{DrainTimeout: time.Minute}}
	s := &stalled{newHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), bodyTimeout, slog.New(slog.DiscardHandler)), make(chan struct{})}
	p := &port{name: "http", addr: "127.0.0.1:0", server: s}
	if err := p.open(t.Context(), &n.config); err != nil {
		t.Fatal(err)
	}
	var clients []*client
	for range 100 {
		c, err := net.Dial("tcp", p.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, &client{t, c, bufio.NewReader(c)})
		fmt.Fprint(c, plainRequest)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the node stops at once
	if err := p.serve(ctx, n); err != nil {
		t.Error(err)
	}
	for _, c := range clients {
		c.answer()
	}
}
