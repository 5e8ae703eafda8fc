package envoy_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/node/redislimit"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// TestRecordedAnswersThroughRedis compares responses with the recorded ones, with counters in Redis and leases, as on a
// node.
func TestRecordedAnswersThroughRedis(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	files := readFiles(t, "testdata/recorded/config/*.yaml")
	for _, r := range recordings {
		t.Run(r.file, func(t *testing.T) {
			shared, err := redislimit.New(redisstore.Options{URL: "redis://" + server.Addr, Prefix: r.file + ":", Timeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)},
				memstore.New(memstore.Options{}), weir.Options{}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer shared.Close(time.Second)
			shared.Await(10 * time.Second)
			s := envoy.New(shared.Limiter, envoy.Options{Configured: true, Answers: envoy.Answers{Headers: true, DynamicMetadata: r.metadata}})
			config, _, err := envoy.Parse(files, envoy.Modes{})
			if err != nil {
				t.Fatal(err)
			}
			s.SetConfig(config)
			replay(t, r.file, r.requests, patient(over["grpc"](t, s)))
		})
	}
}
