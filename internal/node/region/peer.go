package region

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	beatEvery = time.Second
	// silentAfter is the time without an answer after which a region counts as silent, so that checks no longer wait
	// for it.
	silentAfter = 3 * time.Second
	// maxMessages bounds the messages to one region that are in flight. Once the bound is reached, further operations
	// share the next message. Messages about stakes are sent every talkEvery, and must not use up the bound while the
	// region doesn't answer.
	maxMessages = 32
	// talkEvery is the shortest time between two messages about stakes.
	talkEvery = 50 * time.Millisecond
)

type peer struct {
	link      *Link
	name      string
	addresses []string
	at        atomic.Int64 // counts up; modulo their number, the index of the address to use
	client    *http.Client

	mu sync.Mutex // guards the fields below
	Status
	queue   []*pendingOperation
	talks   []*pendingOperation // messages about stakes that wait for a timer to queue them
	sending int
	missed  bool      // the region is silent, and that was logged
	heard   time.Time // when the region last answered, or when this node started if it never has
	err     error
}

var errAnswer = errors.New("unexpected answer: does the region run another version of Weir?")

// pendingOperation is an operation whose answer hasn't arrived.
type pendingOperation struct {
	operation
	ctx  context.Context // done when no caller waits for the answer anymore
	done chan struct{}   // closed when result and err are set
	result
	err error
}

func newPeer(l *Link, name string, addresses []string, config *tls.Config) *peer {
	now := time.Now()
	return &peer{
		link: l, name: name, addresses: addresses, err: errors.New("not heard yet"), heard: now, Status: Status{Region: name, Since: now},
		client: &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: l.beatFor()}).DialContext,
			TLSClientConfig:     config.Clone(),
			TLSHandshakeTimeout: l.beatFor(),
			ForceAttemptHTTP2:   true,
			IdleConnTimeout:     time.Minute,
			HTTP2:               &http.HTTP2Config{SendPingTimeout: silentAfter, PingTimeout: silentAfter},
		}},
	}
}

// waits returns how long to wait for an operation's answer. For a check, that is the check's own timeout. Messages
// about stakes and resets wait longer: late tokens are still useful, and an operator wants to know whether a reset
// succeeded.
func (p *peer) waits(a *operation) time.Duration {
	if a.Talk != nil || len(a.Resets) > 0 {
		return p.link.beatFor()
	}
	return p.link.timeout
}

func (p *peer) do(ctx context.Context, a operation) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, p.waits(&a))
	defer cancel()
	x := &pendingOperation{operation: a, ctx: ctx, done: make(chan struct{})}
	p.mu.Lock()
	if p.silentLocked() {
		err := p.err
		p.mu.Unlock()
		return result{}, fmt.Errorf("region %s is silent: %w", p.name, err)
	}
	if a.Talk == nil {
		p.queue = append(p.queue, x)
		p.flushLocked()
	} else { // wait up to talkEvery, to share a message with others
		if p.talks = append(p.talks, x); len(p.talks) == 1 {
			time.AfterFunc(talkEvery, p.sendTalks)
		}
	}
	p.mu.Unlock()
	select {
	case <-x.done:
		return x.result, x.err
	case <-ctx.Done():
		return result{}, fmt.Errorf("region %s: %w", p.name, ctx.Err())
	}
}

func (p *peer) sendTalks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue, p.talks = append(p.queue, p.talks...), nil
	p.flushLocked()
}

// flushLocked sends queued operations, in as many messages as maxMessages allows in flight. It drops operations whose
// caller has given up, because tokens that they took would be lost. It still sends those that give tokens back.
func (p *peer) flushLocked() {
	for p.sending < maxMessages && len(p.queue) > 0 {
		n := min(len(p.queue), maxActs)
		batch := slices.DeleteFunc(p.queue[:n:n], func(x *pendingOperation) bool { return x.ctx.Err() != nil && len(x.Returns) == 0 })
		if p.queue = p.queue[n:]; len(batch) > 0 {
			p.sending++
			go p.send(batch)
		}
	}
}

