package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/lease"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/load"
	"github.com/weirhq/weir/server/internal/serve"
)

func benchCommand() *cobra.Command {
	var b benchFlags
	cmd := command("bench", func(cmd *cobra.Command, args []string) error {
		if err := b.complete(cmd.Flags(), args); err != nil {
			return err
		}
		return b.run(cmd)
	})
	b.register(cmd.Flags())
	b.asJSON.register(cmd)
	return cmd
}

// benchFlags are the flags of weir bench. complete fills in the fields that depend on several flags.
type benchFlags struct {
	plan         load.Plan
	check        load.Check
	goal         load.Goal
	rules, store string
	limit        string
	nodes        int
	leases       bool
	header       []string
	port         nodePort // its address is unused: the address is an argument
	keyHeader    string
	timeout      time.Duration
	quiet        bool
	asJSON       jsonFlag

	url  *url.URL // nil means that limiters in this process are measured
	node bool     // the URL is the check API of a node
	sent http.Header
}

func (b *benchFlags) register(f *pflag.FlagSet) {
	f.DurationVar(&b.plan.Duration, "duration", 10*time.Second, "how long to measure")
	f.DurationVar(&b.plan.Warmup, "warmup", time.Second, "how long to make the same load before measuring")
	f.IntVar(&b.plan.Workers, "concurrency", 0, "most requests in flight (default: twice the cores, or 64 for a URL or a Redis)")
	f.Var(parsed[float64]{&b.plan.Rate, "rate", parseRate, showRate}, "rate", "requests that are due, such as 500/s: an open loop; 0 is a closed loop")
	f.BoolVar(&b.plan.Poisson, "poisson", false, "with --rate: due at random instead of evenly spaced")
	f.IntVar(&b.plan.Keys, "keys", 10_000, "how many clients there are")
	f.StringVar((*string)(&b.plan.Distribution), "distribution", string(load.Uniform), "how often each of them asks: uniform, zipf or hot (one asks)")
	f.Float64Var(&b.plan.Exponent, "zipf", 1.1, "exponent of --distribution zipf")
	f.StringVar(&b.check.KeyPrefix, "key-prefix", "bench_", "what keys begin with; a number follows")
	f.StringVar(&b.check.Method, "method", http.MethodGet, "method of the requests")
	f.StringVar(&b.check.Path, "path", "/", "path of the requests; {n} stands for the client's number")
	f.Int64Var(&b.check.Cost, "cost", 1, "tokens that a check takes; 0 peeks")
	f.StringVar(&b.rules, "rules", "", "rule file, without a URL (default: a rule that refuses nobody)")
	f.StringVar(&b.store, "store", serve.Memory, "without a URL: where counters are, memory or the URL of a Redis")
	f.StringVar(&b.limit, "limit", "", "without a URL: limit of each client, such as 100/minute, instead of --rules")
	f.IntVar(&b.nodes, "nodes", 1, "with a Redis as --store: how many limiters share it")
	f.BoolVar(&b.leases, "leases", true, "with a Redis as --store: decide hot keys from tokens borrowed of it")
	f.StringVar(&b.keyHeader, "key-header", "X-API-Key", "header that carries the key to an endpoint; empty sends none")
	f.StringArrayVar(&b.header, "header", nil, "another header, 'NAME: VALUE'; repeatable")
	b.port.registerAccess(f, "http", "check API of a node")
	f.DurationVar(&b.timeout, "timeout", 10*time.Second, "how long a request to a URL may take")
	f.DurationVar(&b.goal.MaxP99, "max-p99", 0, "exit 1 if the 99th percentile of latency is higher")
	f.Var(parsed[float64]{&b.goal.MinRate, "rate", parseRate, showRate}, "min-rate", "exit 1 if there are fewer answers, such as 1000/s")
	f.BoolVar(&b.quiet, "quiet", false, "show no progress")
}

