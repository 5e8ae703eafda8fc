package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	stdlog "log"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/inflight"
	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/cmd/weir/hangup"
	"github.com/weirhq/weir/server/internal/observe/budget"
	"github.com/weirhq/weir/server/internal/serve"
)

// serving is a node that is to be started, with settings from flags or from other variables.
type serving struct {
	serve.Config
	logFormat string
	logLevel  slog.Level
	// hints prints commands to try after the node has started.
	hints bool
}

func serveCommand() *cobra.Command {
	v := &serving{hints: true}
	var config string
	cmd := command("serve", func(cmd *cobra.Command, _ []string) error {
		v.takeSignals()
		s, err := settings(cmd.Flags(), config, cmd.Flags().Changed("config"))
		if err != nil {
			return err
		}
		return v.run(cmd, s, func(log *slog.Logger) { warnOfVariables(log, cmd.Flags(), os.Environ()) })
	})
	cmd.Flags().StringVar(&config, "config", "weir.yaml", "settings file; need not exist unless named")
	v.register(cmd.Flags())
	cmd.SetUsageFunc(serveUsage)
	return cmd
}

// takeSignals makes a hangup reload files, as is usual for services, instead of ending the node.
func (v *serving) takeSignals() {
	hangup.Catch()
	v.Reload = hangup.Signals
	signal.Ignore(syscall.SIGPIPE) // the process that reads the log may end before the node
}

// run runs the node until it is told to end. s has the settings that have no flags. warn logs variables that have no
// effect.
func (v *serving) run(cmd *cobra.Command, s *settingsFile, warn func(*slog.Logger)) (err error) {
	c := &v.Config
	s.apply(c)
	if err := c.Validate(); err != nil {
		return s.blame(err)
	}
	log, err := newLogger(cmd.ErrOrStderr(), v.logFormat, v.logLevel)
	if err != nil {
		return s.blame(err)
	}
	defer stdlog.SetOutput(stdlog.Writer())
	defer stdlog.SetFlags(stdlog.Flags())
	stdlog.SetOutput(strayLog{log.Logger})
	stdlog.SetFlags(0)
	c.Audit = log.audit
	warn(log.Logger)
	err = serve.Run(cmd.Context(), *c, version, log.Logger, func(l serve.Listening) {
		announce(log.Logger, c, l)
		if v.hints && v.logFormat == "text" && l.HTTP != nil { // operators who chose JSON don't need hints
			fmt.Fprint(log.out, hints(os.Args[0], c, l))
		}
	})
	if err == nil {
		log.Info("drained")
	}
	switch read := log.out.close(); {
	case err == nil:
		return nil
	case !read:
		return &exit{exitRefused, nil} // the process that reads the log is stuck, so writing the error to stderr would block
	case errors.Is(err, fs.ErrNotExist): // the file is named by a flag
		return s.blame(missing(err))
	default:
		return &exit{exitRefused, s.blame(err)}
	}
}

