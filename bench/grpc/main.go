// Command grpc measures Envoy's rate limit service beside a gRPC server that does nothing, with the same messages and 256
// requests in flight over four connections. The server has one core and the client the other. Servers take turns in
// rounds, and the median of the rounds' ratios counts. On a machine that also does other work, the server's CPU per check
// tells more than the rate.
//
//	make bench-grpc
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
	"github.com/weirhq/weir/server/bench/internal/node"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/load"
)

const (
	inFlight    = 256
	connections = 4
	warmUp      = 500 * time.Millisecond
)

// target is the least that Weir's rate may be, as a share of the rate of the server that does nothing.
const target = 0.85

func main() {
	node.ServeFloor(serveFloor)
	command.Main("grpc", run)
}

func run(ctx context.Context, args []string, stdout, _ io.Writer) (ok bool, err error) {
	f := flag.NewFlagSet("grpc", flag.ContinueOnError)
	rounds := f.Int("rounds", 15, "how often to measure each server")
	keys := f.Int("keys", 1000, "number of keys; with few keys, leases decide")
	length := f.Duration("length", time.Second, "length of a round")
	weir := f.String("weir", "bin/weir", "the weir binary to run")
	if err := f.Parse(args); err != nil {
		return false, err
	}
	redis, err := redistest.Start(redistest.Options{})
	if err != nil {
		return false, err
	}
	defer redis.Close()
	config, err := os.MkdirTemp("", "grpc")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(config)
	if err := os.WriteFile(filepath.Join(config, "bench.yaml"), []byte(limits), 0o600); err != nil {
		return false, err
	}
	startWeir := func(store string) func() (*node.Process, error) {
		return func() (*node.Process, error) {
			return node.Start(ctx, node.Options{Binary: *weir, Core: "0", Rules: rules, Store: store, Listen: "--grpc", Flags: []string{"--envoy-config", config, "--log-level", "error"}})
		}
	}
	all := []*contender{
		{name: "does nothing", start: func() (*node.Process, error) { return node.StartFloor(ctx, "0") }},
		{name: "weir", start: startWeir("")},
		{name: "weir, Redis", start: startWeir("redis://" + redis.Addr)},
	}
	plan := load.Plan{Duration: *length, Warmup: warmUp, Workers: inFlight, Keys: *keys}
	plan.Prepare()
	for range *rounds {
		for _, c := range all {
			if err := c.round(ctx, plan); err != nil {
				return false, fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	print(stdout, all)
	return true, nil
}

func print(w io.Writer, all []*contender) {
	median := func(xs []float64) float64 { return report.SpreadOf(xs).Median }
	rows := [][]string{{"server", "checks/s", "ratio", "CPU µs", "ratio", ""}}
	for _, c := range all {
		ratios := make([]float64, len(c.rates))
		for i := range ratios {
			ratios[i] = c.rates[i] / all[0].rates[i]
		}
		remark := ""
		if c == all[1] && median(ratios) < target {
			remark = fmt.Sprintf("below the target of %.2f", target)
		}
		rows = append(rows, []string{c.name, report.Number(median(c.rates), 0), report.Number(median(ratios), 2),
			report.Number(median(c.cpu), 1), report.Number(median(all[0].cpu)/median(c.cpu), 2), remark})
	}
	report.Align(w, rows)
}

// contender is a server, and what was measured of it in each round.
type contender struct {
	name  string
	start func() (*node.Process, error)
	rates []float64 // checks a second
	cpu   []float64 // µs of its process per check: as many as seconds per million checks
}

// round starts the server on one core, and loads it from the others.
func (c *contender) round(ctx context.Context, plan load.Plan) error {
	server, err := c.start()
	if err != nil {
		return err
	}
	defer server.Stop()
	clients := &clients{addr: server.Addr}
	for range connections {
		conn, err := grpc.NewClient(server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		clients.all = append(clients.all, rls.NewRateLimitServiceClient(conn))
	}
	plan.StoreCPU = server.CPU
	r, err := load.Run(ctx, plan, clients, nil)
	switch {
	case err != nil || ctx.Err() != nil:
		return errors.Join(err, ctx.Err())
	case len(r.Faults) > 0:
		return errors.New(r.Faults[0].Text)
	case r.Checks == 0 || r.StoreCPU.Unknown != "":
		return errors.New("no check was answered, or the server's CPU is unknown: " + r.StoreCPU.Unknown)
	}
	c.rates = append(c.rates, r.PerSecond)
	c.cpu = append(c.cpu, r.StoreCPU.PerMillion)
	return nil
}

// clients make load on a server over a few connections.
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

// nothing is a service that does nothing.
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
