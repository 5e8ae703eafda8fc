package serve

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/inflight"
	"github.com/weirhq/weir/server/internal/observe/otlp"
)

// Config has a node's settings. Most of them are flags of weir serve, whose help explains them. The zero value of each
// field is its default. If an address or a URL is "", that port or connection is off.
type Config struct {
	Rules     string // path of the rule file to follow; if "", the rules are in a rule store: in Redis if Store is a Redis, otherwise in Data
	SeedRules string // path of the rule file whose rules initialize an empty rule store; "" means the starter rules
	Data      string // folder with the versions of the rules. With Redis, it has a copy of the last good rules instead, and "" means that there is no copy

	Store        string // Memory or "", for the in-process store, or the URL of a Redis
	StorePrefix  string // "" means "weir"
	StoreTimeout time.Duration
	MemoryCap    int64       // bytes
	Emergency    *weir.Limit // the emergency limit; nil means none
	MaxInFlight  int         // how many requests are decided at a time; 0 means inflight.Default

	HTTP, GRPC, Admin, Metrics, Gateway string // addresses to listen on
	TrustedProxies                      []netip.Prefix
	IPv4Prefix, IPv6Prefix              int // prefix lengths of the networks by which IP addresses are counted; 0 means 32 and 64

	Upstream         *url.URL // where the gateway forwards admitted requests
	AllowUnsafePaths bool
	Preflight        *weir.Limit // limit for preflight requests; nil means 50 per second
	UsageHeader      string
	ConnectionsPerIP int // maximum number of open connections from an IP address; 0 means no maximum
	MaxWaiting       int

	OnlyEnvoy      bool // HTTP serves only the endpoints of envoyproxy/ratelimit and the health checks
	GRPCReflection bool
	EnvoyConfig    string // folder with configuration in envoyproxy/ratelimit's format; if "", the rules decide Envoy's requests
	Envoy          Envoy

	HTTPToken               string // token that callers of HTTP must send; "" means that they need none
	AdminToken, AdminTokens string // an admin token, and a file with more of them; if both are "", Admin must be a loopback address
	Pprof                   bool

	// TLSCert, TLSKey and TLSClientCA are PEM files for all listeners. The fields below them override them for single
	// listeners.
	TLSCert, TLSKey, TLSClientCA              string
	HTTPClientCA, GRPCClientCA, AdminClientCA string
	GRPCTLSCert, GRPCTLSKey                   string
	GRPCClientSAN                             string // a DNS name, an IP address or a URI that clients' certificates must be valid for; "" accepts any

	DrainNotice, DrainTimeout time.Duration
	Reload                    <-chan os.Signal // for each signal that it receives, the node reads its files again; nil means never

	// Audit logs every change and every refusal on the admin port, whatever the log level is. If nil, the node's log is
	// used.
	Audit                                 *slog.Logger
	DecisionLog                           string // decisionlog.Stderr, or the path of a file; "" and "off" mean that there is no decision log
	DecisionLogSample                     float64
	BudgetWebhook, BudgetWebhookTokenFile string
	BudgetFullNames                       bool

	Region        Region
	RegionTimeout time.Duration // 0 means region.DefaultTimeout
	Identity      Identity
	Answers       httplimit.Answers
	OTLP          otlp.Config
}

// Identity is [httplimit.Identity] as it is written in weir.yaml, where it names files and doesn't have their contents.
type Identity struct {
	APIKey, User, Org, Tier httplimit.Source
	JWT                     *JWT
	KnownKeysFile           string `yaml:"known_keys"`
	TrustUnverified         bool
}

// JWT is [jwt.Options] as it is written in weir.yaml, where it names files and doesn't have the keys.
type JWT struct {
	JWKSURL       string `yaml:"jwks_url"`
	SecretFile    string `yaml:"secret_file"`
	PublicKeyFile string `yaml:"public_key_file"`
	Issuer        string `yaml:"issuer"`
	Audience      string `yaml:"audience"`
}

