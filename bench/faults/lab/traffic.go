package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"github.com/weirhq/weir/server/internal/load"
)

// traffic is the load on a node, and what came of it. Key n asks by the rule n % 4.
type traffic struct {
	addr    string
	keys    []key
	senders []*sender

	mu       sync.Mutex // guards what follows
	begun    int        // senders that have had an answer
	statuses map[int]int64
	wrong    map[string]int64
	degraded int64
	first    time.Time // degraded answer since the fault
	last     time.Time
	fault    time.Time // zero until then
}

// key is one client of the load. Traffic's mu guards its counts.
type key struct {
	name    string
	rule    string
	request string
	spared  bool // it is kept by a server that the fault doesn't hit
	sent    int64
	counted int64 // answers of 200 that weren't degraded
	local   int64 // answers of 200 that were
}

func newTraffic(addr string, names []string) *traffic {
	t := &traffic{addr: addr, statuses: map[int]int64{}, wrong: map[string]int64{}}
	for i, name := range names {
		rule := ruleNames[i%len(ruleNames)]
		t.keys = append(t.keys, key{name: name, rule: rule, request: request(rule, name, 1)})
	}
	return t
}

var _ load.Target = (*traffic)(nil)

func (t *traffic) String() string { return t.addr }

// Sender returns a sender with a connection of its own. Unlike net/http's it has no
// goroutines, so that those counted are the node's.
func (t *traffic) Sender() load.Sender {
	s := &sender{traffic: t, client: client{addr: t.addr}}
	t.senders = append(t.senders, s)
	return s
}

// close ends the connections, when nothing is sent any more.
func (t *traffic) close() {
	for _, s := range t.senders {
		s.client.close()
	}
}

// begin says that from now on answers may be degraded.
func (t *traffic) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fault = time.Now()
}

// untilAllSend waits until the given number of senders have received an answer over a connection of their own.
func (t *traffic) untilAllSend(ctx context.Context, senders int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return redistest.Until(ctx, func(context.Context) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.begun < senders {
			return fmt.Errorf("%d of %d senders have had an answer", t.begun, senders)
		}
		return nil
	})
}

type sender struct {
	traffic *traffic
	client  client
	begun   bool
}

func (s *sender) Send(ctx context.Context, n uint32) load.Answer {
	t := s.traffic
	k := &t.keys[n]
	t.mu.Lock()
	k.sent++
	t.mu.Unlock()
	a, err := s.client.send(k.request)
	t.note(k, a, err)
	if !s.begun {
		s.begun = true
		t.mu.Lock()
		t.begun++
		t.mu.Unlock()
	}
	if err != nil {
		return load.Answer{Outcome: load.Failed, Err: err}
	}
	return load.Answer{Outcome: load.Allowed, Degraded: a.degraded, Status: uint16(a.status)}
}

// note counts an answer, and what is wrong with it.
func (t *traffic) note(k *key, a answer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.wrong["no answer: "+err.Error()]++
		return
	}
	t.statuses[a.status]++
	if fault := a.fault(k.rule); fault != "" {
		t.wrong[fault]++
	}
	switch {
	case a.degraded:
		now := time.Now()
		t.degraded++
		if t.fault.IsZero() {
			t.wrong["degraded before the fault"]++
		} else if t.first.IsZero() {
			t.first = now
		}
		t.last = now
		if k.spared {
			t.wrong["degraded, on another shard"]++
		}
		if a.status == http.StatusOK {
			k.local++
		}
	case a.status == http.StatusOK:
		k.counted++
	}
}

// answer is what the check API said.
type answer struct {
	status   int
	degraded bool
	told     bool // by the header that clients see
	body     []byte
}

// left is how many requests remain to the key.
func (a answer) left() (int64, error) {
	var d checkapi.CheckResponse
	err := json.Unmarshal(a.body, &d)
	return d.Remaining, err
}

// fault says what is wrong with an answer by itself; "" is nothing.
func (a answer) fault(rule string) string {
	right := a.status == http.StatusOK
	switch rule {
	case "refuse":
		right = right && !a.degraded || a.status == http.StatusServiceUnavailable && a.degraded
	case "local", "tight":
		right = right || a.status == http.StatusTooManyRequests
	}
	switch {
	case !right:
		return fmt.Sprintf("%s: %d, degraded %v", rule, a.status, a.degraded)
	case a.told != a.degraded:
		return fmt.Sprintf("%s: degraded is %v, but the header says %v", rule, a.degraded, a.told)
	}
	return ""
}

// client asks for checks over one connection.
type client struct {
	addr string
	conn net.Conn
	in   *bufio.Reader
}

// patience ends what hangs.
const patience = 30 * time.Second

// request is a check in the words of HTTP.
func request(rule, name string, cost int) string {
	body := fmt.Sprintf(`{"path":"/%s","key":%q,"cost":%d}`, rule, name, cost)
	return fmt.Sprintf("POST /v1/check HTTP/1.1\r\nHost: weir\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func (c *client) check(rule, name string, cost int) (answer, error) {
	return c.send(request(rule, name, cost))
}

func (c *client) send(request string) (a answer, err error) {
	if c.conn == nil {
		conn, err := net.DialTimeout("tcp", c.addr, patience)
		if err != nil {
			return a, err
		}
		c.conn, c.in = conn, bufio.NewReader(conn)
	}
	if a, err = c.exchange(request); err != nil {
		c.close()
	}
	return a, err
}

func (c *client) exchange(request string) (a answer, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return a, err
	}
	if _, err = io.WriteString(c.conn, request); err != nil {
		return a, err
	}
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return a, err
	}
	body, err := io.ReadAll(res.Body)
	return answer{
		status:   res.StatusCode,
		degraded: bytes.Contains(body, []byte(`"degraded":true`)),
		told:     res.Header.Get("X-RateLimit-Policy") == "degraded",
		body:     body,
	}, err
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}
