package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/guess"
)

// theirVariable describes one or several similar variables of envoyproxy/ratelimit.
type theirVariable struct {
	names  string // names of the variables, separated by spaces
	normal string // their default in envoyproxy/ratelimit
	// kind says which values are valid; the zero value accepts any.
	kind valueKind
	// needs is another variable and a value, as NAME=value. Unless that variable has that value, this one has no
	// effect.
	needs string
	// nothing is the text of a warning that says why Weir ignores the variable. It is "" if Weir uses the variable.
	// There is no warning if the variable's value equals silent, or is "".
	nothing, silent string
}

// anything is a value of silent that matches all values.
const anything = "*"

// theirVariables are all variables of envoyproxy/ratelimit, and GRPC_SERVER_TLS_CA_CERT, which only Envoy Gateway sets.
var theirVariables = []theirVariable{
	{names: "HOST GRPC_HOST", normal: "0.0.0.0"},
	{names: "PORT", normal: "8080", kind: aPort},
	{names: "GRPC_PORT", normal: "8081", kind: aPort},
	{names: "GRPC_UDS", nothing: "gRPC is on GRPC_HOST and GRPC_PORT alone"},
	{names: "GRPC_MAX_CONNECTION_AGE", normal: "24h", kind: aTime},
	{names: "GRPC_MAX_CONNECTION_AGE_GRACE", normal: "1h", kind: aTime},
	{names: "GRPC_SERVER_USE_TLS", normal: "false", kind: aBool},
	{names: "GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_SERVER_TLS_CA_CERT GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN", needs: "GRPC_SERVER_USE_TLS=true"},
	{names: "DEBUG_HOST DEBUG_PORT", nothing: "there is no debug port: WEIR_ADMIN=127.0.0.1:8082 opens the admin port, and WEIR_PPROF=true has profiles there"},

	{names: "LOG_LEVEL", normal: "WARN", kind: aLevel},
	{names: "LOG_FORMAT", normal: "text"},

	{names: "CONFIG_TYPE", normal: "FILE", kind: aSource},
	{names: "FORCE_START_WITHOUT_INITIAL_CONFIG MERGE_DOMAIN_CONFIG", normal: "false", kind: aBool},
	{names: "RUNTIME_ROOT", normal: "/srv/runtime_data/current"},
	{names: "RUNTIME_SUBDIRECTORY"},
	{names: "RUNTIME_APPDIRECTORY", normal: "config"},
	{names: "RUNTIME_IGNOREDOTFILES", nothing: "files whose names begin with a dot are never read", silent: "true"},
	{names: "RUNTIME_WATCH_ROOT", nothing: "the folder is followed in both ways", silent: anything},

	{names: "CONFIG_GRPC_XDS_NODE_ID", normal: "default", needs: overXDS},
	{names: "CONFIG_GRPC_XDS_NODE_METADATA", needs: overXDS},
	{names: "CONFIG_GRPC_XDS_SERVER_URL", normal: "localhost:18000", needs: overXDS},
	{names: "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", kind: aMap, needs: overXDS},
	{names: "CONFIG_GRPC_XDS_SERVER_USE_TLS", normal: "false", kind: aBool, needs: overXDS},
	{names: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN", needs: "CONFIG_GRPC_XDS_SERVER_USE_TLS=true"},
	{names: "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER",
		needs: overXDS, nothing: "pauses between attempts double from 500ms to 30s, with jitter"},
	{names: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", needs: overXDS, nothing: "a configuration has at most 4 MiB"},

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
	{names: "REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_POOL_SIZE REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_POOL_ON_EMPTY_WAIT_DURATION",
		nothing: "Weir joins the checks of a moment into one call by itself"},
	{names: "REDIS_PERSECOND", nothing: "the Redis of REDIS_URL has the counters of seconds, too", silent: "false"},
	{names: "EXPIRATION_JITTER_MAX_SECONDS", nothing: "Weir's counters expire by their own times"},
	{names: "LOCAL_CACHE_SIZE_IN_BYTES", nothing: "spent limits are remembered in any case", silent: "0"},
	{names: "NEAR_LIMIT_RATIO", nothing: "weir_near_limit_total counts from four fifths on", silent: "0.8"},
	{names: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", nothing: "a refused request never counts at its other limits", silent: "true"},

	{names: "LIMIT_RESPONSE_HEADERS_ENABLED SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", normal: "false", kind: aBool},
	{names: "LIMIT_LIMIT_HEADER", normal: "RateLimit-Limit"},
	{names: "LIMIT_REMAINING_HEADER", normal: "RateLimit-Remaining"},
	{names: "LIMIT_RESET_HEADER", normal: "RateLimit-Reset"},

	{names: "USE_PROMETHEUS", normal: "false", kind: aBool},
	{names: "PROMETHEUS_ADDR", normal: ":9090", needs: "USE_PROMETHEUS=true"},
	{names: "PROMETHEUS_PATH", nothing: "metrics are at /metrics", silent: "/metrics"},
	{names: "PROMETHEUS_MAPPER_YAML", nothing: "Weir's metrics need no mapper", silent: anything}, // no warning, because Envoy Gateway always sets it
	{names: "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", nothing: "Weir's metrics are in seconds", silent: "false"},
	{names: "USE_STATSD USE_DOG_STATSD", nothing: noStatsd, silent: "false"},
	{names: "USE_DOG_STATSD_MOGRIFIERS", nothing: noStatsd, needs: "USE_DOG_STATSD=true"},
	{names: "STATSD_HOST STATSD_PORT STATS_FLUSH_INTERVAL", nothing: noStatsd, silent: anything}, // USE_STATSD causes the warning instead
	{names: "EXTRA_TAGS", nothing: "Prometheus adds labels to what it scrapes"},
	{names: "DISABLE_STATS", nothing: "metrics are served where USE_PROMETHEUS asks for them, and cost nothing else", silent: "false"},

	{names: "TRACING_ENABLED", normal: "false", kind: aBool},
	{names: "TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID", needs: traced, nothing: "OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES name the service in traces"},
	{names: "TRACING_EXPORTER_PROTOCOL", needs: traced, nothing: "OTEL_EXPORTER_OTLP_PROTOCOL chooses", silent: "http"},
	{names: "TRACING_SAMPLING_RATE", normal: "1", kind: aNumber, needs: traced},
}

const (
	overXDS  = "CONFIG_TYPE=GRPC_XDS_SOTW"
	traced   = "TRACING_ENABLED=true"
	noStatsd = "there is no statsd: USE_PROMETHEUS=true serves metrics, and OTEL_METRICS_EXPORTER=otlp sends them to a collector"
)

// theirFamilies are prefixes of variables that Weir ignores without a warning. If they are in use, another variable
// causes the warning.
var theirFamilies = []string{"REDIS_PERSECOND_", "MEMCACHE_"}

// theirPrefixes are prefixes of variables that belong to envoyproxy/ratelimit.
var theirPrefixes = []string{
	"REDIS_", "RUNTIME_", "CONFIG_GRPC_XDS_", "XDS_CLIENT_", "GRPC_SERVER_", "GRPC_CLIENT_", "GRPC_MAX_", "LIMIT_", "TRACING_", "PROMETHEUS_", "STATSD_", "USE_DOG_STATSD",
}

// valueKind says which values of a variable are valid. Values are parsed as in envoyproxy/ratelimit.
type valueKind struct {
	must  string // describes the valid values, for errors
	reads func(value string) bool
}

var (
	aBool   = valueKind{"true or false", func(s string) bool { return readable(strconv.ParseBool(s)) }}
	aPort   = valueKind{"a port's number, such as 8081", func(s string) bool { return isWhole(s, 1<<16-1) }}
	aTime   = valueKind{"a time with its unit, such as 24h or 30s", func(s string) bool { return readable(time.ParseDuration(s)) && s[0] != '-' }}
	aNumber = valueKind{"a number from 0 to 1, such as 0.1", func(s string) bool { return readable(strconv.ParseFloat(s, 64)) && !strings.EqualFold(s, "nan") }}
	aLevel  = valueKind{"debug, info, warn or error", func(s string) bool { return level(s) != "" }}
	aSource = valueKind{"FILE or GRPC_XDS_SOTW", func(s string) bool { return s == "FILE" || s == "GRPC_XDS_SOTW" }}
	aMap    = valueKind{"name:value,name:value", isMap} // errors don't show values, which may be tokens
)

func readable[T any](_ T, err error) bool { return err == nil }

func isWhole(s string, most int64) bool {
	n, err := strconv.ParseInt(s, 0, 64)
	return err == nil && n >= 0 && n <= most
}

func isMap(s string) bool {
	for pair := range strings.SplitSeq(s, ",") {
		if strings.Count(pair, ":") != 1 {
			return strings.TrimSpace(s) == ""
		}
	}
	return true
}

// level converts a level of logrus to one of Weir's levels. For unknown levels, it returns "".
func level(text string) string {
	weirs := map[string]string{"trace": "debug", "debug": "debug", "info": "info", "warn": "warn", "warning": "warn", "error": "error", "fatal": "error", "panic": "error"}
	return weirs[strings.ToLower(text)]
}

// theirs gives access to the environment in the same way as envoyproxy/ratelimit reads it.
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

// text returns a variable's value or, if it isn't set, its default. As in envoyproxy/ratelimit, a variable that is set
// to "" doesn't get the default.
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

// sameValue reports whether two values mean the same, even if they spell true or false differently.
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

// check returns one error that lists all invalid values.
func (e *theirs) check() error {
	var all []error
	for _, name := range slices.Sorted(maps.Keys(e.known)) {
		value, given := e.given[name]
		switch kind := e.known[name].kind; {
		case !given || kind.reads == nil || kind.reads(value):
		case serviceLink(name, value):
			all = append(all, fmt.Errorf("%s: must be %s: Kubernetes has set it for a Service of that name; set it yourself, or enableServiceLinks: false in the Pod", name, kind.must))
		case kind.must == aMap.must:
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
			typo := best != "" && max(len(name), len(best))-min(len(name), len(best)) <= 2
			if !typo && !hasPrefix(name, theirPrefixes) {
				continue
			}
			hint := cmp.Or(given(best != "", "did you mean "+best+"?"), "docs/guides/envoy-gateway.md lists those that do something")
			log.Warn("this variable isn't one of envoyproxy/ratelimit's, and does nothing", "variable", name, "hint", hint)
		}
	}
}

// links matches the names of variables that Kubernetes sets in containers for each Service.
var links = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)$`)

// serviceLink reports whether Kubernetes has set the variable, for a Service with a name such as redis.
func serviceLink(name, value string) bool {
	return links.MatchString(name) || strings.HasSuffix(name, "PORT") && strings.Contains(value, "://")
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
