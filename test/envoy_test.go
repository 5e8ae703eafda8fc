package test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weirhq/weir/internal/redistest"
)

func dialEnvoy(t *testing.T, addr string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// unhurried returns a context with more time than even a busy machine needs. Without a deadline, a caller gets a
// response within 15 ms, even if Redis hasn't replied by then.
func unhurried(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// shouldLimit sends a request with one descriptor.
func shouldLimit(ctx context.Context, c grpc.ClientConnInterface, key, value string) (*rls.RateLimitResponse, error) {
	return rls.NewRateLimitServiceClient(c).ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: "edge",
		Descriptors: []*ratelimit.RateLimitDescriptor{{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: key, Value: value}}}}})
}

func envoyConfig(n string) string {
	return "domain: edge\ndescriptors:\n  - key: api_key\n    rate_limit: {unit: day, requests_per_unit: " + n + "}\n"
}

// TestEnvoyConfiguration checks that a node reads envoyproxy/ratelimit's files, applies changes, keeps the last valid
// configuration, and reports both.
func TestEnvoyConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "edge.yaml")
	elsewhere := filepath.Join(t.TempDir(), "edge.yaml")
	write := func(text string) { // at once, so that the node never reads half a file
		t.Helper()
		if err := os.WriteFile(elsewhere, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(elsewhere, file); err != nil {
			t.Fatal(err)
		}
	}
	write(envoyConfig("2"))
	n := serve(t, "--envoy-config", dir)
	conn := dialEnvoy(t, n.GRPC, insecure.NewCredentials())
	limit := func() uint32 {
		t.Helper()
		got, err := shouldLimit(t.Context(), conn, "api_key", "a")
		if err != nil {
			t.Fatal(err)
		}
		return got.Statuses[0].GetCurrentLimit().GetRequestsPerUnit()
	}
	if l := limit(); l != 2 {
		t.Errorf("the limit is %d", l)
	}
	write(envoyConfig("7"))
	applied := 0 // at the start, and on each change
	n.await("envoy configuration applied", func(map[string]any) bool { applied++; return applied == 2 })
	if l := limit(); l != 7 {
		t.Errorf("the limit is %d", l)
	}
	write(envoyConfig("many"))
	line := n.await("envoy configuration rejected: the one in force stays", func(map[string]any) bool { return true })
	if text, _ := line["error"].(string); !strings.Contains(text, "edge.yaml:4:48: descriptors[0].rate_limit.requests_per_unit: must be a whole number") {
		t.Error(text)
	}
	if l := limit(); l != 7 {
		t.Errorf("the limit is %d", l)
	}
	for url, want := range map[string]string{
		n.Admin + "/readyz":     "edge.yaml:4:48",
		n.HTTP + "/readyz":      "newer files were rejected",
		n.Admin + "/metrics":    "\nweir_envoy_config_rejected_total 1\n",
		n.HTTP + "/healthcheck": "OK",
	} {
		answer, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %s, want %s", url, answer.StatusCode, body, want)
		}
	}
	answer, err := http.Post(n.HTTP+"/json", "application/json", strings.NewReader(`{"domain": "edge", "descriptors": [{"entries": [{"key": "api_key", "value": "b"}], "hitsAddend": 8}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(body), `"OVER_LIMIT"`) {
		t.Errorf("%d %s", answer.StatusCode, body)
	}
}

// TestEnvoyOverTLS checks that only the gRPC port requires client certificates.
func TestEnvoyOverTLS(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir()}
	servers, envoys := newAuthority(t, dirs[0]), newAuthority(t, dirs[1])
	server, client := servers.issue(t, dirs[0], "server"), envoys.issue(t, dirs[1], "client")
	n := serve(t, "--tls-cert", server.cert, "--tls-key", server.key, "--grpc-client-ca", envoys.file)
	roots := x509.NewCertPool()
	roots.AddCert(servers.cert)
	own, err := tls.LoadX509KeyPair(client.cert, client.key)
	if err != nil {
		t.Fatal(err)
	}
	for _, with := range []bool{true, false} {
		c := &tls.Config{RootCAs: roots}
		if with {
			c.Certificates = []tls.Certificate{own}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		_, err := shouldLimit(ctx, dialEnvoy(t, n.GRPC, credentials.NewTLS(c)), "api_key", "a")
		cancel()
		if (err == nil) != with {
			t.Errorf("with a certificate: %v: %v", with, err)
		}
	}
}

// TestEnvoyDrains checks that balancers learn of the shutdown before the port closes, and that requests are served in
// the meantime.
func TestEnvoyDrains(t *testing.T) {
	t.Parallel()
	n := serve(t, "--drain-notice", "500ms")
	conn := dialEnvoy(t, n.GRPC, insecure.NewCredentials())
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || got.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatal(got, err)
	}
	n.stop()
	if got, err := watch.Recv(); err != nil || got.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatal(got, err)
	}
	if _, err := shouldLimit(t.Context(), conn, "api_key", "a"); err != nil {
		t.Errorf("a request during the notice: %v", err)
	}
	conn.Close()
	if err := <-n.exited; err != nil {
		t.Error(err)
	}
}

// TestEnvoyWhileRedisIsStopped checks that responses come within Envoy's own timeout, according to the failure modes,
// even if the store's timeout is longer.
func TestEnvoyWhileRedisIsStopped(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "edge.yaml"), []byte(envoyConfig("5")), 0o600); err != nil {
		t.Fatal(err)
	}
	n := serve(t, "--store", "redis://"+r.Addr, "--store-timeout", "2m", "--envoy-config", dir)
	conn := dialEnvoy(t, n.GRPC, insecure.NewCredentials())
	for range 7 {
		if _, err := shouldLimit(unhurried(t), conn, "api_key", "spent"); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	defer r.Cont()
	ask := func(patience time.Duration) error { // patience, less a margin, is the store's timeout
		ctx, cancel := t.Context(), func() {}
		if patience > 0 {
			ctx, cancel = context.WithTimeout(ctx, patience)
		}
		defer cancel()
		begun := time.Now()
		got, err := shouldLimit(ctx, conn, "api_key", "client of "+patience.String())
		t.Logf("a caller's deadline of %s: answered after %s", patience, time.Since(begun))
		if err == nil && (got.OverallCode != rls.RateLimitResponse_OK || got.Statuses[0].CurrentLimit != nil) {
			t.Fatal(got)
		}
		return err
	}
	for range 3 {
		begun := time.Now()
		if err := ask(0); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > time.Minute { // 15 ms on an idle machine; 2 minutes if the store's timeout applied
			t.Errorf("a caller without a deadline is answered after %s", took)
		}
	}
	var err error
	for range 50 { // the margin is 5 ms; a busy machine may exceed it
		if err = ask(time.Second); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("a caller's deadline of a second is never met: %v", err)
	}
	// A counter that is known to be used up keeps refusing.
	if got, err := shouldLimit(t.Context(), conn, "api_key", "spent"); err != nil || got.OverallCode != rls.RateLimitResponse_OVER_LIMIT {
		t.Error(got, err)
	}
}
