// Package bills compares the gateway's metering with the bills of servers that parse the same body differently.
package bills

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/gateway"
	"github.com/weirhq/weir/server/internal/edge/usage"
)

// budget is in dollars, and more than any call can cost.
const budget = 1_000_000_000

// price returns a model's price in dollars per million tokens. Servers may ignore the case of its name.
func price(model string) int64 {
	if strings.EqualFold(strings.TrimSpace(model), "large") {
		return 100
	}
	return 1
}

// unlimited is the length of a response without a limit.
const unlimited = 1000

// market is a gateway, and a server behind it that bills each call by its most expensive interpretation.
type market struct {
	limiter *weir.Limiter
	handler http.Handler
	mu      sync.Mutex // guards the fields below, because a handler may outlive a call that the gateway canceled
	run     int
	call    call
	fault   error
	billed  counter.Amount // in millionths of a dollar; 0 if the server didn't get the call
	how     string
}

func open(t testing.TB) *market {
	t.Helper()
	sum := func(model string, each int64) weir.Sum {
		return weir.Sum{Name: model, Parts: []weir.Weight{{Amount: "input", Each: each * 1e6}, {Amount: "output", Each: each * 1e6}}}
	}
	set, err := weir.Compile(weir.Rules{
		Rules: []weir.Rule{{ID: "usd", By: []string{"ip"}, Amount: "usd", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: budget, Window: 24 * time.Hour}}}},
		// Other model names have no price, because a server may take them for any model.
		Prices: []weir.Sum{sum("small", 1), sum("large", 100)},
	})
	if err != nil {
		t.Fatal(err)
	}
	m := &market{limiter: weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{})}
	server := httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(server.Close)
	upstream, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Options{Upstream: upstream, Limit: httplimit.New(m.limiter, httplimit.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	m.handler = g
	return m
}

var client = &weir.Request{IP: netip.MustParseAddr("192.0.2.1"), Peek: true}

// booked returns what the limiter has counted, in millionths of a dollar.
func (m *market) booked() (counter.Amount, error) {
	d, err := m.limiter.Check(context.Background(), client)
	if err != nil {
		return 0, err
	}
	return counter.Whole(budget) - d.Limits()[0].Left(), nil
}

// serve handles requests to the server behind the gateway.
func (m *market) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the gateway canceled the call
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Header.Get("X-Run") != strconv.Itoa(m.run) {
		return
	}
	reserved, err := m.booked()
	if err != nil {
		m.fault = err
		return
	}
	longest := int64(0)
	for name, read := range readers {
		b, err := read(body)
		if err != nil {
			m.fault = fmt.Errorf("%s: %w", name, err)
			return
		}
		models := usage.ModelsFromPath(m.call.path)
		if len(models) == 0 {
			models = []string{b.Model}
		}
		if models[0] == "" {
			continue // this reader would refuse the call
		}
		tokens := b.Tokens
		if tokens == 0 {
			tokens = unlimited
		}
		bill := counter.Amount(tokens * price(models[0]))
		if bill > reserved && m.fault == nil {
			m.fault = fmt.Errorf("%s reads %+v, which costs %s, and %s was reserved", name, b, bill, reserved)
		}
		if bill > m.billed {
			m.billed, m.how = bill, fmt.Sprintf("%s reads %+v", name, b)
		}
		longest = max(longest, tokens)
	}
	w.Header().Set("Content-Type", "application/json")
	if m.call.tells {
		fmt.Fprintf(w, `{"usage":{"prompt_tokens":0,"completion_tokens":%d,"total_tokens":%d}}`, longest, longest)
	} else {
		fmt.Fprint(w, `{"choices":[]}`)
	}
}