func (v *serving) register(f *pflag.FlagSet) {
	v.MemoryCap = memstore.DefaultMemoryCap
	f.StringVar(&v.Rules, "rules", "", "rule file to follow: saving it puts its rules in force, and nothing else changes them")
	f.StringVar(&v.SeedRules, "seed-rules", "", "rule file that an empty rule store begins with (default: starter rules)")
	f.StringVar(&v.Data, "data", "weir-data", "folder of the last good rules; and of all their versions, when the store is memory")
	f.StringVar(&v.Store, "store", serve.Memory, "where counters are: memory, or a URL: redis://, rediss://, redis-sentinel://h1,h2/master, redis-cluster://h1,h2, unix://")
	f.StringVar(&v.StorePrefix, "store-prefix", "", "what the names of all keys in Redis begin with (default: weir)")
	f.DurationVar(&v.StoreTimeout, "store-timeout", redisstore.DefaultTimeout, "the longest that a check waits for Redis")
	f.StringVar(&v.Region.Name, "region", "", "name of the region that this node is in, such as eu; limits are each region's own, but for rules with scope: global")
	f.DurationVar(&v.RegionTimeout, "region-timeout", region.DefaultTimeout, "the longest that a check of a rule with scope: global waits for another region")
	f.BoolVar(&v.Pprof, "pprof", false, "serve profiles of this process at /debug/pprof/ on the admin port, to tokens that may operate")
	f.Var(parsed[*weir.Limit]{into: &v.Emergency, kind: "limit", parse: parseLimit}, "emergency-limit", "limit by address while Redis can't be reached, such as 10/s (default: none)")
	f.Var(parsed[int64]{&v.MemoryCap, "size", parseSize, func(bytes int64) string { return fmt.Sprint(bytes>>20, "MiB") }}, "memory-cap", "most memory for counters in this process, such as 256MiB; beyond it the process takes up to 64MiB, and 40KiB a connection")
	f.IntVar(&v.MaxInFlight, "max-in-flight", 0, fmt.Sprintf("most requests to decide at the same time, on each of --http, --grpc and --gateway; others wait up to 1 s, then get 503 (default: %d for each core)", inflight.PerCore))
	f.StringVar(&v.HTTP, "http", "127.0.0.1:8080", "address of the check API, /healthz and /readyz")
	f.StringVar(&v.GRPC, "grpc", "127.0.0.1:8081", "address of Envoy's rate limit service v3 and of ext_authz, over gRPC, with gRPC health; \"\" opens none")
	f.BoolVar(&v.GRPCReflection, "grpc-reflection", false, "tell gRPC clients, such as grpcurl, which services there are")
	f.StringVar(&v.EnvoyConfig, "envoy-config", "", "folder of envoyproxy/ratelimit's configuration files, served as they are (default: the rules decide)")
	f.StringVar(&v.HTTPToken, "http-token", "", "token that callers of the check API and of the services at --grpc must send; better in WEIR_HTTP_TOKEN than in a command line")
	f.StringVar(&v.Admin, "admin", "127.0.0.1:8082", "address of the admin port: rules and their versions, lists, counters, nodes")
	f.StringVar(&v.Metrics, "metrics", "", "address at which anybody may scrape /metrics, and do nothing else (default: on the admin port alone)")
	f.StringVar(&v.AdminToken, "admin-token", "", "token that may do everything on the admin port; better in WEIR_ADMIN_TOKEN than in a command line")
	f.StringVar(&v.AdminTokens, "admin-tokens", "", "file of tokens for the admin port, a line each: name, role (read or operate), SHA-256")
	f.StringVar(&v.Gateway, "gateway", "", "address of the gateway; needs --upstream")
	f.Var(parsed[*url.URL]{into: &v.Upstream, kind: "url", parse: parseUpstream}, "upstream", "URL that the gateway forwards to")
	f.BoolVar(&v.AllowUnsafePaths, "allow-unsafe-paths", false, "let the gateway forward paths that servers read in different ways, such as encoded slashes, backslashes and NUL")
	f.Var(parsed[*weir.Limit]{into: &v.Preflight, kind: "limit", parse: parseLimit}, "preflight-limit", "limit by address of CORS preflights at the gateway, from which rules leave them out (default: 50/second)")
	f.StringVar(&v.UsageHeader, "usage-header", "", "header in which the upstream says what a request took, for rules that count amounts: 812, which is tokens, or tokens=812, usd=0.012 (default: the answers of AI models are read for it)")
	f.IntVar(&v.ConnectionsPerIP, "connections-per-ip", 0, "most connections that an address may have open to the gateway, but for --trusted-proxies; more are closed (default: any number)")
	f.IntVar(&v.IPv4Prefix, "ipv4-prefix", 32, "bits of an IPv4 address that count, where a rule has no ipv4_prefix: all clients of a network share a counter")
	f.IntVar(&v.IPv6Prefix, "ipv6-prefix", 64, "bits of an IPv6 address that count, where a rule has no ipv6_prefix")
	f.IntVar(&v.MaxWaiting, "max-waiting", httplimit.DefaultMaxWaiting, "requests that may wait in queues at the gateway; a rule may have half of them")
	f.Var(parsed[[]netip.Prefix]{into: &v.TrustedProxies, kind: "CIDRs", parse: v.moreProxies}, "trusted-proxies", "CIDRs of proxies whose X-Forwarded-For counts, and of gateways that may ask at /check/… beside those on loopback")
	f.StringVar(&v.TLSCert, "tls-cert", "", "certificate in PEM, for every listener")
	f.StringVar(&v.TLSKey, "tls-key", "", "its key in PEM")
	f.StringVar(&v.TLSClientCA, "tls-client-ca", "", "CA in PEM; asks clients for certificates, on every listener")
	f.StringVar(&v.GRPCTLSCert, "grpc-tls-cert", "", "certificate in PEM for the rate limit service alone (default: --tls-cert)")
	f.StringVar(&v.GRPCTLSKey, "grpc-tls-key", "", "its key in PEM")
	f.StringVar(&v.HTTPClientCA, "http-client-ca", "", "CA in PEM for clients of the check API alone (default: --tls-client-ca)")
	f.StringVar(&v.GRPCClientCA, "grpc-client-ca", "", "CA in PEM for clients of the rate limit service alone (default: --tls-client-ca)")
	f.StringVar(&v.GRPCClientSAN, "grpc-client-san", "", "name that certificates of the rate limit service's clients must be for: of DNS, an IP address or a URI (default: any)")
	f.StringVar(&v.AdminClientCA, "admin-client-ca", "", "CA in PEM for clients of the admin port alone (default: --tls-client-ca)")
	f.DurationVar(&v.DrainNotice, "drain-notice", serve.DefaultDrainNotice, "how long a node that ends goes on accepting while /readyz says 503: longer than your balancer takes to notice")
	f.DurationVar(&v.DrainTimeout, "drain-timeout", 30*time.Second, "how long requests in flight may take at the end")
	f.StringVar(&v.DecisionLog, "decision-log", "off", "where to log refusals, a line of JSON each: stderr, a file, or off; SIGHUP opens the file again")
	f.Float64Var(&v.DecisionLogSample, "decision-log-sample", 0, "share of admitted requests to log as well, such as 0.01 for one in a hundred")
	f.StringVar(&v.BudgetWebhook, "budget-webhook", "", "URL that is sent JSON when 50, 80 and 100 % of a budget are used, as the log is told: of a limit on an amount or over a day, a week or a month of the calendar, in fixed windows; better in WEIR_BUDGET_WEBHOOK than in a command line, if it holds a secret (default: the log alone)")
	f.BoolVar(&v.BudgetFullNames, "budget-full-names", false, "name users and organizations in full where budgets run low, in the log and to the webhook; API keys stay masked")
	f.StringVar(&v.BudgetWebhookTokenFile, "budget-webhook-token-file", "", "file with the token that is sent to it, as a bearer's (default: none)")
	f.StringVar(&v.logFormat, "log-format", "text", "text or json")
	f.Var(parsed[slog.Level]{&v.logLevel, "level", parseLevel, func(l slog.Level) string { return strings.ToLower(l.String()) }}, "log-level", "debug, info, warn or error")
}

