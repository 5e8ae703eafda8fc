package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/guess"
)

// theirVariable describes a variable of envoyproxy/ratelimit, or several similar ones.
type theirVariable struct {
	names  string // names of the variables, separated by spaces
	normal string // their default in envoyproxy/ratelimit; for the pauses between attempts to reach an xDS server, it is Weir's
	// kind says which values are valid; the zero value accepts any.
	kind valueKind
	// needs is another variable with its value. Without that, this variable has no effect.
	needs string
	// nothing says why Weir ignores the variable. Values equal to silent, or "", ask for what Weir does anyway, so
	// they cause no warning.
	nothing, silent string
}

// anything is a value of silent that matches all values.
const anything = "*"

// theirVariables are all variables of envoyproxy/ratelimit, and one that only Envoy Gateway has.
var theirVariables = []theirVariable{
	{names: "HOST GRPC_HOST", normal: "0.0.0.0"},
	{names: "PORT", normal: "8080", kind: aPort},
	{names: "GRPC_PORT", normal: "8081", kind: aPort},
	{names: "GRPC_UDS", nothing: "gRPC is on GRPC_HOST and GRPC_PORT alone"},
	{names: "GRPC_MAX_CONNECTION_AGE", normal: "24h", kind: aTime},
	{names: "GRPC_MAX_CONNECTION_AGE_GRACE", normal: "1h", kind: aTime},
	{names: "GRPC_SERVER_USE_TLS", normal: "false", kind: aBool},
	{names: "GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY", needs: "GRPC_SERVER_USE_TLS=true"},
	{names: "GRPC_SERVER_TLS_CA_CERT", needs: "GRPC_SERVER_USE_TLS=true"}, // from Envoy Gateway
	{names: "GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN", needs: "GRPC_SERVER_USE_TLS=true"},
	{names: "DEBUG_HOST DEBUG_PORT", nothing: noDebug},

	{names: "LOG_LEVEL", normal: "WARN", kind: aLevel},
	{names: "LOG_FORMAT", normal: "text"},

	{names: "CONFIG_TYPE", normal: "FILE", kind: aSource},
	{names: "FORCE_START_WITHOUT_INITIAL_CONFIG MERGE_DOMAIN_CONFIG", normal: "false", kind: aBool},
	{names: "RUNTIME_ROOT", normal: "/srv/runtime_data/current"},
	{names: "RUNTIME_SUBDIRECTORY"},
	{names: "RUNTIME_APPDIRECTORY", normal: "config"},
	{names: "RUNTIME_IGNOREDOTFILES", nothing: "files whose names begin with a dot are never read", silent: "true"},
	{names: "RUNTIME_WATCH_ROOT", nothing: "the folder is followed in both ways", silent: anything},

	{names: "CONFIG_GRPC_XDS_NODE_ID", normal: "default", needs: "CONFIG_TYPE=GRPC_XDS_SOTW"},
	{names: "CONFIG_GRPC_XDS_NODE_METADATA", needs: "CONFIG_TYPE=GRPC_XDS_SOTW"},
	{names: "CONFIG_GRPC_XDS_SERVER_URL", normal: "localhost:18000", needs: "CONFIG_TYPE=GRPC_XDS_SOTW"},
	{names: "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", kind: aMap, needs: "CONFIG_TYPE=GRPC_XDS_SOTW"},
	{names: "CONFIG_GRPC_XDS_SERVER_USE_TLS", normal: "false", kind: aBool, needs: "CONFIG_TYPE=GRPC_XDS_SOTW"},
	{names: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY", needs: "CONFIG_GRPC_XDS_SERVER_USE_TLS=true"},
	{names: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN", needs: "CONFIG_GRPC_XDS_SERVER_USE_TLS=true"},
	{names: "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", nothing: backOff, needs: "CONFIG_TYPE=GRPC_XDS_SOTW"},
	{names: "XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER", nothing: backOff, needs: "CONFIG_TYPE=GRPC_XDS_SOTW"},
	{names: "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", normal: "0s", kind: aTime, needs: "CONFIG_TYPE=GRPC_XDS_SOTW"},
	{names: "XDS_CLIENT_BACKOFF_MAX_INTERVAL", normal: "0s", kind: aTime, needs: "CONFIG_TYPE=GRPC_XDS_SOTW"},
	{names: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", normal: "0", kind: aSize, needs: "CONFIG_TYPE=GRPC_XDS_SOTW"},

	{names: "BACKEND_TYPE", normal: "redis"},
	{names: "CACHE_KEY_PREFIX REDIS_AUTH REDIS_SENTINEL_AUTH"},
	{names: "REDIS_SOCKET_TYPE", normal: "unix"},
	{names: "REDIS_TYPE", normal: "SINGLE"},
	{names: "REDIS_URL", normal: "/var/run/nutcracker/ratelimit.sock"},
	{names: "REDIS_TLS", normal: "false", kind: aBool},
	{names: "REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT", needs: "REDIS_TLS=true"},
	{names: "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", normal: "false", kind: aBool, needs: "REDIS_TLS=true"},
	{names: "REDIS_TIMEOUT", nothing: "a check waits for Redis for as long as Envoy's time-out allows, at most WEIR_STORE_TIMEOUT (50ms)"},
	{names: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", nothing: "a node without Redis answers, so it is healthy", silent: "false"},
	{names: "REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME", nothing: "a node starts without Redis, and uses it once it is there"},
	{names: "REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_POOL_SIZE", nothing: noPool},
	{names: "REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_POOL_ON_EMPTY_WAIT_DURATION", nothing: noPool},
	{names: "REDIS_PERSECOND", nothing: "the Redis of REDIS_URL has the counters of seconds, too", silent: "false"},
	{names: "EXPIRATION_JITTER_MAX_SECONDS", nothing: "Weir's counters expire by their own times"},
	{names: "LOCAL_CACHE_SIZE_IN_BYTES", nothing: "spent limits are remembered in any case", silent: "0"},
	{names: "NEAR_LIMIT_RATIO", nothing: "weir_near_limit_total counts from four fifths on", silent: "0.8"},
	{names: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", nothing: "a refused request never counts at its other limits", silent: "true"},

	{names: "LIMIT_RESPONSE_HEADERS_ENABLED SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA", normal: "false", kind: aBool},
	{names: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", normal: "false", kind: aBool},
	{names: "LIMIT_LIMIT_HEADER", normal: "RateLimit-Limit"},
	{names: "LIMIT_REMAINING_HEADER", normal: "RateLimit-Remaining"},
	{names: "LIMIT_RESET_HEADER", normal: "RateLimit-Reset"},

	{names: "USE_PROMETHEUS", normal: "false", kind: aBool},
	{names: "PROMETHEUS_ADDR", normal: ":9090", needs: "USE_PROMETHEUS=true"},
	{names: "PROMETHEUS_PATH", nothing: "metrics are at /metrics", silent: "/metrics"},
	{names: "PROMETHEUS_MAPPER_YAML", nothing: "Weir's metrics need no mapper", silent: anything}, // Envoy Gateway always sets it
	{names: "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", nothing: "Weir's metrics are in seconds", silent: "false"},
	{names: "USE_STATSD USE_DOG_STATSD", nothing: noStatsd, silent: "false"},
	{names: "USE_DOG_STATSD_MOGRIFIERS", nothing: noStatsd, needs: "USE_DOG_STATSD=true"},
	{names: "STATSD_HOST STATSD_PORT STATS_FLUSH_INTERVAL", nothing: noStatsd, silent: anything}, // USE_STATSD causes the warning
	{names: "EXTRA_TAGS", nothing: "Prometheus adds labels to what it scrapes"},
	{names: "DISABLE_STATS", nothing: "metrics are served where USE_PROMETHEUS asks for them, and cost nothing else", silent: "false"},

	{names: "TRACING_ENABLED", normal: "false", kind: aBool},
	{names: "TRACING_SERVICE_NAME", normal: "RateLimit", needs: "TRACING_ENABLED=true"},
	{names: "TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID", needs: "TRACING_ENABLED=true"},
	{names: "TRACING_EXPORTER_PROTOCOL", normal: "http", kind: aProtocol, needs: "TRACING_ENABLED=true"},
	{names: "TRACING_SAMPLING_RATE", normal: "1", kind: aNumber, needs: "TRACING_ENABLED=true"},
}

const (
	noDebug  = "there is no debug port: WEIR_ADMIN=127.0.0.1:8082 opens the admin port, and WEIR_PPROF=true has profiles there"
	backOff  = "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL and XDS_CLIENT_BACKOFF_MAX_INTERVAL say how often it is tried, with jitter"
	noPool   = "Weir joins the checks of a moment into one call by itself"
	noStatsd = "there is no statsd: USE_PROMETHEUS=true serves metrics, and OTEL_METRICS_EXPORTER=otlp sends them to a collector"
)

// theirFamilies are prefixes of variables that Weir ignores. If they are used, another variable causes the warning.
var theirFamilies = []string{"REDIS_PERSECOND_", "MEMCACHE_"}

// theirPrefixes are prefixes of variables that belong to envoyproxy/ratelimit.
var theirPrefixes = []string{
	"REDIS_", "RUNTIME_", "CONFIG_GRPC_XDS_", "XDS_CLIENT_", "GRPC_SERVER_", "GRPC_CLIENT_", "GRPC_MAX_", "LIMIT_", "TRACING_", "PROMETHEUS_", "STATSD_", "USE_DOG_STATSD",
}

// valueKind is a kind of values. They are parsed as in envoyproxy/ratelimit.
type valueKind struct {
	must   string // describes valid values for errors
	secret bool   // values may be tokens, so errors don't show them
	reads  func(value string) bool
}

var (
	aBool     = valueKind{must: "true or false", reads: reads(strconv.ParseBool, nil)}
	aPort     = valueKind{must: "a port's number, such as 8081", reads: isWhole(1<<16 - 1)}
	aSize     = valueKind{must: "a number of bytes, such as 4194304", reads: isWhole(math.MaxInt32)}
	aTime     = valueKind{must: "a time with its unit, such as 24h or 30s", reads: reads(time.ParseDuration, func(d time.Duration) bool { return d >= 0 })}
	aNumber   = valueKind{must: "a number from 0 to 1, such as 0.1", reads: reads(parseFloat, func(n float64) bool { return !math.IsNaN(n) })}
	aLevel    = valueKind{must: "debug, info, warn or error", reads: func(s string) bool { return level(s) != "" }}
	aSource   = valueKind{must: "FILE or GRPC_XDS_SOTW", reads: isOneOf("FILE", "GRPC_XDS_SOTW")}
	aProtocol = valueKind{must: "http or grpc", reads: isOneOf("http", "grpc", "")}
	aMap      = valueKind{must: "name:value,name:value", secret: true, reads: isMap}
)

// reads returns a function that reports whether parse accepts a value and ok is true for the result.
func reads[T any](parse func(string) (T, error), ok func(T) bool) func(string) bool {
	return func(value string) bool {
		v, err := parse(value)
		return err == nil && (ok == nil || ok(v))
	}
}

func parseWhole(s string) (int64, error)   { return strconv.ParseInt(s, 0, 64) }
func parseFloat(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

func isWhole(most int64) func(string) bool {
	return reads(parseWhole, func(n int64) bool { return n >= 0 && n <= most })
}

func isMap(s string) bool {
	for pair := range strings.SplitSeq(s, ",") {
		if strings.Count(pair, ":") != 1 {
			return strings.TrimSpace(s) == ""
		}
	}
	return true
}

func isOneOf(values ...string) func(string) bool {
	return func(s string) bool { return slices.Contains(values, s) }
}

// level converts a level of logrus to one of Weir's. It returns "" for unknown levels.
func level(text string) string {
	switch text = strings.ToLower(text); text {
	case "debug", "info", "warn", "error":
		return text
	case "trace", "warning", "fatal", "panic":
		return otherLevels[text]
	}
	return ""
}

// theirs is the environment, read as envoyproxy/ratelimit reads it.
type theirs struct {
	given map[string]string
	known map[string]*theirVariable
}

func newTheirs(environ []string) *theirs {
	e := &theirs{given: map[string]string{}, known: map[string]*theirVariable{}}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		e.given[name] = value
	}
	for i := range theirVariables {
		for name := range strings.FieldsSeq(theirVariables[i].names) {
			e.known[name] = &theirVariables[i]
		}
	}
	return e
}

// text returns a variable's value. As in envoyproxy/ratelimit, a variable that is set to "" doesn't get its default.
func (e *theirs) text(name string) string {
	v := e.known[name]
	if v == nil {
		panic("no variable of envoyproxy/ratelimit: " + name)
	}
	if value, ok := e.given[name]; ok {
		return value
	}
	return v.normal
}

func (e *theirs) on(name string) bool { return sameValue(e.text(name), "true") }

// sameValue reports whether two values are the same, even if they spell true or false differently.
func sameValue(a, b string) bool {
	x, notX := strconv.ParseBool(a)
	y, notY := strconv.ParseBool(b)
	return a == b || notX == nil && notY == nil && x == y
}

// whole, time and share return values that check has validated.
func (e *theirs) whole(name string) int {
	n, _ := strconv.ParseInt(e.text(name), 0, 32)
	return int(n)
}

func (e *theirs) time(name string) time.Duration {
	d, _ := time.ParseDuration(e.text(name))
	return d
}

// share returns a number from 0 to 1. As in envoyproxy/ratelimit, numbers outside of this range are clamped.
func (e *theirs) share(name string) float64 {
	n, _ := strconv.ParseFloat(e.text(name), 64)
	return min(1, max(0, n))
}

// check returns an error with all invalid values.
func (e *theirs) check() error {
	var all []error
	for _, name := range slices.Sorted(maps.Keys(e.known)) {
		value, given := e.given[name]
		switch kind := e.known[name].kind; {
		case !given || kind.reads == nil || kind.reads(value):
		case serviceLink(name, value):
			all = append(all, fmt.Errorf("%s: must be %s: Kubernetes has set it for a Service of that name; set it yourself, or enableServiceLinks: false in the Pod", name, kind.must))
		case kind.secret:
			all = append(all, fmt.Errorf("%s: must be %s", name, kind.must))
		default:
			all = append(all, fmt.Errorf("%s: must be %s, got %q", name, kind.must, value))
		}
	}
	return errors.Join(all...)
}

// means reports whether a variable has an effect, given the other variables.
func (e *theirs) means(v *theirVariable) bool {
	name, value, needs := strings.Cut(v.needs, "=")
	return !needs || sameValue(e.text(name), value) && e.means(e.known[name])
}

// warn logs the variables that Weir ignores, without their values.
func (e *theirs) warn(log *slog.Logger) {
	known := slices.Sorted(maps.Keys(e.known))
	for _, name := range slices.Sorted(maps.Keys(e.given)) {
		v, value := e.known[name], e.given[name]
		switch {
		case v != nil && v.nothing != "":
			if e.means(v) && value != "" && v.silent != anything && !sameValue(value, v.silent) {
				log.Warn("this variable does nothing here", "variable", name, "reason", v.nothing)
			}
		case v != nil:
			if !e.means(v) && value != v.normal {
				log.Warn("this variable does nothing without another", "variable", name, "needs", v.needs)
			}
		case strings.HasPrefix(name, "WEIR_") || serviceLink(name, value) || hasPrefix(name, theirFamilies):
		default:
			best := ""
			if strings.Contains(name, "_") {
				best = guess.Closest(name, known)
			}
			if !hasPrefix(name, theirPrefixes) && !typing(name, best) {
				continue
			}
			hint := "docs/guides/envoy-gateway.md lists those that do something"
			if best != "" {
				hint = "did you mean " + best + "?"
			}
			log.Warn("this variable isn't one of envoyproxy/ratelimit's, and does nothing", "variable", name, "hint", hint)
		}
	}
}

// links matches the names of variables that Kubernetes sets in containers for each Service.
var links = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)$`)

// serviceLink reports whether Kubernetes set the variable, for a Service with a name such as redis.
func serviceLink(name, value string) bool {
	return links.MatchString(name) || strings.HasSuffix(name, "PORT") && strings.Contains(value, "://")
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// typing reports whether a name is close enough to another to be a misspelling of it.
func typing(name, meant string) bool {
	return meant != "" && len(name)-len(meant) <= 2 && len(meant)-len(name) <= 2
}
