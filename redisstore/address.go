package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/guess"
)

// address is a parsed store URL.
type address struct {
	option  rueidis.ClientOption // complete, ready for rueidis.NewClient
	cluster bool
	shown   string // the URL without passwords, for logs and errors
}

type scheme struct {
	name       string
	example    string
	port       string // where a host names none
	parameters []string
}

var schemes = []scheme{
	{"redis", "redis://user:password@host:6379/0", "6379", []string{"db", "password_file"}},
	{"rediss", "rediss://user:password@host:6379/0?ca=ca.pem", "6379", []string{"db", "password_file", "ca", "cert", "key", "server_name"}},
	{"redis-sentinel", "redis-sentinel://user:password@host1:26379,host2,host3/master/0", "26379",
		[]string{"db", "password_file", "tls", "ca", "cert", "key", "server_name", "sentinel_user", "sentinel_password"}},
	{"redis-cluster", "redis-cluster://user:password@host1:6379,host2", "6379",
		[]string{"password_file", "tls", "ca", "cert", "key", "server_name"}},
	{"unix", "unix:///run/redis.sock?db=0", "", []string{"db", "password_file"}},
}

func (s scheme) String() string { return s.name + "://" }

// parseAddress reads a store URL, and the files that it names.
//
// net/url can't: it takes a list of hosts with ports for one host with a bad port, and its errors
// quote the URL. Errors from here quote nothing of what was written except names of files: a character
// that should have been escaped makes a part of the password look like a host, a port, a path or a parameter.
func parseAddress(url string) (address, error) {
	name, rest, found := strings.Cut(url, "://")
	i := slices.IndexFunc(schemes, func(s scheme) bool { return s.name == name })
	if !found || i < 0 {
		return address{}, unknownScheme(name, found)
	}
	s := schemes[i]
	a, err := s.parse(rest)
	if err != nil {
		return address{}, fmt.Errorf("store URL: %w; for example %s", err, s.example)
	}
	return a, nil
}

func unknownScheme(name string, found bool) error {
	var names []string
	for _, s := range schemes {
		names = append(names, s.name)
	}
	if meant := guess.Closest(name, names); found && meant != "" {
		i := slices.Index(names, meant)
		return fmt.Errorf("store URL: unknown scheme: did you mean %s? For example %s", schemes[i], schemes[i].example)
	}
	return fmt.Errorf("store URL: must begin with %s; for example %s", list(schemes), schemes[0].example)
}

// list is "a, b or c".
func list(all []scheme) string {
	text := all[0].String()
	for i, s := range all[1:] {
		if i == len(all)-2 {
			text += " or " + s.String()
		} else {
			text += ", " + s.String()
		}
	}
	return text
}

// parse reads what follows the scheme.
func (s scheme) parse(rest string) (address, error) {
	if strings.ContainsFunc(rest, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return address{}, errors.New("has a space or a line break: within a password or path write %20, elsewhere remove it")
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	if strings.ContainsAny(tail, "@#") {
		return address{}, errors.New(`within a user or password write %2F for "/", %3F for "?", %23 for "#"; after the host write %40 for "@"`)
	}
	path, query, _ := strings.Cut(tail, "?")
	given, public, err := s.query(query)
	if err != nil {
		return address{}, err
	}

	a := address{cluster: s.name == "redis-cluster", shown: s.String()}
	o := &a.option
	*o = timeouts()
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		user, password, both := strings.Cut(authority[:at], ":")
		if !both && given["password_file"] == "" {
			return address{}, errors.New("has a user without a password: write user:password@, or :password@ for the default user, or add password_file=FILE")
		}
		if o.Username, err = unescape(user); err != nil {
			return address{}, fmt.Errorf("user: %w", err)
		}
		if o.Password, err = unescape(password); err != nil {
			return address{}, fmt.Errorf("password: %w", err)
		}
		if user != "" {
			a.shown += user + "@"
		}
		authority = authority[at+1:]
	}
	a.shown += authority + path + public
	if file := given["password_file"]; file != "" {
		if o.Password != "" {
			return address{}, errors.New("has a password and a password_file: remove one")
		}
		if o.Password, err = readPassword(file); err != nil {
			return address{}, err
		}
	}

	if err := s.target(o, authority, path, given); err != nil {
		return address{}, err
	}
	if o.TLSConfig, err = s.tls(given); err != nil {
		return address{}, err
	}
	if s.name == "redis-sentinel" {
		o.Sentinel.TLSConfig = o.TLSConfig
		o.Sentinel.Username, o.Sentinel.Password = given["sentinel_user"], given["sentinel_password"]
		if o.Sentinel.Username != "" && o.Sentinel.Password == "" {
			return address{}, errors.New("has a sentinel_user without a sentinel_password: add it")
		}
	}
	return a, nil
}

