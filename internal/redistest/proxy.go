package redistest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"syscall"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/rs/zerolog/log"
)

// Proxy is a network of moods before a server alone; Sentinels and Clusters tell
// clients addresses that lead around it. Faults add up until [Proxy.Heal].
//
// A client that closes a connection while a delayed reply is on its way leaves a goroutine of
// toxiproxy's behind, in (*LatencyToxic).Pipe: tests that count goroutines must not count it.
type Proxy struct {
	Addr string

	port  *port
	proxy *toxiproxy.Proxy
}

// The ways through a proxy, by toxiproxy's names.
const (
	commands = "upstream"
	replies  = "downstream"
)

// Some of toxiproxy's parts log by the global logger, whatever they are told.
func init() { log.Logger = zerolog.Nop() }

// StartProxy starts a proxy before an address, without faults.
func StartProxy(upstream string) (*Proxy, error) {
	p, err := reserve()
	if err != nil {
		return nil, err
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := &Proxy{Addr: p.addr(), port: p, proxy: toxiproxy.NewProxy(server, "redis", p.addr(), upstream)}
	if err := proxy.Up(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return proxy, nil
}

// Delay holds each reply back for a while, give or take jitter; both in whole milliseconds.
func (p *Proxy) Delay(by, jitter time.Duration) error {
	return p.add(replies, "latency", map[string]int64{"latency": by.Milliseconds(), "jitter": jitter.Milliseconds()})
}

// Throttle lets so many kilobytes pass in a second, each way.
func (p *Proxy) Throttle(kilobytes int64) error {
	rate := map[string]int64{"rate": kilobytes}
	return errors.Join(p.add(commands, "bandwidth", rate), p.add(replies, "bandwidth", rate))
}

// DropCommands loses what clients send: it never runs. Connections stay open.
func (p *Proxy) DropCommands() error { return p.add(commands, "timeout", nil) }

// DropReplies loses what Redis answers: commands run and nobody hears of it. Connections stay open.
func (p *Proxy) DropReplies() error { return p.add(replies, "timeout", nil) }

// ResetCommands ends a connection at its next command, which doesn't run: by a
// reset if it was opened since, else by closing it.
func (p *Proxy) ResetCommands() error { return p.add(commands, "reset_peer", nil) }

// ResetReplies is ResetCommands at the next reply: the command has run.
func (p *Proxy) ResetReplies() error { return p.add(replies, "reset_peer", nil) }

// Heal takes all faults away. Connections that lost something are closed.
func (p *Proxy) Heal() { p.proxy.Toxics.ResetToxics(context.Background()) }

// Down closes all connections and refuses new ones.
func (p *Proxy) Down() { p.proxy.Stop() }

// Up ends Down.
func (p *Proxy) Up() (err error) {
	for range 200 {
		// The socket on which it listened may be closed a moment after Stop has returned.
		if err = p.proxy.Start(); !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// Redirect makes the proxy lead to another server from now on. Its connections end.
func (p *Proxy) Redirect(upstream string) error {
	p.proxy.Stop()
	p.proxy.Upstream = upstream
	return p.Up()
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() error {
	p.Heal()
	p.Down()
	return p.port.close()
}

func (p *Proxy) add(way, kind string, attributes map[string]int64) error {
	toxic, err := json.Marshal(map[string]any{"type": kind, "stream": way, "attributes": attributes})
	if err != nil {
		return err
	}
	_, err = p.proxy.Toxics.AddToxicJson(bytes.NewReader(toxic))
	return err
}
