package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weirhq/weir/internal/node/watch"
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/observe/otlp"
	"github.com/weirhq/weir/server/internal/serve"
)

// ratelimitName is the name of the program under which weir replaces envoyproxy/ratelimit: it then reads the same
// variables and opens the same ports.
const ratelimitName = "ratelimit"

func isRatelimit(program string) bool {
	return strings.TrimSuffix(filepath.Base(program), ".exe") == ratelimitName
}

func ratelimitCommand() *cobra.Command {
	cmd := command(ratelimitName, func(cmd *cobra.Command, _ []string) error {
		v := &serving{}
		v.takeSignals()
		flags := pflag.NewFlagSet(ratelimitName, pflag.ContinueOnError)
		v.register(flags)
		env := newTheirs(os.Environ())
		s, err := v.translate(env, flags)
		if err != nil {
			return err
		}
		return v.run(cmd, s, func(log *slog.Logger) {
			if n := len(os.Args) - 1; n > 0 {
				log.Warn("arguments do nothing under this name: its settings are variables, see ratelimit --help; weir serve takes flags", "arguments", n)
			}
			env.warn(log)
			warnOfVariables(log, flags, os.Environ())
		})
	})
	// Ignore arguments like envoyproxy/ratelimit, because an example of Envoy AI Gateway passes some.
	cmd.Args, cmd.FParseErrWhitelist.UnknownFlags = cobra.ArbitraryArgs, true
	asProgram(cmd)
	return cmd
}

// translate sets the flags and settings that envoyproxy/ratelimit's variables define, except those that Weir's own
// variables set.
func (v *serving) translate(env *theirs, flags *pflag.FlagSet) (*settingsFile, error) {
	store, noStore := env.store()
	if err := errors.Join(env.check(), noStore); err != nil { // report all errors together, because each start of a Pod takes a while
		return nil, err
	}
	s, err := settings(flags, "", false)
	if err != nil {
		return nil, err
	}
	set := func(flag, value, from string) {
		if flags.Changed(flag) {
			return // one of Weir's own variables has set it
		}
		if bad := flags.Set(flag, value); bad != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", from, bad))
		}
		s.variables[flag] = from
	}
	var noXDS error
	take := func(flag, variable string) { set(flag, env.text(variable), variable) }
	set("http", net.JoinHostPort(env.text("HOST"), strconv.Itoa(env.whole("PORT"))), "HOST and PORT")
	set("grpc", net.JoinHostPort(env.text("GRPC_HOST"), strconv.Itoa(env.whole("GRPC_PORT"))), "GRPC_HOST and GRPC_PORT")
	set("admin", "", "") // envoyproxy/ratelimit has no admin port
	if env.on("USE_PROMETHEUS") {
		take("metrics", "PROMETHEUS_ADDR")
	}
	set("store", store, "REDIS_URL")
	take("store-prefix", "CACHE_KEY_PREFIX")
	set("log-level", level(env.text("LOG_LEVEL")), "LOG_LEVEL")
	set("log-format", env.logFormat(), "LOG_FORMAT")
	if env.on("GRPC_SERVER_USE_TLS") {
		if env.text("GRPC_SERVER_TLS_CERT") == "" || env.text("GRPC_SERVER_TLS_KEY") == "" {
			return nil, errors.New("GRPC_SERVER_USE_TLS: needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY, the files of a certificate and of its key")
		}
		take("grpc-tls-cert", "GRPC_SERVER_TLS_CERT")
		take("grpc-tls-key", "GRPC_SERVER_TLS_KEY")
		ca := "GRPC_CLIENT_TLS_CACERT"
		if env.text(ca) == "" && env.text("GRPC_SERVER_TLS_CA_CERT") != "" {
			ca = "GRPC_SERVER_TLS_CA_CERT" // Envoy Gateway sets this variable, although envoyproxy/ratelimit doesn't read it
		}
		take("grpc-client-ca", ca)
		take("grpc-client-san", "GRPC_CLIENT_TLS_SAN")
		if v.GRPCClientSAN != "" && v.GRPCClientCA == "" {
			return nil, errors.New("GRPC_CLIENT_TLS_SAN: needs GRPC_CLIENT_TLS_CACERT: without it clients are asked for no certificate")
		}
	}
	env.answer(&s.sections)
	if env.text("CONFIG_TYPE") == "FILE" {
		folder := filepath.Join(env.text("RUNTIME_ROOT"), env.text("RUNTIME_SUBDIRECTORY"), env.text("RUNTIME_APPDIRECTORY"))
		set("envoy-config", folder, "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY")
	} else if s.Envoy.XDS, noXDS = env.xds(); noXDS != nil {
		return nil, noXDS
	}
	v.OnlyEnvoy = true
	v.Data = "" // don't write to a folder: the rules are in Redis, and the file system may be read-only
	return s, err
}