// try sends a call through the gateway. The error says if the call was underbilled, and by how much.
func (m *market) try(c call) (status int, err error) {
	if _, err := m.limiter.Reset(context.Background(), client); err != nil {
		return 0, err
	}
	m.mu.Lock()
	m.run++
	m.call, m.fault, m.billed, m.how = c, nil, 0, ""
	m.mu.Unlock()
	r := httptest.NewRequest(c.method, c.path, bytes.NewReader(c.body))
	if c.chunked {
		r.ContentLength = -1
	}
	r.Header.Set("Content-Type", c.contentType)
	r.Header.Set("X-Run", strconv.Itoa(m.run))
	w := httptest.NewRecorder()
	m.handler.ServeHTTP(w, r)
	m.mu.Lock()
	defer m.mu.Unlock()
	booked, err := m.booked()
	switch {
	case err != nil:
		return w.Code, err
	case m.fault != nil:
		return w.Code, m.fault
	case booked < m.billed:
		return w.Code, fmt.Errorf("%s, which costs %s, and %s was booked", m.how, m.billed, booked)
	}
	return w.Code, nil
}

func (c call) String() string {
	body := c.body
	if len(body) > 2000 {
		body = append(append(body[:1000:1000], "…"...), body[len(body)-1000:]...)
	}
	return fmt.Sprintf("%s %s as %q, chunked %t, with a usage %t: %q", c.method, c.path, c.contentType, c.chunked, c.tells, body)
}

// FuzzBills checks that no server bills more for a call than the gateway has metered, unless the gateway refused the call.
func FuzzBills(f *testing.F) {
	const blanks = "\x1e" // stands for a MiB of spaces, which a fuzzer would take long to shorten
	for _, body := range []string{
		`{"model":"small","max_tokens":100}`,
		`{"model":"small",` + blanks + `"model":"large"}`,
		`{"model":"small","x":NaN,"model":"large"}`,
		`{"model":"small","MODEL":"large"}`,
		`{"model":"small","mod\u0065l":"large"}`,
		`{"model":"small","max_tokens":1,` + blanks + `"max_tokens":1000}`,
		`{"model":"small","max_tokens":1,` + blanks + `"max_completion_tokens":1000}`,
		`{"max_to` + "\u212a" + `ens":1000000,"model":"small","max_tokens":1}`,
		`{"model":"small","max_tokens":"1_000_000"}`,
		`{"model":"small"} {"model":"large"}`,
		"\ufeff" + `{"model":"large","max_tokens":100000}`,
		`{"generationConfig":{"maxOutputTokens":1,"MaxOutputTokens":100000},"model":"small"}`,
		`{"model":"small","n":1,"N":1000,"max_tokens":100}`,
		`{"model":"small","max_tokens":-0,"max_output_tokens":1E+5}`,
	} {
		f.Add([]byte(body), true)
	}
	for i := range 500 { // choices are spread evenly
		choices := make([]byte, 48)
		for j := range choices {
			choices[j] = byte((i*48 + j) * 2654435761 >> 13)
		}
		f.Add(choices, false)
	}
	m := open(f)
	f.Fuzz(func(t *testing.T, data []byte, raw bool) {
		s := speller{data}
		c := call{method: "POST", path: "/v1/chat/completions", contentType: "application/json"}
		if c.body = bytes.Replace(data, []byte(blanks), bytes.Repeat([]byte(" "), 1<<20), 1); !raw {
			c = s.call()
		}
		if status, err := m.try(c); err != nil {
			t.Errorf("%d: %v\n%s", status, err, c)
		}
	})
}

// Ordinary calls are served, and the bill matches the metering.
func TestPlainCallsAreServed(t *testing.T) {
	m := open(t)
	for body, want := range map[string]int64{
		`{"model":"small","max_tokens":5000}`:                                                               5000,
		`{"model":"large","max_tokens":5000,"n":2}`:                                                         1_000_000,
		`{"messages":[{"content":"` + strings.Repeat("A", 2<<20) + `"}],"max_tokens":5000,"model":"small"}`: 5000,
	} {
		c := call{method: "POST", path: "/v1/chat/completions", contentType: "application/json", body: []byte(body), tells: true}
		status, err := m.try(c)
		if err != nil || status != 200 || m.billed != counter.Amount(want) {
			t.Errorf("%d, %v, billed %s: %s", status, err, m.billed, c)
		}
		if booked, _ := m.booked(); booked != m.billed {
			t.Errorf("booked %s, billed %s: %s", booked, m.billed, c)
		}
	}
}
