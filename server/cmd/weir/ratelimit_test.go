package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// asRatelimit returns a node configured by envoyproxy/ratelimit's variables, each as NAME=value, and the log of
// variables without effect.
func asRatelimit(t *testing.T, environ ...string) (*serving, string, error) {
	t.Helper()
	v, flags, env := &serving{}, pflag.NewFlagSet("", pflag.ContinueOnError), newTheirs(environ)
	v.register(flags)
	s, err := v.translate(env, flags)
	if err != nil {
		return nil, "", err
	}
	s.apply(&v.Config)
	var log bytes.Buffer
	env.warn(slog.New(slog.NewTextHandler(&log, nil)))
	if err := v.Validate(); err != nil {
		return nil, "", s.blame(err)
	}
	return v, log.String(), nil
}

// tcp has the variables that most configurations start with.
var tcp = []string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis:6379"}

// Each variable has its effect, and without any variable a node behaves like envoyproxy/ratelimit.
func TestRatelimitVariables(t *testing.T) {
	certs := redistest.New(t, redistest.Options{TLS: true}).Certs
	xds := []string{"CONFIG_TYPE=GRPC_XDS_SOTW"}
	grpcTLS := []string{"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=/certs/tls.crt", "GRPC_SERVER_TLS_KEY=/certs/tls.key"}
	for _, c := range []struct {
		environ []string
		want    string
		got     func(v *serving) any
	}{
		{nil, "0.0.0.0:8080 0.0.0.0:8081 admin= metrics= only true", func(v *serving) any {
			return fmt.Sprint(v.HTTP, " ", v.GRPC, " admin=", v.Admin, " metrics=", v.Metrics, " only ", v.OnlyEnvoy)
		}},
		{nil, "unix:///var/run/nutcracker/ratelimit.sock", func(v *serving) any { return v.Store }},
		{nil, "/srv/runtime_data/current/config", func(v *serving) any { return v.EnvoyConfig }},
		{nil, "WARN text", func(v *serving) any { return fmt.Sprint(v.logLevel, " ", v.logFormat) }},
		{nil, `headers false, metadata false, modes false false false, start false, 24h0m0s 1h0m0s`, func(v *serving) any {
			e := &v.Envoy
			return fmt.Sprintf("headers %v, metadata %v, modes %v %v %v, start %v, %s %s", *e.Headers, e.DynamicMetadata, e.ShadowMode, e.QuotaMode, e.MergeDomains, e.StartWithoutConfig, e.MaxConnectionAge, e.MaxConnectionAgeGrace)
		}},
		{nil, "  ", func(v *serving) any { return v.TLSCert + v.GRPCTLSCert + " " + v.GRPCClientCA + " " + v.Data }},
		{nil, "", func(v *serving) any { return v.OTLP.Sending() }},

		{[]string{"HOST=127.0.0.1", "PORT=0x50"}, "127.0.0.1:80", func(v *serving) any { return v.HTTP }},
		{[]string{"HOST="}, ":8080", func(v *serving) any { return v.HTTP }},
		{[]string{"GRPC_HOST=::1", "GRPC_PORT=9"}, "[::1]:9", func(v *serving) any { return v.GRPC }},
		{[]string{"WEIR_DATA=/var/lib/weir"}, "", func(v *serving) any { return v.Data }},
		{[]string{"GRPC_MAX_CONNECTION_AGE=5m", "GRPC_MAX_CONNECTION_AGE_GRACE=7s"}, "5m0s 7s", func(v *serving) any {
			return fmt.Sprint(v.Envoy.MaxConnectionAge, " ", v.Envoy.MaxConnectionAgeGrace)
		}},
		{[]string{"GRPC_MAX_CONNECTION_AGE=0"}, time.Duration(math.MaxInt64).String(), func(v *serving) any { return v.Envoy.MaxConnectionAge }},

		{[]string{"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit"}, "/data/ratelimit/config", func(v *serving) any { return v.EnvoyConfig }},
		{[]string{"RUNTIME_ROOT=/data", "RUNTIME_APPDIRECTORY=limits"}, "/data/limits", func(v *serving) any { return v.EnvoyConfig }},
		{[]string{"RUNTIME_ROOT=/data", "RUNTIME_APPDIRECTORY="}, "/data", func(v *serving) any { return v.EnvoyConfig }},
		{[]string{"FORCE_START_WITHOUT_INITIAL_CONFIG=t"}, "true", func(v *serving) any { return v.Envoy.StartWithoutConfig }},
		{[]string{"FORCE_START_WITHOUT_INITIAL_CONFIG=1", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=TRUE"}, "false", func(v *serving) any { return v.Envoy.StartWithoutConfig }},
		{[]string{"SHADOW_MODE=true"}, "true", func(v *serving) any { return v.Envoy.ShadowMode }},
		{[]string{"QUOTA_MODE=1"}, "true", func(v *serving) any { return v.Envoy.QuotaMode }},
		{[]string{"MERGE_DOMAIN_CONFIG=T"}, "true", func(v *serving) any { return v.Envoy.MergeDomains }},
		{[]string{"RESPONSE_DYNAMIC_METADATA=true"}, "true", func(v *serving) any { return v.Envoy.DynamicMetadata }},
		{[]string{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_LIMIT_HEADER=A", "LIMIT_REMAINING_HEADER=B", "LIMIT_RESET_HEADER=C"}, "true {A B C}", func(v *serving) any {
			return fmt.Sprint(*v.Envoy.Headers, " ", v.Envoy.HeaderNames)
		}},
		{[]string{"LIMIT_RESPONSE_HEADERS_ENABLED=true"}, "true {RateLimit-Limit RateLimit-Remaining RateLimit-Reset}", func(v *serving) any {
			return fmt.Sprint(*v.Envoy.Headers, " ", v.Envoy.HeaderNames)
		}},

		{[]string{"LOG_LEVEL=info", "LOG_FORMAT=JSON"}, "INFO json", func(v *serving) any { return fmt.Sprint(v.logLevel, " ", v.logFormat) }},
		{[]string{"LOG_LEVEL=Trace"}, "DEBUG", func(v *serving) any { return v.logLevel }},
		{[]string{"LOG_LEVEL=warning"}, "WARN", func(v *serving) any { return v.logLevel }},
		{[]string{"LOG_LEVEL=FATAL"}, "ERROR", func(v *serving) any { return v.logLevel }},
		{[]string{"USE_PROMETHEUS=true"}, ":9090", func(v *serving) any { return v.Metrics }},
		{[]string{"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=:19001"}, ":19001", func(v *serving) any { return v.Metrics }},

		{[]string{"GRPC_SERVER_TLS_CERT=/certs/tls.crt"}, "", func(v *serving) any { return v.GRPCTLSCert }},
		{grpcTLS, "/certs/tls.crt /certs/tls.key ", func(v *serving) any { return v.GRPCTLSCert + " " + v.GRPCTLSKey + " " + v.GRPCClientCA }},
		{append(grpcTLS[:3:3], "GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt"), "/certs/ca.crt", func(v *serving) any { return v.GRPCClientCA }},
		{append(grpcTLS[:3:3], "GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt", "GRPC_CLIENT_TLS_CACERT=/other.crt", "GRPC_CLIENT_TLS_SAN=envoy"), "/other.crt envoy", func(v *serving) any {
			return v.GRPCClientCA + " " + v.GRPCClientSAN
		}},
		{grpcTLS, "", func(v *serving) any { return v.TLSCert }}, // for gRPC only, not for HTTP

		{xds, " {Server:localhost:18000 Node:default NodeMetadata:map[] Headers:map[] TLS:<nil> Retry:0s MaxRetry:0s}", func(v *serving) any {
			return fmt.Sprintf("%s %+v", v.EnvoyConfig, *v.Envoy.XDS)
		}},
		{append(xds[:1:1], "CONFIG_GRPC_XDS_SERVER_URL=eg:18001", "CONFIG_GRPC_XDS_NODE_ID=n", "CONFIG_GRPC_XDS_NODE_METADATA=a=b=c,d=e,f", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=x:1,y:2"),
			"{Server:eg:18001 Node:n NodeMetadata:map[a:b=c d:e] Headers:map[x:1 y:2] TLS:<nil> Retry:0s MaxRetry:0s}", func(v *serving) any { return fmt.Sprintf("%+v", *v.Envoy.XDS) }},
		{append(xds[:1:1], "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+certs.ClientCert, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY="+certs.ClientKey,
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT="+certs.CA, "CONFIG_GRPC_XDS_SERVER_TLS_SAN=eg"),
			fmt.Sprint(envoy.TLSFiles{CA: certs.CA, Cert: certs.ClientCert, Key: certs.ClientKey, ServerName: "eg"}), func(v *serving) any { return *v.Envoy.XDS.TLS }},

		{tcp, "redis://redis:6379", func(v *serving) any { return v.Store }},
		{[]string{"REDIS_URL=/run/redis sock"}, "unix:///run/redis%20sock", func(v *serving) any { return v.Store }},
		{[]string{"REDIS_URL=/run/redis.sock", "REDIS_AUTH=me:a@b"}, "unix://me:a%40b@/run/redis.sock", func(v *serving) any { return v.Store }},
		{append(tcp[:2:2], "REDIS_AUTH=p:a@s/s?%&+ "), "redis://p:a%40s%2Fs%3F%25%26%2B%20@redis:6379", func(v *serving) any { return v.Store }},
		{append(tcp[:2:2], "REDIS_AUTH=secret"), "redis://:secret@redis:6379", func(v *serving) any { return v.Store }},
		{append(tcp[:1:1], "REDIS_URL=redis://me:s%2Fs@redis:6379/3"), "redis://me:s%2Fs@redis:6379/3", func(v *serving) any { return v.Store }},
		{append(tcp[:1:1], "REDIS_URL=redis://me:one@redis:6379?db=4", "REDIS_AUTH=two"), "redis://me:two@redis:6379/4", func(v *serving) any { return v.Store }},
		{append(tcp[:2:2], "REDIS_TLS=true"), "rediss://redis:6379", func(v *serving) any { return v.Store }},
		{append(tcp[:2:2], "REDIS_TLS=true", "REDIS_TLS_CACERT="+certs.CA, "REDIS_TLS_CLIENT_CERT="+certs.ClientCert, "REDIS_TLS_CLIENT_KEY="+certs.ClientKey, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"),
			"rediss://redis:6379?ca=" + certs.CA + "&cert=" + certs.ClientCert + "&key=" + certs.ClientKey + "&verify_name=false",
			func(v *serving) any { return strings.ReplaceAll(v.Store, "%2F", "/") }},
		{[]string{"REDIS_TYPE=cluster", "REDIS_URL=a:1,b:2", "REDIS_AUTH=me:secret", "REDIS_TLS=true"}, "redis-cluster://me:secret@a:1,b:2?tls=true", func(v *serving) any { return v.Store }},
		{[]string{"REDIS_TYPE=SENTINEL", "REDIS_URL=my/master,a:1,b:2", "REDIS_AUTH=secret", "REDIS_SENTINEL_AUTH=watch:se&same"},
			"redis-sentinel://:secret@a:1,b:2/my%2Fmaster?sentinel_password=se%26same&sentinel_user=watch", func(v *serving) any { return v.Store }},
		{[]string{"REDIS_TYPE=sentinel", "REDIS_URL=m,redis://:sesame@a:1,b:2"}, "redis-sentinel://a:1,b:2/m?sentinel_password=sesame", func(v *serving) any { return v.Store }},
		{append(tcp[:2:2], "CACHE_KEY_PREFIX=eg:rl:"), "eg:rl:", func(v *serving) any { return v.StorePrefix }},

		{[]string{"TRACING_ENABLED=true", "TRACING_SAMPLING_RATE=0.3"}, "traces to localhost:4318 by http/protobuf, 0.3", func(v *serving) any {
			return fmt.Sprint(v.OTLP.Sending(), ", ", *v.OTLP.Sample)
		}},
		{[]string{"TRACING_ENABLED=true", "TRACING_SAMPLING_RATE=7"}, "traces to localhost:4318 by http/protobuf, 1", func(v *serving) any {
			return fmt.Sprint(v.OTLP.Sending(), ", ", *v.OTLP.Sample)
		}},
	} {
		v, _, err := asRatelimit(t, c.environ...)
		if err != nil {
			t.Errorf("%v: %v", c.environ, err)
		} else if got := fmt.Sprint(c.got(v)); got != c.want {
			t.Errorf("%v:\n got %s\nwant %s", c.environ, got, c.want)
		}
	}
}

// Weir's own variables take precedence over envoyproxy/ratelimit's, and open ports for which the latter has no
// variable.
func TestRatelimitTakesWeirsVariables(t *testing.T) {
	t.Setenv("WEIR_GRPC", "127.0.0.1:9")
	t.Setenv("WEIR_ADMIN", "127.0.0.1:8082")
	t.Setenv("WEIR_DATA", "/var/lib/weir")
	v, _, err := asRatelimit(t, "GRPC_PORT=8", "PORT=7")
	if err != nil {
		t.Fatal(err)
	}
	if v.GRPC != "127.0.0.1:9" || v.Admin != "127.0.0.1:8082" || v.HTTP != "0.0.0.0:7" || v.Data != "" {
		t.Errorf("%+v", v.Config)
	}
	t.Setenv("WEIR_ADMIN", ":8082")
	if _, _, err := asRatelimit(t); err == nil || !strings.HasPrefix(err.Error(), "WEIR_ADMIN: ") {
		t.Error(err)
	}
}

// An invalid value is an error that names the variable, says what to write, and shows no password.
func TestRatelimitMistakes(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const secret = "hunter2"
	for _, c := range []struct {
		environ, want string
	}{
		{"PORT=http", `PORT: must be a port's number, such as 8081, got "http"`},
		{"PORT=", `PORT: must be a port's number`},
		{"GRPC_PORT=70000", `GRPC_PORT: must be a port's number`},
		{"GRPC_PORT=tcp://10.0.0.7:8081", `GRPC_PORT: must be a port's number, such as 8081: Kubernetes has set it for a Service of that name`},
		{"SHADOW_MODE=yes", `SHADOW_MODE: must be true or false, got "yes"`},
		{"REDIS_TLS=", `REDIS_TLS: must be true or false, got ""`},
		{"GRPC_MAX_CONNECTION_AGE=60", `GRPC_MAX_CONNECTION_AGE: must be a time with its unit, such as 24h or 30s, got "60"`},
		{"GRPC_MAX_CONNECTION_AGE_GRACE=-1s", `GRPC_MAX_CONNECTION_AGE_GRACE: must be a time`},
		{"LOG_LEVEL=loud", `LOG_LEVEL: must be debug, info, warn or error, got "loud"`},
		{"CONFIG_TYPE=file", `CONFIG_TYPE: must be FILE or GRPC_XDS_SOTW, got "file"`},
		{"BACKEND_TYPE=memcache", `BACKEND_TYPE: must be redis: Weir doesn't count in memcached`},
		{"USE_PROMETHEUS=true PROMETHEUS_ADDR=9090", `PROMETHEUS_ADDR: must be an address and a port, got "9090"`},
		{"TRACING_SAMPLING_RATE=half", `TRACING_SAMPLING_RATE: must be a number from 0 to 1`},
		{"CACHE_KEY_PREFIX={a} REDIS_SOCKET_TYPE=tcp REDIS_URL=a:1", `CACHE_KEY_PREFIX: must have no braces`},

		{"GRPC_SERVER_USE_TLS=true", `GRPC_SERVER_USE_TLS: needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY`},
		{"GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=/c GRPC_SERVER_TLS_KEY=/k GRPC_CLIENT_TLS_SAN=x", `GRPC_CLIENT_TLS_SAN: needs GRPC_CLIENT_TLS_CACERT`},

		{"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=eg", `CONFIG_GRPC_XDS_SERVER_URL: server: must be a host and a port, such as envoy-gateway:18001, got "eg"`},
		{"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/none/ca.crt", `CONFIG_GRPC_XDS_SERVER_TLS_CACERT: open /none/ca.crt: no such file`},
		{"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + empty, `CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY go together`},
		{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization=hunter2", `CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: must be name:value,name:value`},

		{"REDIS_URL=redis:6379", `REDIS_URL: must be the path of a socket, since REDIS_SOCKET_TYPE is unix: for host:port, set REDIS_SOCKET_TYPE=tcp`},
		{"REDIS_SOCKET_TYPE=udp", `REDIS_SOCKET_TYPE: must be tcp or unix, got "udp"`},
		{"REDIS_TYPE=ring", `REDIS_TYPE: must be single, sentinel or cluster, got "ring"`},
		{"REDIS_TLS=true", `REDIS_TLS: is for REDIS_SOCKET_TYPE=tcp`},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=a:1,b:2", `REDIS_URL: several hosts are for REDIS_TYPE=cluster or REDIS_TYPE=sentinel`},
		{"REDIS_TYPE=sentinel REDIS_URL=a:1", `REDIS_URL: with REDIS_TYPE=sentinel, must be the name of the primary and then the Sentinels`},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=", `REDIS_URL: store URL: host 1: must be a name or an IP address`},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=redis://:hunter2@a:b", `REDIS_URL: must be host:port, or redis://`},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=redis://:hunter2%zz@a:1", `REDIS_URL: must be host:port, or redis://`},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=rediss://:hunter2@a:1", `REDIS_URL: must be host:port, or redis://`},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=redis://:hunter2@a:99999", `REDIS_URL: store URL: host 1: the port must be a number from 1 to 65535`},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=redis://:hunter2@a:1/hunter2", `REDIS_URL: store URL: the database must be a number from 0`},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=a:x REDIS_AUTH=me:hunter2", `REDIS_URL: store URL: host 1: `},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=a:1 REDIS_TLS=true REDIS_TLS_CACERT=/none", `REDIS_TLS_CACERT: open /none: no such file`},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=a:1 REDIS_TLS=true REDIS_TLS_CACERT=" + empty, `REDIS_URL: store URL: ca: ` + empty + `: must hold certificates`},
	} {
		_, _, err := asRatelimit(t, strings.Fields(c.environ)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n got %v\nwant %s", c.environ, err, c.want)
		} else if strings.Contains(redact(err.Error()), secret) {
			t.Errorf("%s: the password is shown: %v", c.environ, err)
		}
	}
	_, _, err := asRatelimit(t, "PORT=a", "GRPC_PORT=b", "QUOTA_MODE=c", "REDIS_TYPE=d", "LOG_LEVEL=e", "CONFIG_TYPE=f")
	for _, name := range []string{"PORT: ", "GRPC_PORT: ", "QUOTA_MODE: ", "REDIS_TYPE: ", "LOG_LEVEL: ", "CONFIG_TYPE: "} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("all are told at once, and %s isn't in %v", name, err)
		}
	}
}

// Variables without effect are named, without their values, if they are known or look like known ones. Other variables
// aren't.
func TestRatelimitWarnsOfVariables(t *testing.T) {
	const secret = "hunter2"
	for _, c := range []struct{ environ, want string }{
		{"REDIS_POOL_SIZE=hunter2", `msg="this variable does nothing here" variable=REDIS_POOL_SIZE reason="Weir joins`},
		{"USE_STATSD=true", `variable=USE_STATSD reason="there is no statsd`},
		{"USE_STATSD=hunter2", `variable=USE_STATSD`},
		{"REDIS_PERSECOND=true REDIS_PERSECOND_AUTH=hunter2", `variable=REDIS_PERSECOND `},
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=false", `variable=STOP_CACHE`},
		{"RUNTIME_IGNOREDOTFILES=false", `variable=RUNTIME_IGNOREDOTFILES reason="files whose names begin with a dot are never read"`},
		{"REDIS_PASSWORD=hunter2", `msg="this variable isn't one of envoyproxy/ratelimit's, and does nothing" variable=REDIS_PASSWORD hint=`},
		{"REDIS_ATUH=hunter2", `variable=REDIS_ATUH hint="did you mean REDIS_AUTH?"`},
		{"SHADOW_MOD=true", `variable=SHADOW_MOD hint="did you mean SHADOW_MODE?"`},
		{"LOG_LEVLE=debug", `hint="did you mean LOG_LEVEL?"`},
		{"GRPC_CLIENT_TLS_CA_CERT=/ca", `hint="did you mean GRPC_CLIENT_TLS_CACERT?"`},
		{"GRPC_CLIENT_TLS_CACERT=/ca", `msg="this variable does nothing without another" variable=GRPC_CLIENT_TLS_CACERT needs="GRPC_SERVER_USE_TLS=true"`},
		{"REDIS_TLS_CACERT=/ca", `needs="REDIS_TLS=true"`},
		{"PROMETHEUS_ADDR=:1", `needs="USE_PROMETHEUS=true"`},
		{"TRACING_ENABLED=true TRACING_SERVICE_NAME=x", `variable=TRACING_SERVICE_NAME reason="OTEL_SERVICE_NAME and`},
		{"TRACING_ENABLED=true TRACING_EXPORTER_PROTOCOL=grpc", `variable=TRACING_EXPORTER_PROTOCOL reason="OTEL_EXPORTER_OTLP_PROTOCOL chooses"`},
		{"CONFIG_GRPC_XDS_NODE_ID=x", `needs="CONFIG_TYPE=GRPC_XDS_SOTW"`},
		{"CONFIG_TYPE=GRPC_XDS_SOTW XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=100", `variable=XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES reason="a configuration has at most 4 MiB"`},

		{"USE_STATSD=false", ""}, {"USE_STATSD=0 STATSD_HOST=x STATSD_PORT=9125", ""}, {"REDIS_PERSECOND=false REDIS_PERSECOND_URL=x", ""}, {"MEMCACHE_HOST_PORT=x", ""},
		{"RUNTIME_IGNOREDOTFILES=true RUNTIME_WATCH_ROOT=false", ""}, {"NEAR_LIMIT_RATIO=0.8", ""}, {"LOCAL_CACHE_SIZE_IN_BYTES=0", ""}, {"XDS_CLIENT_BACKOFF_JITTER=true", ""},
		{"PATH=/bin HOME=/ HOSTNAME=x PWD=/ LANG=C TZ=UTC SHLVL=1 GOGC=50 GODEBUG=x USER=x TERM=x", ""},
		{"KUBERNETES_SERVICE_HOST=x KUBERNETES_PORT=tcp://x KUBERNETES_PORT_443_TCP=tcp://x", ""},
		{"REDIS_SERVICE_HOST=x REDIS_PORT=tcp://x:1 REDIS_SERVICE_PORT=1 REDIS_PORT_6379_TCP_ADDR=x REDIS_SERVICE_PORT_REDIS=1", ""},
		{"ENVOY_GATEWAY_NAMESPACE=x OTEL_EXPORTER_OTLP_ENDPOINT=http://x:1 GRPC_GO_LOG_SEVERITY_LEVEL=info WEIR_ADMIN_TOKEN=x HTTPS_PROXY=x NO_PROXY=x SSL_CERT_FILE=x", ""},
		{"POD_NAME=x POD_IP=x NODE_NAME=x HTTP_PORT=1 LOG_DIR=x APP_HOST=x AWS_REGION=x", ""},
	} {
		_, log, err := asRatelimit(t, strings.Fields(c.environ)...)
		if err != nil {
			t.Errorf("%s: %v", c.environ, err)
			continue
		}
		if lines := strings.Count(log, "\n"); !strings.Contains(log, c.want) || lines != min(1, len(c.want)) || strings.Contains(log, secret) {
			t.Errorf("%s:\n got %s\nwant %s", c.environ, log, c.want)
		}
	}
}

// The variables that Envoy Gateway sets, with all features switched on, cause no warning.
func TestRatelimitAsEnvoyGatewayStartsIt(t *testing.T) {
	certs := redistest.New(t, redistest.Options{TLS: true}).Certs
	environ := []string{
		"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false", "LOG_LEVEL=info", "USE_STATSD=false",
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001", "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + certs.ServerCert, "GRPC_SERVER_TLS_KEY=" + certs.ServerKey, "GRPC_SERVER_TLS_CA_CERT=" + certs.CA,
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + certs.ServerCert, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + certs.ServerKey, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + certs.CA,
		"FORCE_START_WITHOUT_INITIAL_CONFIG=true", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis.redis-system.svc.cluster.local:6379",
		"REDIS_TLS=true", "REDIS_TLS_CLIENT_CERT=" + certs.ClientCert, "REDIS_TLS_CLIENT_KEY=" + certs.ClientKey,
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=:19001", "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml",
		"TRACING_ENABLED=true", "TRACING_SAMPLING_RATE=0.6", "OTEL_EXPORTER_OTLP_ENDPOINT=http://trace-collector:4318", "CACHE_KEY_PREFIX=eg:rl:",
	}
	v, log, err := asRatelimit(t, environ...)
	if err != nil || log != "" {
		t.Fatal(err, log)
	}
	if v.GRPCClientCA != certs.CA || v.Metrics != ":19001" || v.Envoy.XDS.Node != "envoy-ratelimit" || v.EnvoyConfig != "" || !v.Envoy.StartWithoutConfig || v.StorePrefix != "eg:rl:" {
		t.Errorf("%+v", v.Config)
	}
}

// The docs list every variable, and the table has each of them once.
func TestRatelimitVariablesAreInTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/guides/envoy-gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	known := newTheirs(nil).known
	all := 0
	for _, v := range theirVariables {
		all += len(strings.Fields(v.names))
		if needs, _, ok := strings.Cut(v.needs, "="); ok && known[needs] == nil {
			t.Errorf("%s need %s, which isn't there", v.names, needs)
		}
	}
	if len(known) != all {
		t.Errorf("%d variables are listed, some of them twice", all)
	}
	for name := range known {
		if !bytes.Contains(text, []byte("`"+name+"`")) {
			t.Errorf("%s isn't in docs/guides/envoy-gateway.md", name)
		}
	}
}

func TestRatelimitName(t *testing.T) {
	for program, want := range map[string]bool{"/bin/ratelimit": true, "ratelimit": true, `ratelimit.exe`: true, "/bin/weir": false, "ratelimit-x": false, "": false} {
		if isRatelimit(program) != want {
			t.Errorf("%q: %v", program, !want)
		}
	}
}
