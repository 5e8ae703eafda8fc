// Command grpc measures Envoy's rate limit service beside a gRPC server that does nothing: the same
// messages, from 256 requests in flight over four connections. A server has one core and the client the
// other. Rounds alternate, and the middle one of their ratios counts. On a machine that does other things as
// well, the server's CPU for a check tells more than the rate.
//
//	make bench-grpc
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/inflight"
	"github.com/weirhq/weir/internal/node/redislimit"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

const (
	inFlight    = 256
	connections = 4
	warmUp      = 500 * time.Millisecond
)

var keys int

// target is what Weir's rate must be of the server's that does nothing, for keys that it knows.
const target = 0.85

func main() {
	serve := flag.String("serve", "", "what to serve: nothing, weir, or the address of a Redis; for the servers that the measurement starts")
	rounds := flag.Int("rounds", 15, "of each server")
	flag.IntVar(&keys, "keys", 1000, "different keys that are asked for; with few of them, leases decide")
	length := flag.Duration("length", time.Second, "of a round")
	flag.Parse()
	run := func() error { return measure(*rounds, *length) }
	if *serve != "" {
		run = func() error { return server(*serve) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// nothing is a service that does nothing.
type nothing struct {
	rls.UnimplementedRateLimitServiceServer
}

func (nothing) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK, Statuses: []*rls.RateLimitResponse_DescriptorStatus{{Code: rls.RateLimitResponse_OK}}}, nil
}

const config = `
domain: bench
descriptors:
  - key: api_key
    rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

// server serves until it is told to end, and prints where.
func server(what string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(s, nothing{})
	var serve interface{ Serve(net.Listener) error } = s
	if what != "nothing" {
		service, err := weirService(what)
		if err != nil {
			return err
		}
		serve = envoy.NewServer(service, envoy.ServerOptions{})
	}
	ended, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ended, func() { l.Close() })
	fmt.Println(l.Addr())
	_ = serve.Serve(l)
	return nil
}

// weirService is the service as a node has it, counters, metrics and all.
func weirService(what string) (*envoy.Service, error) {
	o := weir.Options{Observe: metrics.New(prometheus.NewRegistry()).Observe}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), nil, o)
	if what != "weir" {
		shared, err := redislimit.New(redisstore.Options{URL: "redis://" + what, Timeout: redisstore.DefaultTimeout, Logger: slog.Default()}, memstore.New(memstore.Options{}), o, nil, nil)
		if err != nil {
			return nil, err
		}
		shared.Await(context.Background(), time.Second)
		limiter = shared.Limiter
	}
	service := envoy.New(limiter, envoy.Options{Configured: true, MaxInFlight: inflight.Default()})
	c, _, err := envoy.Parse([]envoy.File{{Name: "bench.yaml", Text: []byte(config)}}, envoy.Modes{})
	if err != nil {
		return nil, err
	}
	service.SetConfig(c)
	return service, nil
}

// contender is a server with what was measured of it.
type contender struct {
	name, what string
	rates      []float64 // checks a second
	cpu        []float64 // µs of its process for a check
}

func measure(rounds int, length time.Duration) error {
	redis, err := redistest.Start(redistest.Options{})
	if err != nil {
		return err
	}
	defer redis.Close()
	all := []*contender{{name: "does nothing", what: "nothing"}, {name: "weir", what: "weir"}, {name: "weir, Redis", what: redis.Addr}}
	for range rounds {
		for _, c := range all {
			if err := c.round(length); err != nil {
				return err
			}
		}
	}
	fmt.Printf("%-14s %10s %8s %10s %8s\n", "server", "checks/s", "ratio", "CPU µs", "ratio")
	for _, c := range all {
		ratios := make([]float64, rounds)
		for i := range ratios {
			ratios[i] = c.rates[i] / all[0].rates[i]
		}
		fmt.Printf("%-14s %10.0f %8.2f %10.1f %8.2f\n", c.name, middle(c.rates), middle(ratios), middle(c.cpu), middle(all[0].cpu)/middle(c.cpu))
		if c.what == "weir" && middle(ratios) < target {
			fmt.Printf("%-14s below the target of %.2f\n", "", target)
		}
	}
	return nil
}

func middle(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// round starts the server on one core, and loads it from the others.
func (c *contender) round(length time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command("taskset", "-c", "0", self, "-serve", c.what)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("taskset: %w", err)
	}
	defer cmd.Wait()
	defer cmd.Process.Signal(os.Interrupt)
	var addr string
	if _, err := fmt.Fscan(out, &addr); err != nil {
		return fmt.Errorf("%s: no address: %w", c.name, err)
	}
	done, spent, err := load(addr, cmd.Process.Pid, length)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	c.rates = append(c.rates, float64(done)/length.Seconds())
	c.cpu = append(c.cpu, spent.Seconds()*1e6/float64(done))
	return nil
}

// load asks as fast as it can, and returns how many answers came in the time that counts, and what they cost the server.
func load(addr string, pid int, length time.Duration) (done int64, spent time.Duration, err error) {
	clients := make([]rls.RateLimitServiceClient, connections)
	for i := range clients {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return 0, 0, err
		}
		defer conn.Close()
		clients[i] = rls.NewRateLimitServiceClient(conn)
	}
	var count atomic.Int64
	var failed atomic.Pointer[error]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all sync.WaitGroup
	for i := range inFlight {
		all.Go(func() {
			for ctx.Err() == nil {
				got, err := clients[i%connections].ShouldRateLimit(context.Background(), &rls.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimit.RateLimitDescriptor{
					{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "api_key", Value: strconv.Itoa(rand.IntN(keys))}}},
				}})
				if err == nil && got.GetOverallCode() != rls.RateLimitResponse_OK {
					err = fmt.Errorf("answered %s", got.GetOverallCode())
				}
				if err != nil {
					failed.Store(&err)
					return
				}
				count.Add(1)
			}
		})
	}
	time.Sleep(warmUp)
	from, before := count.Load(), cpu(pid)
	time.Sleep(length)
	done, spent = count.Load()-from, cpu(pid)-before
	cancel()
	all.Wait()
	if err := failed.Load(); err != nil {
		return 0, 0, *err
	}
	return done, spent, nil
}

// cpu is the time that a process has computed.
func cpu(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}