// complete validates the flags, and computes the settings that depend on several of them.
func (b *benchFlags) complete(f *pflag.FlagSet, args []string) error {
	if len(args) == 1 {
		if err := b.resolve(args[0], f.Changed("method"), f.Changed("path")); err != nil {
			return err
		}
	}
	if !f.Changed("concurrency") {
		b.plan.Workers = 2 * runtime.GOMAXPROCS(0)
		if b.url != nil || b.store != serve.Memory {
			b.plan.Workers = 64
		}
	}
	if b.url == nil {
		b.plan.Sample = load.InProcessSample
	}
	for _, c := range []struct {
		flags []string
		fits  bool
		why   string
	}{
		{[]string{"header", "key-header", "timeout"}, b.url != nil, "needs a URL"},
		{[]string{"rules", "store", "limit", "nodes", "leases"}, b.url == nil, "is for checks in this process: a node has its own"},
		{[]string{"nodes", "leases"}, b.overRedis(), "needs a Redis as --store, such as redis://127.0.0.1:6379"},
		{[]string{"cost"}, b.url == nil || b.node, "is for checks, and this URL is of another endpoint"},
		{[]string{b.port.tokenFlag()}, b.node, "needs the URL of a node"},
		{[]string{"key-header"}, !b.node, "is for endpoints: a check has its key in the body"},
		{[]string{"zipf"}, b.plan.Distribution == load.Zipf, "needs --distribution zipf"},
	} {
		if i := slices.IndexFunc(c.flags, f.Changed); i >= 0 && !c.fits {
			return fmt.Errorf("--%s: %s", c.flags[i], c.why)
		}
	}
	switch {
	case b.limit != "" && b.rules != "":
		return errors.New("--limit: is a rule of its own: give it or --rules")
	case b.nodes < 1 || b.nodes > maxBenchNodes:
		return fmt.Errorf("--nodes: must be from 1 to %d, got %d", maxBenchNodes, b.nodes)
	case b.check.Cost < 0 || b.check.Cost > counter.MaxTokens:
		return fmt.Errorf("--cost: must be from 0 to %d, got %d", int64(counter.MaxTokens), b.check.Cost)
	case b.timeout <= 0:
		return fmt.Errorf("--timeout: must be more than 0, got %s", b.timeout)
	case b.goal.MaxP99 < 0:
		return fmt.Errorf("--max-p99: must not be negative, got %s", b.goal.MaxP99)
	case len(b.check.KeyPrefix) > 256 || strings.ContainsFunc(b.check.KeyPrefix, unicode.IsControl):
		return errors.New("--key-prefix: must be at most 256 bytes, without control characters")
	}
	if err := b.plan.Validate(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	b.sent = http.Header{}
	for _, h := range b.header {
		name, value, ok := strings.Cut(h, ":")
		if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(h, "\r\n") {
			return fmt.Errorf("--header: must be 'NAME: VALUE', got %q", h)
		}
		b.sent.Add(name, strings.TrimSpace(value))
	}
	if !b.node || b.sent.Get("Authorization") != "" {
		return nil
	}
	token, err := b.port.authorization() // only a node gets its token, and other endpoints don't
	maps.Copy(b.sent, token)
	return err
}

const checkPath = "/v1/check"

// resolve determines where to send requests, and whether they are checks of a node.
func (b *benchFlags) resolve(arg string, method, path bool) error {
	text := b.port.withScheme(arg)
	u, err := url.Parse(text)
	switch {
	case strings.HasPrefix(text, "redis") || strings.HasPrefix(text, "unix:"): // don't show the URL, because it may contain a password
		return errors.New("URL: must be that of a node or an endpoint: give a Redis as --store")
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("URL: must be such as http://127.0.0.1:8080, got %q", arg)
	case u.User != nil:
		return errors.New("URL: must not hold a password: use --header 'Authorization: …'")
	}
	u.Fragment = ""
	bare := (u.Path == "" || u.Path == "/") && u.RawQuery == ""
	switch {
	case u.Path == checkPath:
		b.node = true
	case bare && !method && !path:
		b.node, u.Path = true, checkPath
	case path && !bare:
		return errors.New("--path: the URL has a path already: give one of them")
	case path:
		if u, err = url.Parse(u.Scheme + "://" + u.Host + b.check.Path); err != nil || !strings.HasPrefix(b.check.Path, "/") {
			return fmt.Errorf("--path: must be a path such as /v1/orders, got %q", b.check.Path)
		}
	}
	b.url = u
	return nil
}

func (b *benchFlags) run(cmd *cobra.Command) error {
	target, done, err := b.open(cmd.Context())
	if err != nil {
		return err
	}
	defer done()
	meter := &load.Meter{W: cmd.ErrOrStderr(), Terminal: isTerminal(cmd.ErrOrStderr())}
	watch := meter.Show
	if b.quiet {
		watch = nil
	}
	report, err := load.Run(cmd.Context(), b.plan, target, watch)
	meter.Done()
	if err != nil {
		return err
	}
	if b.overRedis() {
		report.Nodes = b.nodes
	}
	if report.Interrupted && report.Checks == 0 {
		return &exit{exitUnavailable, errors.New("stopped before anything was measured")}
	}
	report.Judge(b.goal)
	if b.asJSON {
		err = printJSON(cmd, report)
	} else {
		err = report.WriteText(cmd.OutOrStdout())
	}
	switch {
	case err != nil:
		return rejected(err)
	case report.Checks == 0 && len(report.Faults) > 0:
		return &exit{exitUnavailable, fmt.Errorf("nothing answered at %s: %s", b.url.Redacted(), report.Faults[0].Text)}
	case report.Checks == 0:
		return &exit{exitUnavailable, errors.New("nothing was measured: no request began in that time; try a longer --duration")}
	case report.Verdict != nil && !report.Verdict.OK:
		return &exit{exitRefused, errors.New(strings.Join(report.Verdict.Missed, "; "))}
	}
	return nil
}

func (b *benchFlags) open(ctx context.Context) (load.Target, func(), error) {
	if b.url == nil {
		return b.inProcess(ctx)
	}
	certificates, err := b.port.config()
	if err != nil {
		return nil, nil, err
	}
	t, err := load.NewHTTP(load.HTTPOptions{
		TLS: certificates, URL: b.url, Node: b.node, Check: b.check, Keys: b.plan.Keys, KeyHeader: b.keyHeader,
		Header: b.sent, Timeout: b.timeout, Connections: b.plan.Workers,
	})
	if err != nil {
		return nil, nil, err
	}
	// Send one request first, so that a wrong address causes one error, and not a table of errors.
	a, body := t.Probe(ctx)
	switch {
	case a.Outcome == load.Unfinished:
		err = &exit{exitUnavailable, errors.New("stopped before anything was measured")}
	case a.Outcome == load.Failed || a.Outcome == load.TimedOut:
		err = fmt.Errorf("nothing answers at %s: %w", b.url.Redacted(), a.Err)
		if why, failed := b.port.reason(b.url.String(), "the URL", a.Err); why != "" {
			err = fmt.Errorf("%s: %s: %w", b.url.Redacted(), why, failed)
		}
		err = &exit{exitUnavailable, err}
	case wantsTLS(int(a.Status), body):
		err = &exit{exitUnavailable, errWantsTLS("the URL")}
	case b.node && a.Outcome == load.Other:
		err = &exit{noDecision(int(a.Status)), unexpected(b.url.Redacted(), int(a.Status), body)}
	}
	if err != nil {
		t.Close()
		return nil, nil, err
	}
	return t, t.Close, nil
}

// parseRate parses a rate per second, such as 500, 500/s or 30000/minute.
func parseRate(text string) (float64, error) {
	if x, err := strconv.ParseFloat(strings.TrimSuffix(text, "/s"), 64); err == nil && x >= 0 && x <= math.MaxInt64 {
		return x, nil
	}
	l, err := weir.ParseLimit(text)
	if err != nil || l.Count < 0 || l.Window <= 0 {
		return 0, fmt.Errorf("must be a rate such as 500/s or 30000/minute, got %q", text)
	}
	return float64(l.Count) / l.Window.Seconds(), nil
}

func showRate(rate float64) string { return strconv.FormatFloat(rate, 'g', -1, 64) }

// maxBenchNodes limits the number of nodes, so that a typo doesn't use up all connections.
const maxBenchNodes = 100

func (b *benchFlags) overRedis() bool { return b.url == nil && b.store != serve.Memory }

// inProcess creates limiters in this process, and returns a function that closes them.
func (b *benchFlags) inProcess(ctx context.Context) (load.Target, func(), error) {
	set, rules, err := b.ruleSet()
	if err != nil {
		return nil, nil, badRules(err)
	}
	if !b.overRedis() {
		limiter := weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{})
		return load.NewInProcess([]*weir.Limiter{limiter}, "in process, "+rules, b.plan.Keys, b.check), func() {}, nil
	}
	limiters, name, done, err := b.shareRedis(ctx, set)
	if err != nil {
		done()
		return nil, nil, err
	}
	return load.NewInProcess(limiters, "in process, "+name+", "+rules, b.plan.Keys, b.check), done, nil
}

