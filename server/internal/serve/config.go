package serve

import (
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
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/observe/otlp"
)

// Config is a node's settings. The zero value of a field is its default.
type Config struct {
	// Rules is the rule file to follow; "" means that rules are kept in a rule store: in Redis, if
	// that is the store, or in Data.
	Rules string
	// SeedRules is the file that an empty rule store begins with, and that serves while the store can't be read and nothing is in
	// Data; "" means the starter rules for the former, and nothing for the latter.
	SeedRules string
	// Data is the folder for what must survive a restart: all versions of the rules when the store is Memory, else the last
	// good ones; "" keeps none of the latter.
	Data string
	// Store is where counters are: Memory, or the URL of a Redis. "" means Memory.
	Store string
	// StorePrefix begins the name of every key in Redis; "" means "weir".
	StorePrefix string
	// StoreTimeout is the longest that a check waits for Redis.
	StoreTimeout time.Duration
	// Emergency is a limit by address while Redis can't be reached; nil means none.
	Emergency *weir.Limit
	// Preflight is the limit of CORS preflights by address, at the gateway; nil means 50 a second.
	Preflight *weir.Limit
	// UsageHeader is [gateway.Options.UsageHeader].
	UsageHeader string
	// ConnectionsPerIP is how many connections an address may have open to the gateway; 0 means any number.
	ConnectionsPerIP int
	// IPv4Prefix and IPv6Prefix are how many bits of an address count where a rule doesn't say it; 0 means 32, and 64.
	IPv4Prefix, IPv6Prefix int
	// MaxWaiting is how many requests may wait in queues at the gateway.
	MaxWaiting int
	// MemoryCap of the in-process store, in bytes. A node with Redis has one, too, which counts
	// while Redis can't be reached.
	MemoryCap int64
	// MaxInFlight is how many requests are decided at a time, on each of HTTP, GRPC and Gateway. 0 means inflight.Default.
	MaxInFlight int
	// HTTP, GRPC, Admin, Metrics and Gateway are addresses to listen on; "" opens none. Metrics is for those who may scrape metrics
	// and do nothing else: Admin has them, too.
	HTTP, GRPC, Admin, Metrics, Gateway string
	// OnlyEnvoy has HTTP serve what envoyproxy/ratelimit does, and nothing beside it but health.
	OnlyEnvoy bool
	// GRPCReflection tells gRPC clients which services there are.
	GRPCReflection bool
	// EnvoyConfig is a folder of envoyproxy/ratelimit's configuration; "" means that the rules decide what Envoy asks.
	EnvoyConfig string
	// EnvoyXDS is an xDS server to have that configuration from instead; nil means none.
	EnvoyXDS *envoy.XDS
	Envoy    Envoy
	// HTTPToken is what callers of the check API and of the rate limit service must send; "" asks for none.
	HTTPToken string
	// AdminToken may do everything on the admin port, and AdminTokens is a file of more. Without either, the
	// port is for loopback.
	AdminToken, AdminTokens string
	// Pprof: the admin port gives profiles.
	Pprof bool
	// Upstream is where the gateway sends admitted requests.
	Upstream *url.URL
	// AllowUnsafePaths lets the gateway forward encoded slashes, backslashes and NUL.
	AllowUnsafePaths bool
	TrustedProxies   []netip.Prefix
	// TLSCert and TLSKey are PEM files, for every listener; TLSClientCA asks for client certificates on all of them,
	// and HTTPClientCA, GRPCClientCA and AdminClientCA are for one, in its place. So are GRPCTLSCert and GRPCTLSKey.
	TLSCert, TLSKey, TLSClientCA              string
	HTTPClientCA, GRPCClientCA, AdminClientCA string
	GRPCTLSCert, GRPCTLSKey                   string
	// GRPCClientSAN is a name that the certificates of gRPC's clients must be for: of DNS, an IP address or a URI. "" asks for none.
	GRPCClientSAN string
	// DrainNotice is how long a node that ends goes on accepting while /readyz says so: balancers look only now and then.
	DrainNotice time.Duration
	// DrainTimeout is how long requests in flight may take at the end.
	DrainTimeout time.Duration
	// Reload has the files that can change while a node runs read again, at each signal. Nil means never.
	Reload <-chan os.Signal
	// Audit gets every change and every refusal on the admin port, with its caller, whatever level
	// the log has. Nil means the log.
	Audit *slog.Logger

	// DecisionLog is where refusals are logged: decisionlog.Stderr, a file, or "" or "off" for nowhere. DecisionLogSample is
	// the share of admitted requests that is logged as well, from 0 to 1.
	DecisionLog       string
	DecisionLogSample float64
	// BudgetWebhook is the URL that is told of budgets that run low; "" tells the log alone. BudgetWebhookTokenFile holds the token
	// that is sent to it; "" means none.
	BudgetWebhook, BudgetWebhookTokenFile string
	// BudgetFullNames has those events name users and organizations in full. API keys stay masked.
	BudgetFullNames bool

	Region Region
	// RegionTimeout is how long a check of a global limit waits for another region. 0 means region.DefaultTimeout.
	RegionTimeout time.Duration

	Identity Identity
	Answers  httplimit.Answers
	OTLP     otlp.Config
}

