package checkapi_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
)

// benchBody is the request in the documentation.
const benchBody = `{"key": "sk_prod_abc", "method": "GET", "path": "/v1/orders/17", "ip": "203.0.113.7",
 "attributes": {"user": "42", "org": "acme", "tier": "pro"}, "cost": 1}`

// benchLimiter has a limit high enough for any number of requests that a benchmark can send.
func benchLimiter(tb testing.TB) *weir.Limiter {
	return newLimiter(tb, memstore.New(memstore.Options{}), weir.Rules{Rules: []weir.Rule{
		{ID: "orders", Match: weir.Match{Endpoint: "/v1/orders/{id}"}, Limits: []weir.Limit{weir.PerSecond(1_000_000_000)}},
	}})
}

// sink is a request that is sent again and again, and a ResponseWriter that discards the response.
type sink struct {
	r      *http.Request
	body   *bytes.Reader
	src    []byte
	header http.Header
	status int
}

func newSink(path string, body []byte) *sink {
	s := &sink{body: bytes.NewReader(body), src: body, header: http.Header{}}
	s.r = httptest.NewRequest(http.MethodPost, path, nil)
	s.r.Body, s.r.ContentLength = io.NopCloser(s.body), int64(len(body))
	return s
}

func (s *sink) serve(h http.Handler) {
	s.body.Reset(s.src)
	clear(s.header)
	h.ServeHTTP(s, s.r)
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }
