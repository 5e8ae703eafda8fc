//go:build unix

package checkapi_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// conn is a client that costs next to nothing, so that the benchmark measures the server.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func dial(tb testing.TB, addr string) *conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	return &conn{c, bufio.NewReaderSize(c, 64<<10)}
}

// do sends a request, reads the response, and returns its status.
func (c *conn) do(request []byte) (status string, err error) {
	if _, err := c.Write(request); err != nil {
		return "", err
	}
	length := 0
	for line := 0; ; line++ {
		b, err := c.r.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		switch {
		case line == 0:
			status = string(b[9:12])
		case bytes.HasPrefix(b, []byte("Content-Length: ")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(b[16:]))); err != nil {
				return "", err
			}
		case len(b) == 2:
			_, err := c.r.Discard(length)
			return status, err
		}
	}
}

func rawRequest(path, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

type load struct {
	name    string
	handler http.Handler
	request []byte
	checks  int // in each request
}

func loads(tb testing.TB) []load {
	api := checkapi.New(benchLimiter(tb), nil, checkapi.Options{})
	answer := []byte("{\"allowed\":true}\n")
	bare := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = []string{"application/json"}
		_, _ = w.Write(answer)
	})
	reading := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		bare(w, r)
	})
	batch := `{"checks": [` + benchBody + strings.Repeat(","+benchBody, 99) + `]}`
	return []load{
		{"bare", bare, rawRequest("/v1/check", benchBody), 1},
		{"reading", reading, rawRequest("/v1/check", benchBody), 1},
		{"check", api, rawRequest("/v1/check", benchBody), 1},
		{"take", api, rawRequest("/v1/take", `{"key": "job:42", "limit": "100000000/second", "burst": 1000000000, "cost": 1}`), 1},
		{"batch", api, rawRequest("/v1/checks", batch), 100},
	}
}

// cost is the cost of a load: elapsed time, and processor time.
type cost struct{ wall, cpu time.Duration }

func (c cost) per(n int) cost { return cost{c.wall / time.Duration(n), c.cpu / time.Duration(n)} }

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// run sends n requests over several connections, and returns their cost.
func (l load) run(tb testing.TB, conns []*conn, n int) cost {
	var wg sync.WaitGroup
	cpu, start := cpuTime(), time.Now()
	for i, c := range conns {
		n := (n + i) / len(conns)
		wg.Go(func() {
			for range n {
				if status, err := c.do(l.request); err != nil || status != "200" {
					tb.Error(l.name, status, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return cost{time.Since(start), cpuTime() - cpu}.per(n * l.checks)
}

// BenchmarkServe sends requests to a real server over loopback. Every round runs each load once, so that the ratios hold
// on a busy machine, too. It reports medians over the rounds.
//
//	check/bare     requests/s of /v1/check divided by those of a handler that does nothing; at least 0.7
//	batch/single   checks/s in batches of 100, divided by those of single calls; at least 10
//
// The ratios with cpu compare processor time, including the client's, instead of elapsed time.
func BenchmarkServe(b *testing.B) {
	const rounds, perRound, connections = 15, 3000, 16
	all := loads(b)
	conns := make([][]*conn, len(all))
	for i, l := range all {
		srv := httptest.NewServer(l.handler)
		defer srv.Close()
		for range connections {
			c := dial(b, srv.Listener.Addr().String())
			defer c.Close()
			conns[i] = append(conns[i], c)
		}
		l.run(b, conns[i], 200)
	}
	costs := make([][]cost, len(all))
	for b.Loop() {
		for range rounds {
			for i, l := range all {
				n := perRound
				if l.checks > 1 {
					n /= 10
				}
				costs[i] = append(costs[i], l.run(b, conns[i], n))
			}
		}
	}
	median := func(of func(round int) float64) float64 {
		v := make([]float64, len(costs[0]))
		for i := range v {
			v[i] = of(i)
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	for i, l := range all {
		name := strings.NewReplacer(" ", "-", ",", "").Replace(l.name)
		b.ReportMetric(1/median(func(r int) float64 { return costs[i][r].wall.Seconds() }), name+"/s")
		b.ReportMetric(1e6*median(func(r int) float64 { return costs[i][r].cpu.Seconds() }), name+"-cpu-s/M")
	}
	ratio := func(name string, i, j int) {
		b.ReportMetric(median(func(r int) float64 { return float64(costs[j][r].wall) / float64(costs[i][r].wall) }), name)
		b.ReportMetric(median(func(r int) float64 { return float64(costs[j][r].cpu) / float64(costs[i][r].cpu) }), name+"-cpu")
	}
	ratio("check/bare", 2, 0)
	ratio("check/reading", 2, 1)
	ratio("batch/single", 4, 2)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHandler measures the handler without a server around it.
func BenchmarkHandler(b *testing.B) {
	for _, l := range loads(b)[2:] {
		b.Run(strings.ReplaceAll(l.name, " ", "-"), func(b *testing.B) {
			raw, body, _ := bytes.Cut(l.request, []byte("\r\n\r\n"))
			path := strings.Fields(string(raw))[1]
			s := newSink(path, body)
			b.ReportAllocs()
			for b.Loop() {
				s.serve(l.handler)
			}
			if s.status != 0 && s.status != 200 {
				b.Fatal(s.status)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*l.checks), "ns/check")
		})
	}
}