func (b *benchFlags) ruleSet() (*weir.RuleSet, string, error) {
	switch {
	case b.rules != "":
		file, err := rulefile.Load(b.rules)
		if err != nil {
			return nil, "", err
		}
		return file.Set, "rules of " + b.rules, nil
	case b.limit != "":
		l, err := parseLimit(b.limit)
		if err != nil {
			return nil, "", fmt.Errorf("--limit: %w", err)
		}
		set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "bench", Limits: []weir.Limit{*l}}}})
		return set, b.limit + " for each client", err
	}
	set, err := load.GenerousRules()
	return set, "a rule that refuses nobody", err
}

// shareRedis creates limiters that share a Redis, and returns them with a name for the report. It waits until Redis can
// be reached, because a measurement without Redis would be meaningless. Call done even if there is an error.
func (b *benchFlags) shareRedis(ctx context.Context, set *weir.RuleSet) (limiters []*weir.Limiter, name string, done func(), err error) {
	var stores []*redisstore.Store
	var leases []*lease.Store
	done = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for _, l := range leases {
			_ = l.Close(ctx) // if this fails, the leases expire
		}
		for _, s := range stores {
			s.Close()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for range b.nodes {
		// Use a separate prefix, so that real nodes on the same Redis see neither these counters nor these nodes.
		store, err := redisstore.New(redisstore.Options{URL: b.store, Prefix: "weir-bench", Secret: []byte("weir bench")})
		if err != nil {
			return nil, "", done, fmt.Errorf("--store: %w", err)
		}
		stores = append(stores, store)
		counters := counter.Store(store)
		if b.leases {
			leases = append(leases, lease.New(store, lease.Options{Nodes: store.Nodes}))
			counters = leases[len(leases)-1]
		}
		limiters = append(limiters, weir.NewLimiter(counters, set, weir.Options{}))
		if err := store.Ready(ctx); err != nil {
			return nil, "", done, &exit{exitUnavailable, fmt.Errorf("--store: %w", err)}
		}
	}
	b.plan.StoreCPU = stores[0].CPU
	b.plan.StoreCalls = func() (sum uint64) {
		for _, s := range stores {
			for _, sh := range s.Health().Shards {
				sum += sh.Calls
			}
		}
		return sum
	}
	name = given(len(stores) > 1, fmt.Sprint(len(stores), " nodes, ")) + stores[0].String()
	if !b.leases {
		return limiters, name + ", no leases", done, nil
	}
	b.plan.Leases = func() (local, asked uint64) {
		for _, l := range leases {
			s := l.Stats()
			local, asked = local+s.Local, asked+s.Asked
		}
		return local, asked
	}
	return limiters, name, done, nil
}