func announce(log *slog.Logger, c *serve.Config, l serve.Listening) {
	args := []any{"version", version, "rules", cmp.Or(c.Rules, l.Rules), "store", l.Store}
	add := func(name, value string) {
		if value != "" {
			args = append(args, name, value)
		}
	}
	const everywhere = "0.0.0.0"
	add("http", urlOf(c, l.HTTP, everywhere))
	if l.GRPC != nil {
		add("grpc", l.GRPC.String())
	}
	add("admin", urlOf(c, l.Admin, everywhere))
	if l.Metrics != nil {
		add("metrics", urlOf(c, l.Metrics, everywhere)+"/metrics")
	}
	add("gateway", urlOf(c, l.Gateway, everywhere))
	if c.Upstream != nil {
		add("upstream", c.Upstream.Redacted())
	}
	add("region", c.Region.Name)
	if l.Region != nil {
		add("region_listen", l.Region.String())
	}
	if c.DecisionLog != "off" {
		add("decision_log", c.DecisionLog)
	}
	if c.BudgetWebhook != "" {
		add("budget_webhook", budget.Place(c.BudgetWebhook))
	}
	add("otlp", c.OTLP.Sending())
	log.Info("serving", args...)
}

// urlOf returns the URL of a port, or "" if the port isn't open. If the port is open on every address, the URL has the
// host everywhere.
func urlOf(c *serve.Config, addr net.Addr, everywhere string) string {
	if addr == nil {
		return ""
	}
	text, scheme := addr.String(), "http://"
	if a, err := netip.ParseAddrPort(text); err == nil && a.Addr().IsUnspecified() {
		text = fmt.Sprint(everywhere, ":", a.Port())
	}
	if c.TLSCert != "" {
		scheme = "https://"
	}
	return scheme + text
}

