package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/go-chi/httprate"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
)

const (
	body           = "ok"
	overHTTP       = "over HTTP"
	bareName       = "handler without a limiter"
	middlewareName = "Weir middleware, with headers"
	httprateName   = "httprate middleware, with headers"
)

// httpContenders serve a small response over loopback. Clients send their key in a header. The clients share the cores
// with the server, but use less CPU time.
var httpContenders = []contender{
	{bareName, floor, openHTTP(func(h http.Handler) http.Handler { return h })},
	{middlewareName, weirs, openHTTP(func(h http.Handler) http.Handler {
		rules := command.Must(weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "quota", Limits: []weir.Limit{weir.PerSecond(1_000_000)}}}}))
		return httplimit.New(weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{}), httplimit.Options{}).Wrap(h)
	})},
	{httprateName, rival, openHTTP(httprate.LimitBy(1_000_000, time.Second, func(r *http.Request) (string, error) {
		return r.Header.Get("X-API-Key"), nil
	}))},
}

func openHTTP(wrap func(http.Handler) http.Handler) func(*command.Run, compare.Limit, int) *compare.Limiter {
	return func(r *command.Run, _ compare.Limit, _ int) *compare.Limiter {
		server := httptest.NewServer(wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })))
		r.Cleanup(server.Close)
		var mu sync.Mutex // guards r.Cleanup
		worker := func() compare.Check {
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				return func(string) error { return err }
			}
			mu.Lock()
			defer mu.Unlock()
			r.Cleanup(func() { _ = conn.Close() })
			return (&client{conn: conn, reader: bufio.NewReader(conn)}).get
		}
		return &compare.Limiter{Worker: worker}
	}
}

// client sends requests over one connection. It parses as little of the response as possible, so that the measurement is
// about the server.
type client struct {
	conn    net.Conn
	reader  *bufio.Reader
	request []byte
}

func (c *client) get(key string) error {
	c.request = fmt.Appendf(c.request[:0], "GET /v1/orders HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: %s\r\n\r\n", key)
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	status, err := c.reader.ReadSlice('\n')
	if err != nil {
		return err
	}
	allowed := bytes.Contains(status, []byte(" 200 "))
	for line := status; len(line) > len("\r\n"); {
		if line, err = c.reader.ReadSlice('\n'); err != nil {
			return err
		}
	}
	if !allowed {
		return compare.ErrRefused // also for any other response; the table then prints a warning
	}
	_, err = c.reader.Discard(len(body))
	return err
}