// answer sets how the node answers requests, and what it sends to OpenTelemetry.
func (e *theirs) answer(s *sections) {
	s.Envoy = serve.Envoy{
		Headers:         new(e.on("LIMIT_RESPONSE_HEADERS_ENABLED")),
		HeaderNames:     serve.EnvoyHeaders{Limit: e.text("LIMIT_LIMIT_HEADER"), Remaining: e.text("LIMIT_REMAINING_HEADER"), Reset: e.text("LIMIT_RESET_HEADER")},
		DynamicMetadata: e.on("RESPONSE_DYNAMIC_METADATA"),
		MergeDomains:    e.on("MERGE_DOMAIN_CONFIG"), ShadowMode: e.on("SHADOW_MODE"), QuotaMode: e.on("QUOTA_MODE"),
		StartWithoutConfig: e.on("FORCE_START_WITHOUT_INITIAL_CONFIG") && !e.on("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
		MaxConnectionAge:   e.age("GRPC_MAX_CONNECTION_AGE"), MaxConnectionAgeGrace: e.age("GRPC_MAX_CONNECTION_AGE_GRACE"),
	}
	s.OTLP = otlp.Config{
		Metrics: new(false), Traces: new(e.on("TRACING_ENABLED")), Sample: new(e.share("TRACING_SAMPLING_RATE")),
		Endpoint: "https://localhost:4318", // OTEL_EXPORTER_OTLP_ENDPOINT overrides this
	}
}

func (e *theirs) xds() (*envoy.XDS, error) {
	x := &envoy.XDS{
		Server: e.text("CONFIG_GRPC_XDS_SERVER_URL"), Node: e.text("CONFIG_GRPC_XDS_NODE_ID"),
		NodeMetadata: pairs(e.text("CONFIG_GRPC_XDS_NODE_METADATA"), "="), Headers: pairs(e.text("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"), ":"),
	}
	if err := x.Validate(); err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_SERVER_URL: %w", err)
	}
	if !e.on("CONFIG_GRPC_XDS_SERVER_USE_TLS") {
		return x, nil
	}
	if err := e.files("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"); err != nil {
		return nil, err
	}
	x.TLS = &envoy.TLSFiles{
		CA: e.text("CONFIG_GRPC_XDS_SERVER_TLS_CACERT"), ServerName: e.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
		Cert: e.text("CONFIG_GRPC_XDS_CLIENT_TLS_CERT"), Key: e.text("CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
	}
	return x, nil
}

// pairs parses a list of names and values. It skips malformed items.
func pairs(text, between string) map[string]string {
	all := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(pair, between); ok {
			all[name] = value
		}
	}
	return all
}