// send sends operations in one message, and passes the results to their callers.
func (p *peer) send(batch []*pendingOperation) {
	m := message{Acts: make([]operation, len(batch))}
	wait := p.link.timeout
	for i, x := range batch {
		m.Acts[i] = x.operation
		wait = max(wait, p.waits(&x.operation))
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	a, err := p.say(ctx, &m)
	if err == nil && len(a.Done) != len(batch) {
		err = errAnswer
	}
	for i, x := range batch {
		if x.err = err; err == nil {
			x.result = a.Done[i]
		}
		close(x.done)
	}
	p.mu.Lock()
	p.sending--
	p.flushLocked()
	p.mu.Unlock()
}

// say sends a message and records whether the region answered.
func (p *peer) say(ctx context.Context, m *message) (answer, error) {
	begun, at := time.Now(), p.at.Load()
	next := func() { p.at.CompareAndSwap(at, at+1) } // to the next address, unless another message has already moved on
	late := time.AfterFunc(p.link.timeout, next)     // by then, checks have given up
	a, err := p.post(ctx, p.addresses[at%int64(len(p.addresses))], m)
	late.Stop()
	if err == nil && a.Topology != nil {
		if err := p.link.learn(ctx, a.Topology, 0); err != nil {
			p.link.log.Warn("can't store what a region knows of the others", "region", p.name, "error", err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if err != nil {
		next()
		p.err = err
		if !p.missed && time.Since(p.heard) > silentAfter {
			p.missed = true
			p.link.log.Warn("region can't be reached", "region", p.name, "error", err)
			if p.Up {
				p.Up, p.Since = false, now
			}
		}
		return a, err
	}
	if p.missed = false; !p.Up {
		p.Up, p.Since = true, now
		p.link.log.Info("region is there", "region", p.name)
	}
	same := a.Rules == p.link.rules()
	if !same && (p.SameRules || p.Epoch == 0) {
		p.link.log.Warn("region has other global rules, homes or peers: rules that differ are decided by the numbers of the asking region", "region", p.name)
	}
	p.heard, p.err, p.SameRules, p.Epoch = now, nil, same, firstEpoch
	if a.Topology != nil {
		p.Epoch = a.Topology.Epoch
	}
	if len(m.Acts) == 0 {
		p.RTTMS = float64(now.Sub(begun).Microseconds()) / 1000
	}
	return a, nil
}

func (p *peer) post(ctx context.Context, address string, m *message) (a answer, err error) {
	m.From, m.To, m.Topology, m.Rules = p.link.name, p.name, p.link.topology().told(), p.link.rules()
	text, err := json.Marshal(m)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+path, bytes.NewReader(text))
	if err != nil {
		return a, err
	}
	req.GetBody = nil // never resend: the region may have carried out the request
	res, err := p.client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	text, err = io.ReadAll(io.LimitReader(res.Body, maxMessage))
	switch {
	case err != nil:
		return a, err
	case res.StatusCode != http.StatusOK:
		return a, fmt.Errorf("%s: %s", res.Status, bytes.TrimSpace(text))
	}
	return a, json.Unmarshal(text, &a)
}

func (p *peer) run(ctx context.Context) {
	defer p.client.CloseIdleConnections()
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		beat, cancel := context.WithTimeout(ctx, p.link.beatFor())
		_, _ = p.say(beat, &message{}) // say records whether the region answered
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// silentFor returns how long ago the region last answered or, if it never has, how long this node has waited for it.
func (p *peer) silentFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.heard)
}

func (p *peer) status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, t := p.Status, p.link.topology()
	s.Home, s.State = p.name == t.home(p.link.home), t.Away[p.name]
	s.Grace = p.link.inGrace(p.name, time.Now().UnixMicro())
	if s.Since = s.Since.UTC().Truncate(time.Millisecond); p.err != nil && !p.Up {
		s.Error = p.err.Error()
	}
	return s
}

// silent reports that the region hasn't answered for so long that checks shouldn't wait for it.
func (p *peer) silent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.silentLocked()
}

// silentLocked is silent with the lock held. A region that has never answered isn't silent for the first silentAfter:
// like this node, it may still be starting.
func (p *peer) silentLocked() bool { return !p.Up && time.Since(p.heard) > silentAfter }
