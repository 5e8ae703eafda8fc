package load

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// HTTPOptions describe the requests to an HTTP server.
type HTTPOptions struct {
	// URL is where to send requests. In its path and query, {n} is replaced by the client's number.
	URL *url.URL
	// Node means that the URL is the check API of a node, which accepts checks as JSON. Otherwise, it is an ordinary
	// endpoint.
	Node bool
	// Check describes the checks. For an ordinary endpoint, only its method and its keys are used.
	Check Check
	// Keys is how many clients there are.
	Keys int
	// KeyHeader is the name of the header with the client's key in requests to an ordinary endpoint. If "", no key is
	// sent.
	KeyHeader string
	// Header is sent with every request.
	Header http.Header
	// Timeout is how long a request may take.
	Timeout time.Duration
	// Connections is how many connections stay open: one for each worker.
	Connections int
	// TLS is the TLS configuration for https URLs. If nil, Go's defaults apply.
	TLS *tls.Config
}

// HTTP is a target that is an HTTP server: the check API of a node, or an ordinary endpoint.
type HTTP struct {
	HTTPOptions
	transport *http.Transport
	host      string
	body      string // JSON of a check up to the address, with {n} in place of the client's number
}

var _ Target = (*HTTP)(nil)

// NewHTTP prepares a target. It doesn't connect.
func NewHTTP(o HTTPOptions) (*HTTP, error) {
	t := &HTTP{HTTPOptions: o, host: cmp.Or(o.Header.Get("Host"), o.URL.Host)}
	// net/http takes the Host header from a field of the request, not from its headers.
	t.Header = http.Header{"User-Agent": {"weir-bench"}}
	maps.Copy(t.Header, o.Header)
	t.Header.Del("Host")
	// No proxy, no redirects and no HTTP/2: send load only to the given address, with one request in flight per connection.
	t.transport = &http.Transport{
		DialContext:         (&net.Dialer{Timeout: o.Timeout}).DialContext,
		TLSClientConfig:     o.TLS,
		TLSHandshakeTimeout: o.Timeout,
		MaxIdleConns:        o.Connections,
		MaxIdleConnsPerHost: o.Connections,
		MaxConnsPerHost:     o.Connections,
		DisableCompression:  true,
		Protocols:           new(http.Protocols),
	}
	t.transport.Protocols.SetHTTP1(true)
	if !o.Node {
		return t, nil
	}
	t.Check.Method = http.MethodPost
	t.Header.Set("Content-Type", "application/json")
	body, err := json.Marshal(checkapi.CheckRequest{
		Key: o.Check.KeyPrefix + "{n}", Method: o.Check.Method, Path: o.Check.Path, Cost: &o.Check.Cost,
	})
	t.body = strings.TrimSuffix(string(body), "}")
	return t, err
}

func (t *HTTP) String() string { return t.Check.Method + " " + t.URL.Redacted() }

// Close closes idle connections.
func (t *HTTP) Close() { t.transport.CloseIdleConnections() }

// Probe sends one request. It returns the answer, and at most maxBody bytes of the response's body.
func (t *HTTP) Probe(ctx context.Context) (Answer, []byte) {
	s := t.Sender().(*httpSender)
	a := s.Send(ctx, 0)
	return a, s.answer.Bytes()
}

// Sender returns a sender for one worker.
func (t *HTTP) Sender() Sender { return &httpSender{HTTP: t, number: newName("{n}", t.Keys)} }

type httpSender struct {
	*HTTP
	number *name
	answer bytes.Buffer // body of the last response, at most maxBody bytes
}

// maxBody is how many bytes of a response's body are kept. The rest is read and discarded.
const maxBody = 16 << 10

// Send sends one request, and reads the whole response.
func (s *httpSender) Send(ctx context.Context, n uint32) Answer {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, errTimeout)
	defer cancel()
	status, err := s.exchange(ctx, n)
	switch {
	case err == nil:
		return s.judge(status)
	case context.Cause(ctx) == errTimeout:
		return Answer{Outcome: TimedOut, Err: fmt.Errorf("no answer within %s", s.Timeout)}
	case ctx.Err() != nil:
		return Answer{Outcome: Unfinished, Err: ctx.Err()}
	}
	return Answer{Outcome: Failed, Err: err}
}

var errTimeout = errors.New("timeout")

func (s *httpSender) exchange(ctx context.Context, n uint32) (status int, err error) {
	req, err := s.request(ctx, n)
	if err != nil {
		return 0, err
	}
	res, err := s.transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	s.answer.Reset()
	if _, err = s.answer.ReadFrom(io.LimitReader(res.Body, maxBody)); err == nil {
		_, err = io.Copy(io.Discard, res.Body)
	}
	return res.StatusCode, err
}

// request creates a new request for each check, because the transport may still be writing an earlier one that was
// abandoned.
func (s *httpSender) request(ctx context.Context, n uint32) (*http.Request, error) {
	var body io.Reader
	if s.Node {
		text := strings.ReplaceAll(s.body, "{n}", s.number.of(n))
		body = strings.NewReader(text + `,"ip":"` + clientAddr(n).String() + `"}`)
	}
	req, err := http.NewRequestWithContext(ctx, s.Check.Method, "", body)
	if err != nil {
		return nil, err
	}
	req.URL, req.Host, req.Header = s.url(n), s.host, s.Header
	if !s.Node && s.KeyHeader != "" {
		req.Header = s.Header.Clone()
		req.Header.Set(s.KeyHeader, s.Check.KeyPrefix+strings.Clone(s.number.of(n)))
	}
	return req, nil
}

func (s *httpSender) url(n uint32) *url.URL {
	u := s.URL
	if s.Node {
		return u
	}
	c := *u
	number := s.number.of(n)
	c.Path = strings.ReplaceAll(u.Path, "{n}", number)
	c.RawPath = strings.ReplaceAll(u.RawPath, "{n}", number)
	c.RawQuery = strings.ReplaceAll(u.RawQuery, "{n}", number)
	return &c
}

// judge classifies a response by its status. A node's refusals have several statuses. So for a node, it also checks the
// body, in order not to count a proxy's 503 as a refusal.
func (s *httpSender) judge(status int) Answer {
	a := Answer{Outcome: Other, Status: uint16(status)}
	if s.Node && !bytes.Contains(s.answer.Bytes(), []byte(`"allowed":`)) {
		return a
	}
	a.Degraded = s.Node && bytes.Contains(s.answer.Bytes(), []byte(`"degraded":true`))
	switch {
	case status == http.StatusOK, !s.Node && status/100 == 2:
		a.Outcome = Allowed
	case status == http.StatusTooManyRequests, s.Node && (status == http.StatusForbidden || status == http.StatusServiceUnavailable):
		a.Outcome = Refused
	}
	return a
}