// Identity is httplimit.Identity with files instead of what they hold.
type Identity struct {
	APIKey, User, Org, Tier httplimit.Source
	JWT                     *JWT
	KnownKeysFile           string
	TrustUnverified         bool
}

// JWT is jwt.Options with the names of files in place of keys.
type JWT struct {
	JWKSURL       string `yaml:"jwks_url"`
	SecretFile    string `yaml:"secret_file"`
	PublicKeyFile string `yaml:"public_key_file"`
	Issuer        string `yaml:"issuer"`
	Audience      string `yaml:"audience"`
}

// Validate reports impossible settings, in the words of the flags.
func (c *Config) Validate() error {
	for _, a := range []struct{ flag, addr string }{{"--http", c.HTTP}, {"--grpc", c.GRPC}, {"--admin", c.Admin}, {"--metrics", c.Metrics}, {"--gateway", c.Gateway}} {
		if err := checkAddress(a.addr); err != nil {
			return fmt.Errorf("%s: %w", a.flag, err)
		}
	}
	if (c.Gateway == "") != (c.Upstream == nil) {
		return fmt.Errorf("--gateway and --upstream go together: give the address to listen on and the URL to forward to")
	}
	if c.Upstream != nil && (c.Upstream.Scheme != "http" && c.Upstream.Scheme != "https" || c.Upstream.Host == "") {
		return fmt.Errorf("--upstream: must be a URL such as http://127.0.0.1:9000")
	}
	if err := c.validateTLS(); err != nil {
		return err
	}
	if c.MaxInFlight < 0 {
		return fmt.Errorf("--max-in-flight: must be at least 1, or 0 for %d for each core, got %d", inflight.PerCore, c.MaxInFlight)
	}
	if c.IPv4Prefix < 0 || c.IPv4Prefix > 32 {
		return fmt.Errorf("--ipv4-prefix: must be from 1 to 32, the bits of an address that count, got %d", c.IPv4Prefix)
	}
	if c.ConnectionsPerIP < 0 {
		return fmt.Errorf("--connections-per-ip: must be at least 1, or 0 for any number, got %d", c.ConnectionsPerIP)
	}
	if c.IPv6Prefix < 0 || c.IPv6Prefix > 128 {
		return fmt.Errorf("--ipv6-prefix: must be from 1 to 128, the bits of an address that count, got %d", c.IPv6Prefix)
	}
	if c.MaxWaiting < 0 {
		return fmt.Errorf("--max-waiting: must be at least 1, or 0 for %d, got %d", httplimit.DefaultMaxWaiting, c.MaxWaiting)
	}
	if c.DrainNotice < 0 {
		return fmt.Errorf("--drain-notice: must be at least 0s, got %s", c.DrainNotice)
	}
	if c.DrainTimeout < 0 {
		return fmt.Errorf("--drain-timeout: must be at least 0s, such as 30s, got %s", c.DrainTimeout)
	}
	if c.DecisionLogSample < 0 || c.DecisionLogSample > 1 || c.DecisionLogSample != c.DecisionLogSample {
		return fmt.Errorf("--decision-log-sample: must be from 0 to 1, such as 0.01 for one admitted request in a hundred, got %v", c.DecisionLogSample)
	}
	if c.DecisionLogSample > 0 && !c.logsDecisions() {
		return fmt.Errorf("--decision-log-sample: needs --decision-log, which says where to: stderr, or a file")
	}
	if err := c.validateBudget(); err != nil {
		return err
	}
	if err := c.validateStore(); err != nil {
		return err
	}
	if c.RegionTimeout < 0 {
		return fmt.Errorf("--region-timeout: must be more than 0, got %s", c.RegionTimeout)
	}
	if err := c.Region.validate(); err != nil {
		return err
	}
	if c.Admin != "" && !isLoopback(c.Admin) && c.AdminToken == "" && c.AdminTokens == "" {
		return fmt.Errorf("--admin: %q isn't a loopback address, so it needs --admin-token or --admin-tokens: anybody who reaches it could change the rules", c.Admin)
	}
	if err := c.Identity.validate(); err != nil {
		return err
	}
	if _, err := httplimit.NewAnswerer(c.Answers); err != nil {
		return err
	}
	if err := c.OTLP.Validate(); err != nil {
		return err
	}
	if err := c.Envoy.validate(); err != nil {
		return err
	}
	if c.EnvoyXDS != nil {
		if c.EnvoyConfig != "" {
			return fmt.Errorf("envoy.xds: doesn't go with --envoy-config: limits come from a folder or from an xDS server; leave out one of them")
		}
		if err := c.EnvoyXDS.Validate(); err != nil {
			return fmt.Errorf("envoy.xds: %w", err)
		}
	}
	if c.Rules != "" && c.SeedRules != "" {
		return fmt.Errorf("--rules and --seed-rules don't go together: with --rules the rules are those of the file, and there is nothing to seed")
	}
	return nil
}

