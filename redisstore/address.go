package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// address is a parsed store URL.
type address struct {
	option  rueidis.ClientOption // complete, ready for rueidis.NewClient
	cluster bool
	shown   string            // the URL without passwords, for logs and errors
	files   map[string]string // the files that the URL names, and what was read from them
}

// place identifies where the keys are: the hosts in sorted order, the Sentinels' name for the primary, and the database. It
// depends neither on credentials nor on the order of the hosts.
func (a *address) place() string {
	hosts := slices.Sorted(slices.Values(a.option.InitAddress))
	return fmt.Sprintf("%s/%s/%d", strings.Join(hosts, ","), a.option.Sentinel.MasterSet, a.option.SelectDB)
}

type scheme struct {
	name       string
	example    string
	port       string // used for a host without a port
	parameters []string
}

var (
	tlsParameters      = []string{"ca", "cert", "key", "server_name", "verify_name"}
	sentinelParameters = []string{"sentinel_user", "sentinel_password", "sentinel_password_file"}
	schemes            = []scheme{
		{"redis", "redis://user:password@host:6379/0", "6379", []string{"db", "password_file"}},
		{"rediss", "rediss://user:password@host:6379/0?ca=ca.pem", "6379",
			slices.Concat([]string{"db", "password_file"}, tlsParameters)},
		{"redis-sentinel", "redis-sentinel://user:password@host1:26379,host2,host3/master/0", "26379",
			slices.Concat([]string{"db", "password_file", "tls"}, tlsParameters, sentinelParameters)},
		{"redis-cluster", "redis-cluster://user:password@host1:6379,host2", "6379",
			slices.Concat([]string{"password_file", "tls"}, tlsParameters)},
		{"unix", "unix:///run/redis.sock?db=0", "", []string{"db", "password_file"}},
	}
)

// parseAddress parses a store URL, and reads the files that it names.
//
// We don't use net/url: it reads a list of hosts with ports as one host with a bad port, and its errors quote the URL. Errors
// from this parser quote only names of files and of known parameters, because an unescaped character can make part of the
// password look like a host, a port, a path or a parameter.
func parseAddress(url string) (address, error) {
	name, rest, found := strings.Cut(url, "://")
	i := slices.IndexFunc(schemes, func(s scheme) bool { return s.name == name })
	if !found || i < 0 {
		return address{}, fmt.Errorf("store URL: must begin with redis://, rediss://, redis-sentinel://, redis-cluster:// or unix:// (example: %s)", schemes[0].example)
	}
	p := parser{scheme: schemes[i], given: map[string]string{}}
	if err := p.parse(rest); err != nil {
		return address{}, fmt.Errorf("store URL: %w (example: %s)", err, p.example)
	}
	return p.address, nil
}

// parser reads the store URL of one scheme into an address.
type parser struct {
	scheme
	address
	given map[string]string // the URL's parameters, by name
}

// parse reads what follows the scheme.
func (p *parser) parse(rest string) (err error) {
	if strings.ContainsFunc(rest, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return errors.New("has a space or a line break: remove it, or write %20 if it belongs to a password or a path")
	}
	end := strings.IndexAny(rest+"/", "/?#")
	authority, tail := rest[:end], rest[end:]
	if strings.ContainsAny(tail, "@#") || strings.Count(authority, "@") > 1 {
		return errors.New(`within a user or password write %2F for "/", %3F for "?", %23 for "#", and anywhere but before the hosts %40 for "@"`)
	}
	path, query, _ := strings.Cut(tail, "?")
	public, err := p.query(query)
	if err != nil {
		return err
	}

	p.address = address{option: clientOption(), cluster: p.name == "redis-cluster", shown: p.name + "://", files: map[string]string{}}
	o := &p.option
	if who, hosts, found := strings.Cut(authority, "@"); found {
		authority = hosts
		user, password, both := strings.Cut(who, ":")
		if !both && p.given["password_file"] == "" {
			return errors.New("a user needs a password: write user:password@, or :password@ for the default user, or add password_file=FILE")
		}
		if o.Username, err = unescape(user); err != nil {
			return fmt.Errorf("user: %w", err)
		}
		if o.Password, err = unescape(password); err != nil {
			return fmt.Errorf("password: %w", err)
		}
		if user != "" {
			p.shown += user + "@"
		}
	}
	p.shown += authority + path + public
	if err := p.readPassword("password_file", &o.Password); err != nil {
		return err
	}
	if err := p.target(authority, path); err != nil {
		return err
	}
	if o.TLSConfig, err = p.tls(); err != nil || o.Sentinel.MasterSet == "" {
		return err
	}
	o.Sentinel.TLSConfig, o.Sentinel.Username, o.Sentinel.Password = o.TLSConfig, p.given["sentinel_user"], p.given["sentinel_password"]
	if err := p.readPassword("sentinel_password_file", &o.Sentinel.Password); err != nil {
		return err
	}
	if o.Sentinel.Username != "" && o.Sentinel.Password == "" {
		return errors.New("sentinel_user needs sentinel_password as well, or sentinel_password_file=FILE")
	}
	return nil
}

