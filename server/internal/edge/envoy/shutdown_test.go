package envoy_test

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// pipes is a listener of in-memory connections, whose deadlines follow the bubble's time.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p pipes) dial(context.Context, string) (net.Conn, error) {
	here, there := net.Pipe()
	p <- there
	return here, nil
}

// TestSilentConnectionsAtTheEnd checks that connections on which no client has sent anything don't delay a node's stop,
// and that those on which a client sends something in time are served.
func TestSilentConnectionsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, memstore.New(memstore.Options{}), envoy.Options{}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
		server, conns := envoy.NewServer(s, envoy.ServerOptions{}), make(pipes)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(conns)
		}()
		silent, _ := conns.dial(t.Context(), "")
		defer silent.Close()
		late, _ := conns.dial(t.Context(), "")
		synctest.Wait()
		begun, ended := time.Now(), make(chan time.Duration, 1)
		close(conns)
		<-served
		go func() {
			if err := server.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			ended <- time.Since(begun)
		}()
		time.Sleep(200 * time.Millisecond)
		client, err := grpc.NewClient("passthrough:late", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(
			func(context.Context, string) (net.Conn, error) { return late, nil }))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		answer, err := healthpb.NewHealthClient(client).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || answer.Status != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Error("a client that spoke in time:", answer, err)
		}
		if _, err := io.ReadAll(silent); err != nil {
			t.Error(err)
		}
		if took := <-ended; took > time.Second {
			t.Errorf("the end took %s", took)
		}
	})
}