// missing adds what to do to an error about a missing file.
func missing(err error) error {
	var p *fs.PathError
	switch {
	case !errors.As(err, &p) || !errors.Is(err, fs.ErrNotExist):
		return err
	case strings.HasPrefix(err.Error(), "--decision-log: "):
		return fmt.Errorf("%w: its folder must be there: mkdir -p %s", err, filepath.Dir(p.Path))
	case filepath.IsAbs(p.Path):
		return fmt.Errorf("%w: is the path right?", err)
	}
	return fmt.Errorf("%w: is the path right? It begins in the folder that weir is started in", err)
}

// hints returns the text with commands to try on a node that has started.
func hints(weir string, c *serve.Config, l serve.Listening) string {
	var b strings.Builder
	b.WriteString("\nTry, in another terminal:\n")
	http, token := urlOf(c, l.HTTP, "127.0.0.1"), given(c.HTTPToken != "", ` -H "Authorization: Bearer $WEIR_HTTP_TOKEN"`)
	fmt.Fprintf(&b, "  curl -i %s/v1/check%s -d '{\"key\": \"sk_123\", \"method\": \"GET\", \"path\": \"/v1/orders\", \"ip\": \"203.0.113.7\"}'\n", http, token)
	fmt.Fprintf(&b, "  %s check --http %s sk_123 --path /v1/orders --ip 203.0.113.7\n", weir, http)
	if c.EnvoyConfig != "" || c.Envoy.XDS != nil { // this node decides only Envoy's requests
		fmt.Fprintf(&b, "  curl -i %s/json%s -d '{\"domain\": \"edge\", \"descriptors\": [{\"entries\": [{\"key\": \"api_key\", \"value\": \"a\"}]}]}'    # with a domain and key of your configuration\n", http, token)
	}
	if l.Admin != nil && c.Rules == "" {
		admin := urlOf(c, l.Admin, "127.0.0.1")
		fmt.Fprintf(&b, "  %s rules show --admin %s > rules.yaml    # change it, then: %s rules apply rules.yaml --admin %s\n", weir, admin, weir, admin)
	}
	if l.Gateway != nil {
		fmt.Fprintf(&b, "  curl -i %s/\n", urlOf(c, l.Gateway, "127.0.0.1"))
	}
	b.WriteString("Ctrl-C drains and stops.\n\n")
	return b.String()
}

func isTerminal(stream any) bool {
	f, isFile := stream.(interface{ Stat() (fs.FileInfo, error) })
	if !isFile {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// parseLimit parses a limit; "" returns nil.
func parseLimit(text string) (*weir.Limit, error) {
	if text == "" {
		return nil, nil
	}
	l, err := weir.ParseLimit(text)
	if err == nil {
		err = l.Validate()
	}
	return &l, err
}

func parseUpstream(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return nil, nil
	case err != nil:
		return nil, errors.New("must be a URL such as http://127.0.0.1:9000") // don't quote the URL, which may contain a password
	}
	return u, nil
}

// moreProxies adds addresses and CIDRs, separated by commas, to the trusted proxies. It returns the result.
func (v *serving) moreProxies(text string) ([]netip.Prefix, error) {
	all := v.TrustedProxies
	if text == "" {
		return all, nil
	}
	for s := range strings.SplitSeq(text, ",") {
		s = strings.TrimSpace(s)
		p, err := netip.ParsePrefix(s)
		if ip, bad := netip.ParseAddr(s); bad == nil {
			p, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("must be CIDRs such as 10.0.0.0/8, got %q", s)
		}
		all = append(all, p)
	}
	return all, nil
}

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1}}

func parseSize(text string) (int64, error) {
	for _, u := range sizeUnits {
		if number, ok := strings.CutSuffix(text, u.suffix); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
			if err == nil && n >= 1 && n <= (1<<50)/u.bytes {
				return n * u.bytes, nil
			}
			break
		}
	}
	hint := ""
	switch {
	case isNumber(text) && len(text) > 6:
		hint = ": did you mean " + text + "B?"
	case isNumber(text):
		hint = ": did you mean " + text + "MiB?"
	}
	return 0, fmt.Errorf("must be a size with its unit, such as 256MiB or 1GiB, got %q%s", text, hint)
}