// when returns an error with the formatted text if wrong is true, and nil otherwise.
func when(wrong bool, format string, args ...any) error {
	if !wrong {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// in adds the name of a setting to the beginning of an error about it.
func in(setting string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", setting, err)
}

// given returns text if met is true, and otherwise "".
func given(met bool, text string) string {
	if met {
		return text
	}
	return ""
}

// Validate returns an error about the first invalid setting. The error names the setting's flag.
func (c *Config) Validate() error {
	_, badAnswers := httplimit.NewAnswerer(c.Answers)
	return cmp.Or(
		in("--http", checkAddress(c.HTTP)), in("--grpc", checkAddress(c.GRPC)), in("--admin", checkAddress(c.Admin)),
		in("--metrics", checkAddress(c.Metrics)), in("--gateway", checkAddress(c.Gateway)),
		when((c.Gateway == "") != (c.Upstream == nil), "--gateway and --upstream go together: give the address to listen on and the URL to forward to"),
		when(c.Upstream != nil && (c.Upstream.Scheme != "http" && c.Upstream.Scheme != "https" || c.Upstream.Host == ""), "--upstream: must be a URL such as http://127.0.0.1:9000"),
		when((c.TLSCert == "") != (c.TLSKey == ""), "--tls-cert and --tls-key go together"),
		when((c.GRPCTLSCert == "") != (c.GRPCTLSKey == ""), "--grpc-tls-cert and --grpc-tls-key go together"),
		when(c.TLSClientCA != "" && c.TLSCert == "", "--tls-client-ca needs --tls-cert and --tls-key"),
		when(c.HTTPClientCA != "" && c.TLSCert == "", "--http-client-ca needs --tls-cert and --tls-key"),
		when(c.GRPCClientCA != "" && c.TLSCert+c.GRPCTLSCert == "", "--grpc-client-ca needs --tls-cert and --tls-key"),
		when(c.AdminClientCA != "" && c.TLSCert == "", "--admin-client-ca needs --tls-cert and --tls-key"),
		when(c.GRPCClientSAN != "" && !c.asksClients("grpc"), "--grpc-client-san needs --grpc-client-ca: without it clients are asked for no certificate"),
		when(c.MaxInFlight < 0, "--max-in-flight: must be at least 1, or 0 for %d for each core, got %d", inflight.PerCore, c.MaxInFlight),
		when(c.IPv4Prefix < 0 || c.IPv4Prefix > 32, "--ipv4-prefix: must be from 1 to 32, the bits of an address that count, got %d", c.IPv4Prefix),
		when(c.ConnectionsPerIP < 0, "--connections-per-ip: must be at least 1, or 0 for any number, got %d", c.ConnectionsPerIP),
		when(c.IPv6Prefix < 0 || c.IPv6Prefix > 128, "--ipv6-prefix: must be from 1 to 128, the bits of an address that count, got %d", c.IPv6Prefix),
		when(c.MaxWaiting < 0, "--max-waiting: must be at least 1, or 0 for %d, got %d", httplimit.DefaultMaxWaiting, c.MaxWaiting),
		when(c.DrainNotice < 0, "--drain-notice: must be at least 0s, got %s", c.DrainNotice),
		when(c.DrainTimeout < 0, "--drain-timeout: must be at least 0s, such as 30s, got %s", c.DrainTimeout),
		when(!(c.DecisionLogSample >= 0 && c.DecisionLogSample <= 1), "--decision-log-sample: must be from 0 to 1, such as 0.01 for one admitted request in a hundred, got %v", c.DecisionLogSample),
		when(c.DecisionLogSample > 0 && !c.logsDecisions(), "--decision-log-sample: needs --decision-log, which says where to: stderr, or a file"),
		c.validateBudget(),
		c.validateStore(),
		when(c.RegionTimeout < 0, "--region-timeout: must be more than 0, got %s", c.RegionTimeout),
		c.Region.validate(),
		when(c.Admin != "" && !isLoopback(c.Admin) && c.AdminToken == "" && c.AdminTokens == "", "--admin: %q isn't a loopback address, so it needs --admin-token or --admin-tokens: anybody who reaches it could change the rules", c.Admin),
		c.Identity.validate(), badAnswers, c.OTLP.Validate(), c.Envoy.validate(),
		when(c.Envoy.XDS != nil && c.EnvoyConfig != "", "envoy.xds: doesn't go with --envoy-config: limits come from a folder or from an xDS server; leave out one of them"),
		when(c.Rules != "" && c.SeedRules != "", "--rules and --seed-rules don't go together: with --rules the rules are those of the file, and there is nothing to seed"),
	)
}

func (c *Config) logsDecisions() bool { return c.DecisionLog != "" && c.DecisionLog != "off" }

// checkAddress returns an error if an address to listen on is invalid. "" is valid, and means that the port stays
// closed.
func checkAddress(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	switch {
	case addr == "":
		return nil
	case err == nil:
		_, err = net.LookupPort("tcp", port)
		return when(err != nil, "the port must be a number from 0 to 65535, got %q", addr)
	case strings.Trim(addr, "0123456789") == "":
		return fmt.Errorf("must be an address and a port, got %q: write 127.0.0.1:%s, or :%s for every address of this machine", addr, addr, addr)
	case strings.Contains(addr, "://"):
		_, host, _ := strings.Cut(addr, "://")
		return fmt.Errorf("must be an address and a port without a scheme, got %q: write %s", addr, strings.TrimRight(host, "/"))
	}
	return fmt.Errorf("must be an address and a port, such as 127.0.0.1:8080, got %q", addr)
}

// hostName returns the host of an address to listen on, if it is a name. If it is an IP address, it returns "".
func hostName(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}

func isLoopback(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	ip, _ := netip.ParseAddr(host)
	return host == "localhost" || ip.IsLoopback()
}