// files checks the files that three variables name: a certificate, its key, and a CA.
func (e *theirs) files(cert, key, ca string) error {
	if (e.text(cert) == "") != (e.text(key) == "") {
		return fmt.Errorf("%s and %s go together: give the files of a certificate and of its key", cert, key)
	}
	for _, name := range []string{cert, key, ca} {
		if file := e.text(name); file != "" {
			if _, err := watch.ReadSmall(file); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// age returns the maximum age of a connection. In envoyproxy/ratelimit, 0 means that there is no limit.
func (e *theirs) age(name string) time.Duration { return cmp.Or(e.time(name), math.MaxInt64) }

// logFormat returns "json" or "text". As in envoyproxy/ratelimit, any value other than json means "text".
func (e *theirs) logFormat() string {
	if strings.EqualFold(e.text("LOG_FORMAT"), "json") {
		return "json"
	}
	return "text"
}

// store returns the URL of the Redis. Its errors don't quote values other than file names, since they may contain
// passwords.
func (e *theirs) store() (string, error) {
	if backend := e.text("BACKEND_TYPE"); backend != "redis" && backend != "" {
		return "", errors.New("BACKEND_TYPE: must be redis: Weir doesn't count in memcached; start a Redis, and name it in REDIS_URL")
	}
	parameters, err := e.redisTLS()
	if err != nil {
		return "", err
	}
	hosts := strings.Split(e.text("REDIS_URL"), ",")
	scheme, primary := "redis", ""
	switch kind := strings.ToLower(e.text("REDIS_TYPE")); kind {
	case "single":
		if err := e.checkSingle(hosts); err != nil {
			return "", err
		}
		if e.text("REDIS_SOCKET_TYPE") == "unix" {
			return "unix://" + e.login(nil) + strings.ReplaceAll(escape(e.text("REDIS_URL")), "%2F", "/"), nil
		}
	case "cluster":
		scheme = "redis-cluster"
	case "sentinel":
		if len(hosts) < 2 {
			return "", errors.New("REDIS_URL: with REDIS_TYPE=sentinel, must be the name of the primary and then the Sentinels, such as mymaster,sentinel-0:26379,sentinel-1:26379")
		}
		scheme, primary, hosts = "redis-sentinel", strings.TrimSpace(hosts[0]), hosts[1:]
	default:
		return "", fmt.Errorf("REDIS_TYPE: must be single, sentinel or cluster, got %q", e.text("REDIS_TYPE"))
	}
	single, path := scheme == "redis", ""
	switch tls := e.on("REDIS_TLS"); {
	case tls && single:
		scheme = "rediss"
	case tls:
		parameters.Set("tls", "true")
	}
	var user *url.Userinfo // from the first server that has one
	for i, h := range hosts {
		server, err := parseServer(strings.TrimSpace(h))
		if err != nil {
			return "", err
		}
		hosts[i], user = server.Host, cmp.Or(user, server.User)
		if single {
			path = server.Path
		}
	}
	if primary != "" { // if so, users and passwords in the URLs are for the Sentinels
		if auth := e.text("REDIS_SENTINEL_AUTH"); auth != "" {
			user = parseLogin(auth)
		}
		if name := user.Username(); name != "" {
			parameters.Set("sentinel_user", name)
		}
		if password, _ := user.Password(); password != "" {
			parameters.Set("sentinel_password", password)
		}
		path, user = "/"+escape(primary), nil
	}
	text := scheme + "://" + e.login(user) + strings.Join(hosts, ",") + path
	if len(parameters) > 0 {
		text += "?" + strings.ReplaceAll(parameters.Encode(), "+", "%20")
	}
	return text, nil
}

// checkSingle checks the variables for a single server. REDIS_URL has the server's address, or the path of its socket.
func (e *theirs) checkSingle(hosts []string) error {
	switch socket := e.text("REDIS_SOCKET_TYPE"); {
	case socket == "unix" && !strings.HasPrefix(hosts[0], "/"):
		return errors.New("REDIS_URL: must be the path of a socket, since REDIS_SOCKET_TYPE is unix: for host:port, set REDIS_SOCKET_TYPE=tcp")
	case socket == "unix" && e.on("REDIS_TLS"):
		return errors.New("REDIS_TLS: is for REDIS_SOCKET_TYPE=tcp: a socket on this machine has none")
	case socket == "unix":
		return nil
	case socket != "tcp" && socket != "tcp4" && socket != "tcp6":
		return fmt.Errorf("REDIS_SOCKET_TYPE: must be tcp or unix, got %q", socket)
	case len(hosts) > 1:
		return errors.New("REDIS_URL: several hosts are for REDIS_TYPE=cluster or REDIS_TYPE=sentinel")
	}
	return nil
}

func (e *theirs) redisTLS() (url.Values, error) {
	parameters := url.Values{}
	if !e.on("REDIS_TLS") {
		return parameters, nil
	}
	if err := e.files("REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY", "REDIS_TLS_CACERT"); err != nil {
		return nil, err
	}
	for name, parameter := range map[string]string{"REDIS_TLS_CACERT": "ca", "REDIS_TLS_CLIENT_CERT": "cert", "REDIS_TLS_CLIENT_KEY": "key"} {
		if file := e.text(name); file != "" {
			parameters.Set(parameter, file)
		}
	}
	if e.on("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") {
		parameters.Set("verify_name", "false")
	}
	return parameters, nil
}

// login returns the user and the password for a URL. Those in REDIS_AUTH take precedence over those in REDIS_URL.
func (e *theirs) login(user *url.Userinfo) string {
	name := user.Username()
	password, _ := user.Password()
	if auth := e.text("REDIS_AUTH"); auth != "" {
		given := parseLogin(auth)
		name = cmp.Or(given.Username(), name)
		password, _ = given.Password()
	}
	if name == "" && password == "" {
		return ""
	}
	return escape(name) + ":" + escape(password) + "@"
}

// parseLogin parses user:password. A text without a colon is a password.
func parseLogin(auth string) *url.Userinfo {
	user, password, both := strings.Cut(auth, ":")
	if !both {
		return url.UserPassword("", user)
	}
	return url.UserPassword(user, password)
}

// parseServer parses host:port, or redis://user:password@host:port/database.
func parseServer(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		return &url.URL{Host: text}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "redis" || u.Host == "" {
		return nil, errors.New(`REDIS_URL: must be host:port, or redis://user:password@host:port/0 with %2F for "/", %3F for "?", %23 for "#" and %25 for "%" in a password; TLS is REDIS_TLS=true`)
	}
	given := u.Query()
	name, password := cmp.Or(u.User.Username(), given.Get("username")), given.Get("password")
	if own, _ := u.User.Password(); own != "" {
		password = own
	}
	if u.User = nil; name+password != "" {
		u.User = url.UserPassword(name, password)
	}
	if u.Path = cmp.Or(strings.Trim(u.Path, "/"), given.Get("db")); u.Path != "" {
		u.Path = "/" + escape(u.Path)
	}
	return u, nil
}

// escape escapes a text for the query of a store's URL, where a plus sign isn't a space.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
