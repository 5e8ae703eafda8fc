package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/weirhq/weir/server/bench/internal/rawhttp"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"github.com/weirhq/weir/server/internal/load"
)

// traffic is the load on a node, and its results. Key n uses rule n % 4.
type traffic struct {
	target rawhttp.Target
	keys   []key

	mu    sync.Mutex // guards what follows, and the counts of keys
	wrong map[string]int64
	first time.Time // time of the first degraded answer after the fault
	last  time.Time
	fault time.Time // zero before the fault
	most  int       // the most goroutines of this process
}

// key is one client of the load.
type key struct {
	name    string
	rule    string
	request []byte
	spared  bool // it is stored on a server that the fault doesn't hit
	sent    int64
	counted int64 // answers of 200 that weren't degraded
	local   int64 // answers of 200 that were degraded
}

func newTraffic(addr string, names []string) *traffic {
	t := &traffic{wrong: map[string]int64{}}
	t.target = rawhttp.Target{Addr: addr, Request: t.request, Outcome: t.outcome}
	for i, name := range names {
		rule := ruleNames[i%len(ruleNames)]
		t.keys = append(t.keys, key{name: name, rule: rule, request: request(rule, name, 1)})
	}
	return t
}

// begin records the time of the fault. From now on, answers may be degraded.
func (t *traffic) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fault = time.Now()
}

func (t *traffic) request(n uint32) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys[n].sent++
	return t.keys[n].request
}

func (t *traffic) outcome(n uint32, raw rawhttp.Answer, err error) load.Answer {
	a := newAnswer(raw)
	t.note(&t.keys[n], a, err)
	if err != nil {
		return load.Answer{Outcome: load.Failed, Err: err}
	}
	return load.Answer{Degraded: a.degraded, Status: uint16(a.status)}
}

// note counts an answer, and records its errors.
func (t *traffic) note(k *key, a answer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.most = max(t.most, runtime.NumGoroutine())
	if err != nil {
		t.wrong["no answer: "+err.Error()]++
		return
	}
	if fault := a.fault(k.rule); fault != "" {
		t.wrong[fault]++
	}
	switch {
	case a.degraded:
		now := time.Now()
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

// answer is an answer of the check API.
type answer struct {
	status   int
	degraded bool
	told     bool // the header for clients says that the answer is degraded
	body     []byte
}

func newAnswer(a rawhttp.Answer) answer {
	return answer{a.Status, a.Degraded(), a.Header.Get("X-Ratelimit-Policy") == "degraded", a.Body}
}

// left returns how many requests the key has left.
func (a answer) left() (int64, error) {
	var d checkapi.CheckResponse
	err := json.Unmarshal(a.body, &d)
	return d.Remaining, err
}

// fault returns why an answer is wrong by itself, or "".
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

// patience ends tests that hang.
const patience = 30 * time.Second

// request returns a check as an HTTP request.
func request(rule, name string, cost int) []byte {
	return rawhttp.Post("/v1/check", fmt.Sprintf(`{"path":"/%s","key":%q,"cost":%d}`, rule, name, cost))
}

// client sends single checks.
type client struct{ rawhttp.Conn }

func (c *client) check(rule, name string, cost int) (answer, error) {
	a, err := c.Do(request(rule, name, cost))
	return newAnswer(a), err
}