// clientOption returns the settings that all addresses share: a client that gives up soon, and never retries by itself.
func clientOption() rueidis.ClientOption {
	dialer := net.Dialer{
		Timeout:   150 * time.Millisecond, // covers TLS and the greeting as well
		KeepAlive: 300 * time.Millisecond, // also how often rueidis pings an idle connection
	}
	return rueidis.ClientOption{
		Dialer:           dialer,
		ConnWriteTimeout: 300 * time.Millisecond, // also how long it waits for a ping's answer before it drops the connection
		DisableRetry:     true,                   // the store decides which calls may be sent again
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
			return dial(ctx, "tcp", addr, d, t)
		},
		// Nothing is read twice, so there is no cache. With both settings, an ACL needn't allow the CLIENT command.
		DisableCache:  true,
		ClientSetInfo: rueidis.DisableClientSetInfo,
		Sentinel:      rueidis.SentinelOption{Dialer: dialer},
		// Otherwise the client looks for new shards only after a command has failed.
		ClusterOption: rueidis.ClusterOption{
			ShardsRefreshInterval: 5 * time.Second,
			MaxMovedRedirections:  8, // otherwise, two servers that redirect to each other use up the whole budget
		},
	}
}

// query parses the parameters, and returns those that may be shown.
func (p *parser) query(query string) (public string, err error) {
	if query == "" {
		return "", nil
	}
	for pair := range strings.SplitSeq(query, "&") {
		name, escaped, _ := strings.Cut(pair, "=")
		if !slices.Contains(p.parameters, name) {
			if name == "tls" && p.name == "redis" {
				return "", errors.New("tls: write rediss:// instead of redis://")
			}
			return "", fmt.Errorf(`a parameter is unknown: there are %s; within a password write %%26 for "&"`, strings.Join(p.parameters, ", "))
		}
		if _, twice := p.given[name]; twice {
			return "", fmt.Errorf("%s: is given twice", name)
		}
		value, err := unescape(escaped)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if value == "" {
			return "", fmt.Errorf("%s: has no value: write %s=VALUE, or remove it", name, name)
		}
		p.given[name] = value
		if name != "sentinel_password" {
			public += "&" + pair
		}
	}
	return strings.Replace(public, "&", "?", 1), nil
}

// target sets the address of the server, and the database.
func (p *parser) target(authority, path string) (err error) {
	o := &p.option
	// Otherwise rueidis asks whether the server belongs to a Cluster, and an ACL would have to allow that command.
	o.ForceSingleClient = p.name == "redis" || p.name == "rediss" || p.name == "unix"
	// Joiners put many charges into one call, and other frequent callers limit their calls in flight. For these few calls, a
	// connection for each is faster than one connection with a queue. In a Cluster there are many joiners, and it isn't.
	o.DisableAutoPipelining = !p.cluster
	database := p.given["db"]
	if p.name == "unix" {
		if authority != "" {
			return errors.New("after unix:// must follow a path that begins with /")
		}
		if path, err = unescape(path); err != nil {
			return fmt.Errorf("path: %w", err)
		}
		if strings.Trim(path, "/") == "" {
			return errors.New("lacks the path of a socket")
		}
		o.InitAddress = []string{path}
		o.DialCtxFn = func(ctx context.Context, path string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx, "unix", path, d, nil)
		}
		return p.setDB(database)
	}
	for i, host := range strings.Split(authority, ",") {
		addr, err := hostPort(host, p.port)
		if err != nil {
			return fmt.Errorf("host %d: %w", i+1, err)
		}
		o.InitAddress = append(o.InitAddress, addr)
	}
	if o.ForceSingleClient && len(o.InitAddress) > 1 {
		return errors.New("several hosts are for redis-sentinel:// or redis-cluster://")
	}
	path = strings.Trim(path, "/")
	if p.name == "redis-sentinel" {
		var master string
		master, path, _ = strings.Cut(path, "/")
		if o.Sentinel.MasterSet, err = unescape(master); err != nil {
			return fmt.Errorf("master: %w", err)
		}
		if master == "" {
			return errors.New("lacks the name by which the Sentinels know the primary")
		}
	}
	switch {
	case path != "" && p.cluster:
		return errors.New("nothing may follow the hosts: a Cluster has but one database")
	case path != "" && database != "":
		return errors.New("the database is given twice: remove db")
	}
	return p.setDB(path + database)
}

func (p *parser) setDB(database string) error {
	n, err := strconv.ParseUint(cmp.Or(database, "0"), 10, 31)
	if err != nil {
		return errors.New("the database must be a number from 0")
	}
	p.option.SelectDB = int(n)
	return nil
}

// hostPort adds the default port if the text has none. The host is a name, an IPv4 address, or an IPv6 address in brackets.
func hostPort(text, port string) (string, error) {
	host, after := text, ""
	if inside, bracketed := strings.CutPrefix(text, "["); bracketed {
		var closed bool
		host, after, closed = strings.Cut(inside, "]")
		zoned, err := unescape(host) // a zone is written %25eth0
		ip, bad := netip.ParseAddr(zoned)
		if err != nil || bad != nil || !closed || !ip.Is6() {
			return "", errors.New("between brackets must be an IPv6 address: [::1]")
		}
		host = zoned
	} else {
		if strings.Count(text, ":") > 1 {
			return "", errors.New("an IPv6 address must be in brackets: [::1]")
		}
		if i := strings.Index(text, ":"); i >= 0 {
			host, after = text[:i], text[i:]
		}
		if host == "" || strings.Trim(host, nameLetters) != "" {
			return "", errors.New("must be a name or an IP address")
		}
	}
	if after != "" {
		n, err := strconv.ParseUint(strings.TrimPrefix(after, ":"), 10, 16)
		if err != nil || n == 0 || after[0] != ':' {
			return "", errors.New("the port must be a number from 1 to 65535")
		}
		port = strconv.FormatUint(n, 10)
	}
	return net.JoinHostPort(host, port), nil
}

const nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"

// unescape decodes percent signs, but leaves a plus a plus: passwords contain more pluses than spaces.
func unescape(text string) (string, error) {
	plain, err := url.PathUnescape(text)
	if err != nil {
		return "", errors.New(`after "%" must follow two hexadecimal digits; for "%" itself write %25`)
	}
	return plain, nil
}
