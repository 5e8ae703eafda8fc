// Command grpc compares Envoy's rate limit service with a gRPC server that does nothing, with the same messages and 256
// requests in flight over four connections. The server has one core and the client the other. The servers take turns, and
// the result is the median of the ratios of all rounds. On a machine that also does other work, the server's CPU time per
// check says more than the rate.
//
//	make bench-grpc
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/node"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/load"
)

const (
	inFlight    = 256
	connections = 4
	warmUp      = 500 * time.Millisecond
)

// target is the lowest acceptable ratio of Weir's rate to the rate of the server that does nothing.
const target = 0.85

const (
	nothingName = "does nothing"
	weirName    = "weir"
	redisName   = "weir, Redis"
)

var (
	rounds = flag.Int("rounds", 15, "how often to measure each server")
	keys   = flag.Int("keys", 1000, "number of keys; with few keys, leases decide")
	length = flag.Duration("length", time.Second, "length of a round")
)

func main() {
	node.ServeFloor(serveFloor)
	command.Main(run)
}

func run(r *command.Run) (ok bool) {
	redis := redistest.New(r, redistest.Options{})
	config := r.TempDir()
	command.Check(os.WriteFile(filepath.Join(config, "bench.yaml"), []byte(limits), 0o600))
	startWeir := func(store string) func(*command.Run) *node.Process {
		return func(r *command.Run) *node.Process {
			return node.Start(r, node.Options{Core: "0", Rules: rules, Store: store, Listen: "--grpc", Flags: []string{"--envoy-config", config, "--log-level", "error"}})
		}
	}
	contenders := []struct {
		name  string
		start func(*command.Run) *node.Process
	}{
		{nothingName, func(r *command.Run) *node.Process { return node.StartFloor(r, "0") }},
		{weirName, startWeir("")},
		{redisName, startWeir("redis://" + redis.Addr)},
	}
	t := compare.NewTable(fmt.Sprintf("%d checks in flight, %d keys", inFlight, *keys), nothingName, weirName, redisName)
	plan := load.Plan{Duration: *length, Warmup: warmUp, Workers: inFlight, Keys: *keys}
	plan.Prepare()
	for range *rounds {
		for i, c := range contenders {
			r.Part(c.name, func(r *command.Run) { t.Add(i, measure(r, c.start(r), plan)) })
		}
	}
	base := t.Row(nothingName)
	t.Print(r.Out, "", compare.Median("checks/s", compare.PerSecond, 0), compare.Ratio("× nothing", base, compare.PerSecond),
		compare.Median("CPU µs", compare.ServerCPU, 1), compare.Ratio("× nothing", base, compare.ServerCPU))
	report.PrintTargets(r.Out, []report.Target{{
		Name: "checks/s, weir / " + nothingName, Bound: target, AtLeast: true, Got: t.Row(weirName).Ratio(base, compare.PerSecond).Median,
	}})
	return true
}

// measure sends load to a server over a few connections, and returns the results.
func measure(r *command.Run, server *node.Process, plan load.Plan) compare.Sample {
	clients := &clients{addr: server.Addr}
	for range connections {
		conn := command.Must(grpc.NewClient(server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials())))
		defer conn.Close()
		clients.all = append(clients.all, rls.NewRateLimitServiceClient(conn))
	}
	plan.StoreCPU = server.CPU
	return command.Must(compare.Measure(r, plan, clients))
}

// clients send load to a server over a few connections.
type clients struct {
	addr string
	all  []rls.RateLimitServiceClient
	next atomic.Int64
}

func (c *clients) String() string { return c.addr }

func (c *clients) Sender() load.Sender {
	return sender{c.all[int(c.next.Add(1))%len(c.all)]}
}

type sender struct{ rls.RateLimitServiceClient }

func (s sender) Send(_ context.Context, n uint32) load.Answer {
	a, err := s.ShouldRateLimit(context.Background(), &rls.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimit.RateLimitDescriptor{
		{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "api_key", Value: strconv.Itoa(int(n))}}},
	}})
	if err == nil && a.GetOverallCode() != rls.RateLimitResponse_OK {
		err = fmt.Errorf("answered %s", a.GetOverallCode())
	}
	if err != nil {
		return load.Answer{Outcome: load.Failed, Err: err}
	}
	return load.Answer{}
}

// nothing is a rate limit service that does nothing.
type nothing struct {
	rls.UnimplementedRateLimitServiceServer
}

func (nothing) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK, Statuses: []*rls.RateLimitResponse_DescriptorStatus{{Code: rls.RateLimitResponse_OK}}}, nil
}

const rules = "rules: []\n"

const limits = `
domain: bench
descriptors:
  - key: api_key
    rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

// serveFloor serves a gRPC server that does nothing.
func serveFloor(l net.Listener) error {
	s := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(s, nothing{})
	return s.Serve(l)
}