func (c *Config) validateTLS() error {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return fmt.Errorf("--tls-cert and --tls-key go together")
	}
	if (c.GRPCTLSCert == "") != (c.GRPCTLSKey == "") {
		return fmt.Errorf("--grpc-tls-cert and --grpc-tls-key go together")
	}
	for _, ca := range []struct{ flag, file, cert string }{
		{"--tls-client-ca", c.TLSClientCA, c.TLSCert}, {"--http-client-ca", c.HTTPClientCA, c.TLSCert},
		{"--grpc-client-ca", c.GRPCClientCA, c.TLSCert + c.GRPCTLSCert}, {"--admin-client-ca", c.AdminClientCA, c.TLSCert},
	} {
		if ca.file != "" && ca.cert == "" {
			return fmt.Errorf("%s needs --tls-cert and --tls-key", ca.flag)
		}
	}
	if c.GRPCClientSAN != "" && !c.asksClients("grpc") {
		return fmt.Errorf("--grpc-client-san needs --grpc-client-ca: without it clients are asked for no certificate")
	}
	return nil
}

func (c *Config) logsDecisions() bool { return c.DecisionLog != "" && c.DecisionLog != "off" }

// checkAddress reports what can't be an address to listen on; "" opens none.
func checkAddress(addr string) error {
	if addr == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	switch {
	case err == nil:
		_, err = net.LookupPort("tcp", port)
		if err != nil {
			return fmt.Errorf("the port must be a number from 0 to 65535, got %q", addr)
		}
		return nil
	case strings.Trim(addr, "0123456789") == "":
		return fmt.Errorf("must be an address and a port, got %q: write 127.0.0.1:%s, or :%s for every address of this machine", addr, addr, addr)
	case strings.Contains(addr, "://"):
		_, host, _ := strings.Cut(addr, "://")
		return fmt.Errorf("must be an address and a port without a scheme, got %q: write %s", addr, strings.TrimRight(host, "/"))
	}
	return fmt.Errorf("must be an address and a port, such as 127.0.0.1:8080, got %q", addr)
}

// hostName is the host of an address to listen on, if that is a name.
func hostName(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}

func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
