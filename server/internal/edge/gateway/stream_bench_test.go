package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// streaming starts a model that streams events, and a gateway in front of it that counts tokens and requests in flight.
// It returns their URLs.
func streaming(b *testing.B, events int) (direct, through string) {
	event := "data: {\"choices\": [{\"delta\": {\"content\": \"" + strings.Repeat("word ", 200) + "\"}}]}\n\n"
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range events {
			fmt.Fprint(w, event)
			if i == 0 {
				w.(http.Flusher).Flush()
			}
		}
		fmt.Fprint(w, "data: {\"usage\": {\"prompt_tokens\": 2, \"completion_tokens\": 8, \"total_tokens\": 10}}\n\ndata: [DONE]\n\n")
	}))
	b.Cleanup(model.Close)
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		daily("tokens", 1_000_000_000),
		{ID: "flight", By: []string{"ip"}, Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 20}}},
	}})
	if err != nil {
		b.Fatal(err)
	}
	upstream, err := url.Parse(model.URL)
	if err != nil {
		b.Fatal(err)
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	g, err := New(Options{Upstream: upstream, Limit: httplimit.New(limiter, httplimit.Options{})})
	if err != nil {
		b.Fatal(err)
	}
	server := httptest.NewServer(g)
	b.Cleanup(func() {
		server.Close()
		g.Close()
	})
	return model.URL, server.URL
}

func ask(b *testing.B, to string) io.ReadCloser {
	res, err := http.Post(to+"/v1/chat/completions", "application/json", strings.NewReader(chat))
	if err != nil || res.StatusCode != 200 {
		b.Fatal(res, err)
	}
	return res.Body
}

// BenchmarkFirstByte compares the time to the first byte of a stream from the model alone and through the gateway,
// alternating between them. It reports the median and p99 in ms.
func BenchmarkFirstByte(b *testing.B) {
	direct, through := streaming(b, 3)
	took := map[string][]time.Duration{}
	for i := 0; b.Loop(); i++ {
		for _, to := range []string{direct, through} {
			begun := time.Now()
			body := ask(b, to)
			if _, err := body.Read(make([]byte, 1)); err != nil {
				b.Fatal(err)
			}
			if i > 0 { // not the first, which includes connecting
				took[to] = append(took[to], time.Since(begun))
			}
			_, _ = io.Copy(io.Discard, body)
			body.Close()
		}
	}
	at := func(to string, part float64) float64 {
		slices.Sort(took[to])
		return took[to][int(float64(len(took[to])-1)*part)].Seconds() * 1000
	}
	b.ReportMetric(at(direct, 0.5), "direct-ms")
	b.ReportMetric(at(through, 0.5), "through-ms")
	b.ReportMetric(at(through, 0.99), "through-p99-ms")
	b.ReportMetric(at(through, 0.5)-at(direct, 0.5), "more-ms")
}

// BenchmarkLongStream reads a gigabyte through the gateway, and reports the largest heap of the process, including the
// model and the client.
func BenchmarkLongStream(b *testing.B) {
	_, through := streaming(b, 1<<20)
	most, read := uint64(0), int64(0)
	for b.Loop() {
		body, buf := ask(b, through), make([]byte, 1<<20)
		for i := 0; ; i++ {
			n, err := io.ReadFull(body, buf)
			read += int64(n)
			if i%64 == 0 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
			if err != nil {
				break
			}
		}
		body.Close()
	}
	b.ReportMetric(float64(read)/float64(b.N)/(1<<20), "MiB-read")
	b.ReportMetric(float64(most)/(1<<20), "heap-MiB")
}