// timeouts is what all addresses have in common: a client that gives up soon and never on its own tries again.
func timeouts() rueidis.ClientOption {
	// Also for the connection and its greeting, TLS included. KeepAlive is how often rueidis
	// pings an idle connection; ConnWriteTimeout is how long it waits for the answer before it hangs up.
	dialer := net.Dialer{Timeout: 150 * time.Millisecond, KeepAlive: 300 * time.Millisecond}
	return rueidis.ClientOption{
		Dialer:           dialer,
		ConnWriteTimeout: 300 * time.Millisecond,
		DisableRetry:     true,                         // whoever charges decides what may be sent again
		DisableCache:     true,                         // nothing is read through it, and it tracks keys by a command that an ACL would have to allow
		ClientSetInfo:    rueidis.DisableClientSetInfo, // likewise, two commands
		Sentinel: rueidis.SentinelOption{
			Dialer: dialer, // of its own, and by default without any limit
			// A client that misses the message of a failover would write to the old primary, a replica now, for ever.
			TopologyRefreshInterval: time.Second,
		},
		// Nor does a Cluster tell when a replica takes over: else only a failing command leads to a look.
		ClusterOption: rueidis.ClusterOption{ShardsRefreshInterval: 5 * time.Second},
	}
}

// query reads the parameters, and returns them also as they may be shown.
func (s scheme) query(query string) (given map[string]string, public string, err error) {
	given = map[string]string{}
	if query == "" {
		return given, "", nil
	}
	separator := "?"
	for i, pair := range strings.Split(query, "&") {
		name, escaped, _ := strings.Cut(pair, "=")
		if err := s.takes(name); err != nil {
			return nil, "", fmt.Errorf("parameter %d: %w", i+1, err)
		}
		if _, twice := given[name]; twice {
			return nil, "", fmt.Errorf("%s: is given twice: remove one", name)
		}
		value, err := unescape(escaped)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", name, err)
		}
		if value == "" {
			return nil, "", fmt.Errorf("%s: has no value: write %s=VALUE, or remove it", name, name)
		}
		given[name] = value
		if name != "sentinel_password" {
			public += separator + pair
			separator = "&"
		}
	}
	return given, public, nil
}

// takes returns an error unless there is a parameter of this name for the scheme.
func (s scheme) takes(name string) error {
	if slices.Contains(s.parameters, name) {
		return nil
	}
	var takers []scheme
	for _, other := range schemes {
		if slices.Contains(other.parameters, name) {
			takers = append(takers, other)
		}
	}
	switch {
	case name == "tls" && s.name == "redis":
		return errors.New("for TLS write rediss:// instead of redis://")
	case name == "db" && s.name == "redis-cluster":
		return errors.New("a Cluster has no numbered databases: remove db")
	case takers != nil:
		return fmt.Errorf("%s is for %s, not for %s", name, list(takers), s)
	}
	if meant := guess.Closest(name, s.parameters); meant != "" {
		return fmt.Errorf("is unknown: did you mean %s?", meant)
	}
	return fmt.Errorf(`is unknown: there are %s; within a password write %%26 for "&"`, strings.Join(s.parameters, ", "))
}

