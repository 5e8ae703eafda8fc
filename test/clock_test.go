package test

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// If the clocks of a node and Redis differ by an hour, times that nodes share are Redis' times. The test simulates a
// Redis clock that is ahead by changing the time in replies to heartbeats.
func TestSharedTimeIsRedis(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	seed := write(t, filepath.Join(t.TempDir(), "seed.yaml"), "rules: [{id: all, algorithm: fixed_window, limit: 5/second}]")
	n := serve(t, "--store", "redis://"+anHourAhead(t, r.Addr), "--seed-rules", seed)
	reached(t, n)
	n.await("the clock of this node isn't redis': what nodes share goes by redis', but tokens and certificates are checked by this one",
		func(l map[string]any) bool {
			ahead, err := time.ParseDuration(l["redis is ahead by"].(string))
			return err == nil && (ahead-time.Hour).Abs() < time.Minute
		})

	// A fixed window of one second resets within a second.
	before := time.Now()
	a := check(t, n, `{"key": "k"}`)
	after := time.Now()
	reset, err := strconv.ParseInt(a.header.Get("X-RateLimit-Reset"), 10, 64)
	if at := time.Unix(reset, 0).Add(-time.Hour); err != nil || at.Before(before.Add(-2*time.Second)) || at.After(after.Add(3*time.Second)) {
		t.Errorf("X-RateLimit-Reset: %d is %v, want an hour after %v; %v", reset, at, before, err)
	}
	mustAdmin(t, n, "PUT", "/v1/rules/key", `{"key": "vip", "rule": "all", "limit": "50/second", "expires_in": "10m"}`)
	_, text := admin(t, n, "GET", "/v1/rules", "")
	m := regexp.MustCompile(`expires: "?([0-9TZ:-]+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no override in %s", text)
	}
	if at, err := time.Parse(time.RFC3339, m[1]); err != nil || at.Before(before.Add(65*time.Minute)) || at.After(time.Now().Add(75*time.Minute)) {
		t.Errorf("an override for ten minutes expires at %v, want in 70 minutes; %v", at, err)
	}
	if a := check(t, n, `{"key": "vip"}`); a.header.Get("X-RateLimit-Limit") != "50" {
		t.Errorf("the override isn't in force: %v", a.header)
	}
}

// heartbeat matches the reply to a heartbeat. The reply has the same length for every time.
var heartbeat = regexp.MustCompile(`(?s)\*5\r\n:\d+\r\n.*?\$10\r\n(\d{10})\r\n\$\d\r\n\d+\r\n`)

// anHourAhead starts a proxy to Redis that adds an hour to the time in replies to heartbeats, and returns the proxy's
// address.
func anHourAhead(t *testing.T, server string) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	pass := func(to, from net.Conn, change func([]byte)) {
		defer to.Close()
		defer from.Close()
		for b := make([]byte, 1<<16); ; {
			n, err := from.Read(b)
			change(b[:n])
			if _, wrote := to.Write(b[:n]); err != nil || wrote != nil {
				return
			}
		}
	}
	conns.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			redis, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			conns.Go(func() { pass(redis, client, func([]byte) {}) })
			conns.Go(func() {
				pass(client, redis, func(b []byte) {
					if m := heartbeat.FindSubmatchIndex(b); m != nil {
						seconds, _ := strconv.ParseInt(string(b[m[2]:m[3]]), 10, 64)
						copy(b[m[2]:], fmt.Sprint(seconds+3600))
					}
				})
			})
		}
	})
	return l.Addr().String()
}
