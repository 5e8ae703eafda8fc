package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/test/oteltest"
)

// ratelimitCommand returns the command under envoyproxy/ratelimit's name, with only these variables, given as
// NAME=value, and the test's own.
func ratelimitCommand(t *testing.T, environ ...string) *exec.Cmd {
	t.Helper()
	link := filepath.Join(t.TempDir(), "ratelimit")
	if err := os.Symlink(binary, link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link)
	cmd.Env = append([]string{"PATH=/bin", "HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "LOG_LEVEL=info", "LOG_FORMAT=json"}, environ...)
	return cmd
}

// startRatelimit starts the command on free ports and waits until it serves.
func startRatelimit(t *testing.T, environ ...string) *node {
	t.Helper()
	return runNode(t, ratelimitCommand(t, environ...)).serves()
}

// runtimeFolder creates a RUNTIME_ROOT with a limit of n a day for each api_key.
func runtimeFolder(t *testing.T, n string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	if err := os.MkdirAll(filepath.Join(root, "ratelimit", "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "ratelimit", "config", "edge.yaml"), envoyConfig(n))
	return root
}

// allowedOf sends requests and returns how many were allowed.
func allowedOf(t *testing.T, n *node, requests int) (ok int) {
	t.Helper()
	conn := dialEnvoy(t, n.GRPC, insecure.NewCredentials())
	for range requests {
		got, err := shouldLimit(unhurried(t), conn, "api_key", "a")
		if err != nil {
			t.Fatal(err)
		}
		if got.OverallCode == rls.RateLimitResponse_OK {
			ok++
		}
	}
	return ok
}

// mounted is a folder in which files look as if Kubernetes had mounted a Secret: they are links through another link,
// which is replaced to change them all at once.
type mounted struct{ dir string }

func (m mounted) put(t *testing.T, files map[string]string) {
	t.Helper()
	version, err := os.MkdirTemp(m.dir, "..version")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		write(t, filepath.Join(version, name), text)
		if link := filepath.Join(m.dir, name); !exists(link) {
			if err := os.Symlink(filepath.Join("..data", name), link); err != nil {
				t.Fatal(err)
			}
		}
	}
	fresh := filepath.Join(m.dir, "..data_tmp")
	if err := os.Symlink(version, fresh); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(m.dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// certificates writes a certificate of an authority, its key and the authority's certificate, as Envoy Gateway does.
func (m mounted) certificates(t *testing.T, a *authority, name string) {
	t.Helper()
	i := a.issue(t, t.TempDir(), name)
	m.put(t, map[string]string{"tls.crt": read(t, i.cert), "tls.key": read(t, i.key), "ca.crt": read(t, a.file)})
}

// TestRatelimitForEnvoyGateway starts a node exactly as Envoy Gateway does, except for ports and paths. Limits arrive
// over xDS with mutual TLS, and Envoys ask over TLS with their own certificates. Certificates are renewed while the
// node runs.
func TestRatelimitForEnvoyGateway(t *testing.T) {
	t.Parallel()
	redis := redistest.New(t, redistest.Options{Password: "sesame"})
	first, second := newAuthority(t, t.TempDir()), newAuthority(t, t.TempDir())
	certs := mounted{t.TempDir()}
	certs.certificates(t, first, "envoy")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := clientTLS(t, first, first, "envoy-gateway")
	server.ClientCAs, server.ClientAuth = server.RootCAs, tls.RequireAndVerifyClientCert
	x := &gatewayXDS{send: make(chan *discovery.DiscoveryResponse), said: make(chan *discovery.DiscoveryRequest, 100)}
	ads := grpc.NewServer(grpc.Creds(credentials.NewTLS(server)))
	discovery.RegisterAggregatedDiscoveryServiceServer(ads, x)
	go ads.Serve(l)
	defer ads.Stop()

	file := func(name string) string { return filepath.Join(certs.dir, name) }
	data := filepath.Join(t.TempDir(), "data")
	n := startRatelimit(t,
		"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false",
		"LOG_LEVEL=info", "USE_STATSD=false",
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+l.Addr().String(), "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+file("tls.crt"), "GRPC_SERVER_TLS_KEY="+file("tls.key"), "GRPC_SERVER_TLS_CA_CERT="+file("ca.crt"),
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+file("tls.crt"), "CONFIG_GRPC_XDS_CLIENT_TLS_KEY="+file("tls.key"),
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT="+file("ca.crt"), "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis://:sesame@"+redis.Addr,
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml",
		"CACHE_KEY_PREFIX=eg:rl:", "WEIR_DATA="+data, // as the image sets it
		"WEIR_STORE_TIMEOUT=20s") // for busy machines
	if n.Admin != "" {
		t.Errorf("the admin port is open: %s", n.Admin)
	}
	ask := func(c *tls.Config) (*rls.RateLimitResponse, error) {
		return shouldLimit(unhurried(t), dialEnvoy(t, n.GRPC, credentials.NewTLS(c)), "api_key", "a")
	}

	if r := <-x.said; r.GetNode().GetId() != "envoy-ratelimit" {
		t.Error(r)
	}
	if res, text := call(t, "GET", n.HTTP+"/healthcheck", ""); res.StatusCode != http.StatusOK {
		t.Errorf("before the first configuration: %s %s", res.Status, text)
	}
	if _, err := ask(clientTLS(t, first, first, "envoy")); grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no configuration") {
		t.Errorf("before the first configuration: %v", err)
	}
	x.limits(t, "1", conf.RateLimitUnit_DAY, 2)
	if r := <-x.said; r.VersionInfo != "1" || r.ErrorDetail != nil {
		t.Fatal(r)
	}
	for i, want := range []rls.RateLimitResponse_Code{rls.RateLimitResponse_OK, rls.RateLimitResponse_OK, rls.RateLimitResponse_OVER_LIMIT} {
		got, err := ask(clientTLS(t, first, first, "envoy"))
		if err != nil || got.OverallCode != want {
			t.Fatalf("request %d: %v, %v", i+1, got, err)
		}
		for _, h := range got.ResponseHeadersToAdd {
			if strings.HasPrefix(h.GetKey(), "RateLimit") {
				t.Errorf("an unexpected header: %v", h)
			}
		}
	}
	if keys, err := redis.Do(t.Context(), "KEYS", "*"); err != nil {
		t.Fatal(err)
	} else if list := fmt.Sprint(keys); !strings.Contains(list, "eg:rl:{") || strings.Contains(list, "weir{") {
		t.Errorf("keys %s", list)
	}

	for who, c := range map[string]*tls.Config{
		"without a certificate": clientTLS(t, first, nil, ""),
		"of another authority":  clientTLS(t, first, second, "envoy"),
	} {
		if got, err := ask(c); err == nil {
			t.Errorf("a client %s was served: %v", who, got)
		}
	}
	certs.certificates(t, second, "envoy")
	until(t, func() error { _, err := ask(clientTLS(t, second, second, "envoy")); return err })
	if got, err := ask(clientTLS(t, second, first, "envoy")); err == nil {
		t.Errorf("a client of the authority before was served: %v", got)
	}

	metrics, _ := n.await("serving", always)["metrics"].(string)
	if res, text := call(t, "GET", metrics, ""); res.StatusCode != 200 || !strings.Contains(text, "\nweir_envoy_xds_connected 1\n") || !strings.Contains(text, `edge="envoy"`) {
		t.Errorf("%s: %s %s", metrics, res.Status, text)
	}
	for _, path := range []string{"/v1/check", "/v1/take", "/check/nginx", "/v1/rules", "/metrics"} {
		if res, text := call(t, "POST", n.HTTP+path, `{"key": "k"}`); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s %s", path, res.Status, text)
		}
	}
	if res, text := call(t, "POST", n.HTTP+"/json", `{"domain": "edge", "descriptors": [{"entries": [{"key": "api_key", "value": "a"}]}]}`); res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("/json: %s %s", res.Status, text)
	}
	n.stop()
	if err := <-n.exited; err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(n.cmd.Dir); err != nil || len(left) > 0 {
		t.Errorf("files in the node's folder: %v, %v", left, err)
	}
	if exists(data) {
		t.Error("the node has written to WEIR_DATA")
	}
	for _, line := range n.log {
		if level := line["level"]; level != "INFO" {
			t.Errorf("%v", line)
		}
	}
	if text := n.text.String(); strings.Contains(text, "sesame") {
		t.Errorf("the password is in the log:\n%s", text)
	}
}

// TestRatelimitStores checks that limits are counted in each kind of Redis that envoyproxy/ratelimit supports,
// configured through its variables.
func TestRatelimitStores(t *testing.T) {
	t.Parallel()
	single := redistest.New(t, redistest.Options{TLS: true, ACL: []string{"user default off", "user limiter on >sesame ~* &* +@all"}})
	sentinel := redistest.NewSentinel(t, redistest.Options{Password: "sesame"})
	cluster := redistest.NewCluster(t, redistest.Options{Password: "sesame"})
	for name, environ := range map[string][]string{
		"single":   {"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + single.Addr, "REDIS_AUTH=limiter:sesame", "CACHE_KEY_PREFIX=a"},
		"a socket": {"REDIS_URL=" + single.Socket, "REDIS_AUTH=limiter:sesame", "CACHE_KEY_PREFIX=b"},
		"TLS": {"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + single.TLSAddr, "REDIS_AUTH=limiter:sesame", "CACHE_KEY_PREFIX=c", "REDIS_TLS=true",
			"REDIS_TLS_CACERT=" + single.Certs.CA, "REDIS_TLS_CLIENT_CERT=" + single.Certs.ClientCert, "REDIS_TLS_CLIENT_KEY=" + single.Certs.ClientKey},
		"sentinel": {"REDIS_TYPE=sentinel", "REDIS_URL=" + redistest.MasterName + "," + strings.Join(sentinel.Addrs(), ","), "REDIS_AUTH=sesame"},
		"cluster":  {"REDIS_TYPE=CLUSTER", "REDIS_URL=" + strings.Join(cluster.Addrs()[:2], ","), "REDIS_AUTH=sesame"},
	} {
		environ = append(environ, "RUNTIME_ROOT="+runtimeFolder(t, "5"), "RUNTIME_SUBDIRECTORY=ratelimit", "WEIR_STORE_TIMEOUT=20s")
		one, other := runNode(t, ratelimitCommand(t, environ...)), runNode(t, ratelimitCommand(t, environ...))
		for _, n := range []*node{one.serves(), other.serves()} { // otherwise failure modes would decide
			until(t, func() error {
				if r := ready(t, n.HTTP+"/readyz"); r.Store.Status != "up" {
					return fmt.Errorf("%+v", r)
				}
				return nil
			})
		}
		if ok := allowedOf(t, one, 4) + allowedOf(t, other, 4); ok != 5 {
			t.Errorf("%s: %d of 8 are allowed, not 5", name, ok)
		}
		if slices.ContainsFunc([]*node{one, other}, func(n *node) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return strings.Contains(n.text.String(), "sesame")
		}) {
			t.Errorf("%s: the password is in the log", name)
		}
	}
}

// TestRatelimitTraces checks that the node sends traces, and nothing else.
func TestRatelimitTraces(t *testing.T) {
	t.Parallel()
	collector := oteltest.HTTP(t)
	n := startRatelimit(t, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=127.0.0.1:1", "RUNTIME_ROOT="+runtimeFolder(t, "2"), "RUNTIME_SUBDIRECTORY=ratelimit",
		"TRACING_ENABLED=true", "TRACING_SAMPLING_RATE=1.0", "OTEL_SERVICE_NAME=envoy-ratelimit", "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL)
	allowedOf(t, n, 1)
	n.stop()
	<-n.exited
	of := collector.Received().Resource
	if len(collector.Received().Spans) == 0 || of["service.name"] != "envoy-ratelimit" {
		t.Errorf("%d spans of %v", len(collector.Received().Spans), of)
	}
	if sent := collector.Received().Metrics; len(sent) > 0 {
		t.Errorf("%d metrics were sent", len(sent))
	}
}

// TestRatelimitWithoutRedis checks that a node starts, is healthy and responds without Redis, where
// envoyproxy/ratelimit would wait or exit.
func TestRatelimitWithoutRedis(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", loopback.Host()+":0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	n := startRatelimit(t, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+addr, "RUNTIME_ROOT="+runtimeFolder(t, "2"), "RUNTIME_SUBDIRECTORY=ratelimit")
	if ok := allowedOf(t, n, 4); ok != 4 {
		t.Errorf("%d of 4 are allowed by the failure mode", ok)
	}
	if res, text := call(t, "GET", n.HTTP+"/healthcheck", ""); res.StatusCode != 200 || text != "OK" {
		t.Errorf("%s %s", res.Status, text)
	}
}

// TestRatelimitFolder checks that without a configuration folder, the node exits with an error that names the
// variables, unless it may start without one. A folder that appears later is read, and so is one to which RUNTIME_ROOT
// is redirected.
func TestRatelimitFolder(t *testing.T) {
	t.Parallel()
	redis := redistest.New(t, redistest.Options{})
	store := []string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis.Addr}
	root := filepath.Join(t.TempDir(), "current")
	environ := append(store, "RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=ratelimit")
	out, err := ratelimitCommand(t, environ...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "ratelimit: RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY: stat "+root+"/ratelimit/config: no such file") {
		t.Errorf("%v\n%s", err, out)
	}

	n := startRatelimit(t, append(environ, "FORCE_START_WITHOUT_INITIAL_CONFIG=true")...)
	conn := dialEnvoy(t, n.GRPC, insecure.NewCredentials())
	if _, err := shouldLimit(t.Context(), conn, "api_key", "a"); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("without a configuration: %v", err)
	}
	if res, _ := call(t, "GET", n.HTTP+"/healthcheck", ""); res.StatusCode != 200 {
		t.Errorf("without a configuration: %s", res.Status)
	}
	limits := func(want uint32) {
		t.Helper()
		until(t, func() error {
			got, err := shouldLimit(t.Context(), conn, "api_key", "a")
			if err == nil && got.Statuses[0].GetCurrentLimit().GetRequestsPerUnit() != want {
				err = fmt.Errorf("%v", got)
			}
			return err
		})
	}
	for _, limit := range []uint32{100, 200} {
		fresh := root + ".new"
		if err := os.Symlink(runtimeFolder(t, fmt.Sprint(limit)), fresh); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(fresh, root); err != nil {
			t.Fatal(err)
		}
		limits(limit)
	}
}

// TestRatelimitMessages checks the help and the messages about arguments, variables without effect, and mistakes. None
// of them contains a secret.
func TestRatelimitMessages(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, c := range []struct {
		args, environ []string
		status        int
		want          string
	}{
		{[]string{"--help"}, nil, 0, "Examples:\n  REDIS_SOCKET_TYPE=tcp "},
		{[]string{"serve", "--http", ":1", "--token=" + secret}, []string{"PORT=0", "GRPC_PORT=0", "RUNTIME_ROOT=/none", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=127.0.0.1:1"}, 2,
			"arguments do nothing under this name"},
		{nil, []string{"REDIS_AUTH=" + secret, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis://:" + secret + "@a:b"}, 2, "ratelimit: REDIS_URL: must be host:port"},
		{nil, []string{"BACKEND_TYPE=memcache"}, 2, "ratelimit: BACKEND_TYPE: must be redis"},
		{nil, []string{"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=/none.crt", "GRPC_SERVER_TLS_KEY=/none.key", "RUNTIME_ROOT=" + runtimeFolder(t, "1"), "RUNTIME_SUBDIRECTORY=ratelimit"}, 2,
			"ratelimit: GRPC_SERVER_TLS_CERT: open /none.crt: no such file or directory"},
	} {
		cmd := ratelimitCommand(t, c.environ...)
		cmd.Args = append(cmd.Args, c.args...)
		out, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != c.status || !strings.Contains(string(out), c.want) || strings.Contains(string(out), secret) {
			t.Errorf("%v %v: %d\n%s", c.args, c.environ, status, out)
		}
	}

	n := startRatelimit(t, "LOG_LEVEL=trace", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis://me:"+secret+"@127.0.0.1:1", "REDIS_SENTINEL_AUTH="+secret, "REDIS_ATUH="+secret, "REDIS_POOL_SIZE="+secret,
		"GRPC_HOST=0.0.0.0", "HOST=0.0.0.0", "RUNTIME_ROOT="+runtimeFolder(t, "1"), "RUNTIME_SUBDIRECTORY=ratelimit")
	n.await("this variable isn't one of envoyproxy/ratelimit's, and does nothing", func(l map[string]any) bool { return l["variable"] == "REDIS_ATUH" })
	n.await("this variable does nothing here", func(l map[string]any) bool { return l["variable"] == "REDIS_POOL_SIZE" })
	n.await("anybody who reaches the rate limit service can use it: ask for client certificates, or let only Envoy reach its ports", always)
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	_, _ = shouldLimit(ctx, dialEnvoy(t, strings.Replace(n.GRPC, "[::]", "127.0.0.1", 1), insecure.NewCredentials()), "api_key", "a")
	cancel()
	if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil { // SIGHUP would end envoyproxy/ratelimit
		t.Fatal(err)
	}
	n.await("reading files again", always)
	n.stop()
	<-n.exited
	if text := n.text.String(); strings.Contains(text, secret) || strings.Count(text, "anybody who reaches") != 1 {
		t.Errorf("a secret, or more than one warning of strangers:\n%s", text)
	}
}