// target sets which server is meant, and which database there.
func (s scheme) target(o *rueidis.ClientOption, authority, path string, given map[string]string) error {
	var err error
	database := given["db"]
	if s.name == "unix" {
		if authority != "" {
			return errors.New("has a host: after unix:// follows an absolute path")
		}
		socket, err := unescape(path)
		if err != nil {
			return fmt.Errorf("path: %w", err)
		}
		if strings.Trim(socket, "/") == "" {
			return errors.New("names no socket")
		}
		o.InitAddress, o.ForceSingleClient = []string{socket}, true
		o.DialCtxFn = func(ctx context.Context, path string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", path)
		}
		return setDB(o, database)
	}

	if o.InitAddress, err = s.hosts(authority); err != nil {
		return err
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch s.name {
	case "redis-cluster":
		if parts[0] != "" {
			return errors.New("a Cluster has no numbered databases: nothing follows the hosts")
		}
		return nil
	case "redis-sentinel":
		if o.Sentinel.MasterSet, err = unescape(parts[0]); err != nil {
			return fmt.Errorf("master: %w", err)
		}
		if o.Sentinel.MasterSet == "" {
			return errors.New("lacks the name under which the Sentinels know the primary")
		}
		parts = append(parts[1:], "")
		if len(parts) > 2 {
			return errors.New("after the hosts follow the master's name and the number of a database, no more")
		}
	default:
		// Else rueidis asks whether the server is part of a Cluster, which takes a right and a round trip.
		o.ForceSingleClient = true
		if len(o.InitAddress) > 1 {
			return errors.New("has several hosts: they are for redis-sentinel:// or redis-cluster://")
		}
		if len(parts) > 1 {
			return errors.New("after the host follows the number of a database, no more")
		}
	}
	if parts[0] != "" {
		if database != "" {
			return errors.New("has a database in its path and in db: remove one")
		}
		database = parts[0]
	}
	return setDB(o, database)
}

func setDB(o *rueidis.ClientOption, database string) error {
	if database == "" {
		return nil
	}
	n, err := strconv.ParseUint(database, 10, 31)
	if err != nil {
		return errors.New("the database must be a number, 0 or more")
	}
	o.SelectDB = int(n)
	return nil
}

func (s scheme) hosts(text string) ([]string, error) {
	var all []string
	for i, host := range strings.Split(text, ",") {
		addr, err := hostPort(host, s.port)
		if err != nil {
			return nil, fmt.Errorf("host %d: %w", i+1, err)
		}
		all = append(all, addr)
	}
	return all, nil
}

// hostPort completes a name, an IPv4 address, or an IPv6 address in brackets.
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
		if host == "" {
			return "", errors.New("must not be empty")
		}
		if strings.ContainsFunc(host, func(r rune) bool { return r < 0x80 && !strings.ContainsRune(nameLetters, r) }) {
			return "", errors.New(`must be a name or an IP address; several are separated by ","`)
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

// unescape leaves a plus a plus, also in parameters: passwords have more of them than of spaces.
func unescape(text string) (string, error) {
	plain, err := url.PathUnescape(text)
	if err != nil {
		return "", errors.New(`after "%" must follow two hexadecimal digits; for "%" itself write %25`)
	}
	return plain, nil
}

func readPassword(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("password_file: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", fmt.Errorf("password_file: %s: is empty: the password must be its only line", file)
	}
	return password, nil
}

// tls is nil without TLS. The name that a certificate must bear is that of the host,
// for servers that a Sentinel or a Cluster names as for those in the URL, unless server_name says otherwise.
func (s scheme) tls(given map[string]string) (*tls.Config, error) {
	switch given["tls"] {
	case "true":
	case "", "false":
		if s.name == "rediss" {
			break
		}
		for _, name := range []string{"ca", "cert", "key", "server_name"} {
			if given[name] != "" {
				return nil, fmt.Errorf("%s: needs TLS: add tls=true", name)
			}
		}
		return nil, nil
	default:
		return nil, errors.New("tls: must be true or false")
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: given["server_name"]}
	if file := given["ca"]; file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s: must hold certificates in PEM", file)
		}
	}
	cert, key := given["cert"], given["key"]
	if (cert == "") != (key == "") {
		return nil, errors.New("cert and key must be given together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
