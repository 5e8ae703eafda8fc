package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/client"
)

// BenchmarkAThousandGoroutines, run by make bench-client, compares a plain client with a Transport over real HTTP
// against a limit of 500 requests per second. It measures ten seconds, after two seconds in which the client learns the
// limit.
func BenchmarkAThousandGoroutines(b *testing.B) {
	plain := &http.Transport{MaxIdleConnsPerHost: 1000, MaxConnsPerHost: 1000}
	defer plain.CloseIdleConnections()
	for name, rt := range map[string]http.RoundTripper{"plain": plain, "Transport": &client.Transport{Base: plain}} {
		b.Run(name, func(b *testing.B) {
			var sent, refused atomic.Int64
			limit := limited(weir.PerSecond(500))
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				sent.Add(1)
				c := &counting{ResponseWriter: w}
				if limit.ServeHTTP(c, r); c.status == http.StatusTooManyRequests {
					refused.Add(1)
				}
			}))
			defer srv.Close()
			for b.Loop() {
				ctx, cancel := context.WithTimeout(b.Context(), 12*time.Second)
				time.AfterFunc(2*time.Second, func() { sent.Store(0); refused.Store(0) })
				flood(ctx, srv.URL, 1000, rt)
				cancel()
			}
			s, r := float64(sent.Load()), float64(refused.Load())
			b.ReportMetric(s/10, "sent/s")
			b.ReportMetric(100*r/s, "%refused")
			b.ReportMetric((s-r)/10/500*100, "%of-limit")
		})
	}
}

type counting struct {
	http.ResponseWriter
	status int
}

func (c *counting) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

// BenchmarkRoundTrip measures what a Transport adds to a request that doesn't have to wait.
func BenchmarkRoundTrip(b *testing.B) {
	base := answers(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{
			"Ratelimit-Policy": {`"all";q=1000000;w=1`}, "Ratelimit": {`"all";r=999999;t=1`},
		}}, nil
	})
	rt := &client.Transport{Base: base}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://service/v1/orders/17", nil)
		if err != nil {
			b.Error(err)
		}
		for pb.Next() {
			if _, err := rt.RoundTrip(req); err != nil {
				b.Error(err)
			}
		}
	})
}
