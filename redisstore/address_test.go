package redisstore

import (
	"crypto/tls"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/redistest"
)

// pointed has the fields in which addresses differ.
type pointed struct {
	hosts                          string
	user, password                 string
	db                             int
	single, cluster, tls, unix     bool
	master                         string
	sentinelUser, sentinelPassword string
	shown                          string // none: the URL as it was
}

func pointedAt(a address) pointed {
	o := a.option
	return pointed{
		hosts: strings.Join(o.InitAddress, " "), user: o.Username, password: o.Password, db: o.SelectDB,
		single: o.ForceSingleClient, cluster: a.cluster, tls: o.TLSConfig != nil, unix: strings.HasPrefix(o.InitAddress[0], "/"),
		master: o.Sentinel.MasterSet, sentinelUser: o.Sentinel.Username, sentinelPassword: o.Sentinel.Password,
		shown: a.shown,
	}
}

func TestAddress(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(" hun:ter2 \r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		url  string
		want pointed
	}{
		{"redis://localhost", pointed{single: true, hosts: "localhost:6379"}},
		{"redis://localhost:7000/", pointed{single: true, hosts: "localhost:7000"}},
		{"redis://10.0.0.1:6380/12", pointed{single: true, hosts: "10.0.0.1:6380", db: 12}},
		{"redis://my_redis.prod-1.example.com?db=3", pointed{single: true, hosts: "my_redis.prod-1.example.com:6379", db: 3}},
		{"redis://[::1]", pointed{single: true, hosts: "[::1]:6379"}},
		{"redis://[2001:db8::1]:70", pointed{single: true, hosts: "[2001:db8::1]:70"}},
		{"redis://[fe80::1%25eth0]", pointed{single: true, hosts: "[fe80::1%eth0]:6379"}},
		{"redis://:hunter2@h", pointed{single: true, hosts: "h:6379", password: "hunter2", shown: "redis://h"}},
		{"redis://weir:hunter2@h:1/2", pointed{single: true, hosts: "h:1", user: "weir", password: "hunter2", db: 2, shown: "redis://weir@h:1/2"}},
		{"redis://we%3Air:h%2Fu%40n%25t:e+r2@[::1]:1",
			pointed{single: true, hosts: "[::1]:1", user: "we:ir", password: "h/u@n%t:e+r2", shown: "redis://we%3Air@[::1]:1"}},
		{"redis://weir:@h", pointed{single: true, hosts: "h:6379", user: "weir", shown: "redis://weir@h"}}, // needs no password
		{"redis://weir@h?password_file=" + file, pointed{single: true, hosts: "h:6379", user: "weir", password: " hun:ter2 "}},
		{"redis://h?password_file=" + file, pointed{single: true, hosts: "h:6379", password: " hun:ter2 "}},

		{"rediss://h", pointed{single: true, hosts: "h:6379", tls: true}},
		{"rediss://weir:hunter2@[::1]:1/1?server_name=redis.example.com",
			pointed{single: true, hosts: "[::1]:1", user: "weir", password: "hunter2", db: 1, tls: true,
				shown: "rediss://weir@[::1]:1/1?server_name=redis.example.com"}},

		{"unix:///run/redis.sock", pointed{single: true, hosts: "/run/redis.sock", unix: true}},
		{"unix://weir:hunter2@/run/redis%401.sock?db=1",
			pointed{single: true, hosts: "/run/redis@1.sock", unix: true, user: "weir", password: "hunter2", db: 1,
				shown: "unix://weir@/run/redis%401.sock?db=1"}},

		{"redis-sentinel://h1,h2:5,[::1],[::2]:6/main", pointed{hosts: "h1:26379 h2:5 [::1]:26379 [::2]:6", master: "main"}},
		{"redis-sentinel://weir:hunter2@h1/my%2Fmain/4",
			pointed{hosts: "h1:26379", master: "my/main", user: "weir", password: "hunter2", db: 4, shown: "redis-sentinel://weir@h1/my%2Fmain/4"}},
		{"redis-sentinel://h1/main?tls=true&sentinel_password=hun%26ter+2&sentinel_user=watcher&db=5",
			pointed{hosts: "h1:26379", master: "main", db: 5, tls: true, sentinelUser: "watcher", sentinelPassword: "hun&ter+2",
				shown: "redis-sentinel://h1/main?tls=true&sentinel_user=watcher&db=5"}},
		{"redis-sentinel://h1/main/?sentinel_password_file=" + file,
			pointed{hosts: "h1:26379", master: "main", sentinelPassword: " hun:ter2 "}},
		{"redis-sentinel://h1/main/?sentinel_password=hunter2",
			pointed{hosts: "h1:26379", master: "main", sentinelPassword: "hunter2", shown: "redis-sentinel://h1/main/"}},

		{"redis-cluster://h1,h2:7000,[::1]:7001", pointed{cluster: true, hosts: "h1:6379 h2:7000 [::1]:7001"}},
		{"redis-cluster://weir:hunter2@h1/?tls=true",
			pointed{cluster: true, hosts: "h1:6379", tls: true, user: "weir", password: "hunter2", shown: "redis-cluster://weir@h1/?tls=true"}},
		{"redis-cluster://h1?tls=false", pointed{cluster: true, hosts: "h1:6379"}},
	} {
		a, err := parseAddress(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if c.want.shown == "" {
			c.want.shown = c.url
		}
		if got := pointedAt(a); got != c.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.url, got, c.want)
		}
	}
}

// If rueidis' default replaced one of these settings, the client would wait too long, miss a failover, send commands again, or
// need another permission.
func TestAddressLimitsTheClient(t *testing.T) {
	for _, s := range schemes {
		a, err := parseAddress(strings.TrimSuffix(s.example, "?ca=ca.pem"))
		if err != nil {
			t.Fatal(err)
		}
		o := a.option
		for name, d := range map[string][2]time.Duration{
			"Dialer.Timeout":                      {o.Dialer.Timeout, 150 * time.Millisecond},
			"Dialer.KeepAlive":                    {o.Dialer.KeepAlive, 300 * time.Millisecond},
			"ConnWriteTimeout":                    {o.ConnWriteTimeout, 300 * time.Millisecond},
			"Sentinel.Dialer.Timeout":             {o.Sentinel.Dialer.Timeout, 150 * time.Millisecond},
			"Sentinel.Dialer.KeepAlive":           {o.Sentinel.Dialer.KeepAlive, 300 * time.Millisecond},
			"ClusterOption.ShardsRefreshInterval": {o.ClusterOption.ShardsRefreshInterval, 5 * time.Second},
		} {
			if d[0] != d[1] {
				t.Errorf("%s: %s is %v, want %v", s, name, d[0], d[1])
			}
		}
		if !o.DisableCache || !o.DisableRetry || o.AlwaysRESP2 || !reflect.DeepEqual(o.ClientSetInfo, rueidis.DisableClientSetInfo) {
			t.Errorf("%s: %+v", s, o)
		}
	}
}

func TestAddressWithCertificates(t *testing.T) {
	certs := redistest.New(t, redistest.Options{TLS: true}).Certs
	for _, text := range []string{"rediss://h?", "redis-sentinel://h/main?tls=true&", "redis-cluster://h?tls=true&"} {
		a, err := parseAddress(text + "ca=" + certs.CA + "&cert=" + certs.ClientCert + "&key=" + certs.ClientKey + "&server_name=redis.example.com")
		if err != nil {
			t.Fatal(err)
		}
		want, err := certs.Client()
		if err != nil {
			t.Fatal(err)
		}
		c := a.option.TLSConfig
		if c.MinVersion != tls.VersionTLS12 || c.InsecureSkipVerify || c.ServerName != "redis.example.com" ||
			!c.RootCAs.Equal(want.RootCAs) || !reflect.DeepEqual(c.Certificates, want.Certificates) {
			t.Errorf("%s: %+v", text, c)
		}
		if strings.HasPrefix(text, "redis-sentinel") && a.option.Sentinel.TLSConfig != c {
			t.Error("Sentinels are to be asked by TLS as well")
		}
	}
}

func TestAddressRefused(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	const (
		and    = `; within a password write %26 for "&"`
		plain  = "a parameter is unknown: there are db, password_file" + and
		byTLS  = "a parameter is unknown: there are db, password_file, ca, cert, key, server_name, verify_name" + and
		behind = "a parameter is unknown: there are db, password_file, tls, ca, cert, key, server_name, verify_name, " +
			"sentinel_user, sentinel_password, sentinel_password_file" + and
		ofCluster = "a parameter is unknown: there are password_file, tls, ca, cert, key, server_name, verify_name" + and
		oneOf     = "must begin with redis://, rediss://, redis-sentinel://, redis-cluster:// or unix://"
		escape    = `within a user or password write %2F for "/", %3F for "?", %23 for "#", and anywhere but before the hosts %40 for "@"`
		space     = "has a space or a line break: remove it, or write %20 if it belongs to a password or a path"
		digits    = `after "%" must follow two hexadecimal digits; for "%" itself write %25`
		name      = "must be a name or an IP address"
		port      = "the port must be a number from 1 to 65535"
		v6        = "an IPv6 address must be in brackets: [::1]"
		inside    = "between brackets must be an IPv6 address: [::1]"
		number    = "the database must be a number from 0"
		needs     = "a user needs a password: write user:password@, or :password@ for the default user, or add password_file=FILE"
	)
	for _, c := range []struct {
		url, want string
		example   int // of which scheme
	}{
		{"", oneOf, 0},
		{"hunter2", oneOf, 0},
		{"localhost:6379", oneOf, 0},
		{"weir:hunter2@localhost", oneOf, 0},
		{"http://weir:hunter2@localhost", oneOf, 0},
		{"hunter2://localhost", oneOf, 0},
		{"reddis://weir:hunter2@h", oneOf, 0},
		{"REDISS://weir:hunter2@h", oneOf, 0},
		{"redis+sentinel://h/main", oneOf, 0},
		{"redis_cluster://h", oneOf, 0},

		// If a password isn't escaped, parts of it can end up anywhere.
		{"redis://weir:hun/ter2@h", escape, 0},
		{"redis://weir:hun?ter2@h", escape, 0},
		{"redis://weir:hun#ter2@h", escape, 0},
		{"redis://weir:@hun/ter2@h", escape, 0},
		{"redis://weir:hun@ter2@h", escape, 0},
		{"redis://weir:hun?ca=ter2@h", escape, 0},
		{"redis://weir:hun/ter2@/@h", escape, 0},
		{"redis://weir:hun ter2@h", space, 0},
		{"redis://weir:hunter2@h\n", space, 0},
		{"redis://weir:hunter2%@h", "password: " + digits, 0},
		{"redis://weir:hun%ter2@h", "password: " + digits, 0},
		{"redis://hun%ter2:x@h", "user: " + digits, 0},
		{"redis://weir:hunter2", "host 1: " + port, 0},
		{"redis://:hunter2", "host 1: " + name, 0},
		{"redis://hunter2@h", needs, 0},
		{"redis://@h", needs, 0},
		{"redis-sentinel://h/main?sentinel_password=hun&ter2", behind, 2},
		{"redis-sentinel://h/main?sentinel_password=hunter2%", "sentinel_password: " + digits, 2},

		{"redis://", "host 1: " + name, 0},
		{"redis:///1", "host 1: " + name, 0},
		{"redis://weir:hunter2@", "host 1: " + name, 0},
		{"redis://weir:hunter2@/1", "host 1: " + name, 0},
		{"redis://weir:hunter2@h!", "host 1: " + name, 0},
		{"redis://weir:hunter2@h:", "host 1: " + port, 0},
		{"redis://weir:hunter2@h:0", "host 1: " + port, 0},
		{"redis://weir:hunter2@h:65536", "host 1: " + port, 0},
		{"redis://weir:hunter2@h:+1", "host 1: " + port, 0},
		{"redis://weir:hunter2@::1", "host 1: " + v6, 0},
		{"redis://weir:hunter2@[::1", "host 1: " + inside, 0},
		{"redis://weir:hunter2@[127.0.0.1]", "host 1: " + inside, 0},
		{"redis://weir:hunter2@[::1%zz]", "host 1: " + inside, 0},
		{"redis://weir:hunter2@[::1]6379", "host 1: " + port, 0},
		{"redis://weir:hunter2@h1,h2", "several hosts are for redis-sentinel:// or redis-cluster://", 0},
		{"redis://weir:hunter2@h/one", number, 0},
		{"redis://weir:hunter2@h/-1", number, 0},
		{"redis://weir:hunter2@h/1/2", number, 0},
		{"redis://weir:hunter2@h?db=x", number, 0},
		{"redis://weir:hunter2@h/1?db=1", "the database is given twice: remove db", 0},

		{"redis://weir:hunter2@h?db=1&db=1", "db: is given twice", 0},
		{"redis://weir:hunter2@h?db", "db: has no value: write db=VALUE, or remove it", 0},
		{"redis://weir:hunter2@h?db=", "db: has no value: write db=VALUE, or remove it", 0},
		{"redis://weir:hunter2@h?database=1", plain, 0},
		{"redis://weir@h?password=hunter2", plain, 0},
		{"redis://weir:hunter2@h?tls=true", "tls: write rediss:// instead of redis://", 0},
		{"redis://weir:hunter2@h?ca=x", plain, 0},
		{"redis://weir:hunter2@h?sentinel_user=x", plain, 0},
		{"redis://weir:hunter2@h?password_file=" + missing, "the password is given twice: remove it, or password_file", 0},
		{"redis://weir@h?password_file=" + missing, "password_file: open " + missing + ": no such file or directory", 0},
		{"redis://weir@h?password_file=" + empty, "password_file: " + empty + ": must hold the password, but is empty", 0},

		{"rediss://weir:hunter2@h?tls=true", byTLS, 1},
		{"rediss://weir:hunter2@h?insecure=true", byTLS, 1},
		{"rediss://weir:hunter2@h?verify_name=no", "verify_name: must be true or false", 1},
		{"rediss://weir:hunter2@h?servername=x", byTLS, 1},
		{"rediss://weir:hunter2@h?ca=" + missing, "ca: open " + missing + ": no such file or directory", 1},
		{"rediss://weir:hunter2@h?ca=" + empty, "ca: " + empty + ": must hold certificates in PEM", 1},
		{"rediss://weir:hunter2@h?cert=" + empty, "cert and key must be given together", 1},
		{"rediss://weir:hunter2@h?key=" + empty, "cert and key must be given together", 1},
		{"rediss://weir:hunter2@h?cert=" + missing + "&key=" + empty, "cert: open " + missing + ": no such file or directory", 1},
		{"rediss://weir:hunter2@h?cert=" + empty + "&key=" + empty, "cert and key: tls: failed to find any PEM data in certificate input", 1},

		{"redis-sentinel://weir:hunter2@h1,h2", "lacks the name by which the Sentinels know the primary", 2},
		{"redis-sentinel://weir:hunter2@h1,,h2/main", "host 2: " + name, 2},
		{"redis-sentinel://weir:hunter2@h1,h2:x/main", "host 2: " + port, 2},
		{"redis-sentinel://weir:hunter2@h1,weir:hunter2@h2/main", escape, 2},
		{"redis-sentinel://weir:hunter2@h/%zz", "master: " + digits, 2},
		{"redis-sentinel://weir:hunter2@h/main/x", number, 2},
		{"redis-sentinel://weir:hunter2@h/main?ca=x", "ca: needs TLS: add tls=true", 2},
		{"redis-sentinel://weir:hunter2@h/main?tls=false&server_name=x", "server_name: needs TLS: add tls=true", 2},
		{"redis-sentinel://weir:hunter2@h/main?tls=yes", "tls: must be true or false", 2},
		{"redis-sentinel://weir:hunter2@h/main?sentinel_user=x", "sentinel_user needs sentinel_password as well, or sentinel_password_file=FILE", 2},
		{"redis-sentinel://h/main?sentinel_password=hunter2&sentinel_password_file=" + missing,
			"the password is given twice: remove it, or sentinel_password_file", 2},
		{"redis-sentinel://h/main?sentinel_password_file=" + missing, "sentinel_password_file: open " + missing + ": no such file or directory", 2},
		{"redis-sentinel://weir:hunter2@h/main?sentinel_passwort=hunter2", behind, 2},

		{"redis-cluster://weir:hunter2@h1,h2/1", "nothing may follow the hosts: a Cluster has but one database", 3},
		{"redis-cluster://weir:hunter2@h1?db=0", ofCluster, 3},
		{"redis-cluster://weir:hunter2@h1;h2", "host 1: " + name, 3},

		{"unix://run/redis.sock", "after unix:// must follow a path that begins with /", 4},
		{"unix://", "lacks the path of a socket", 4},
		{"unix://weir:hunter2@/", "lacks the path of a socket", 4},
		{"unix:///run/redis@1.sock", escape, 4},
		{"unix:///run/%", "path: " + digits, 4},
		{"unix:///run/redis.sock?db=x", number, 4},
		{"unix:///run/redis.sock?ca=x", plain, 4},
	} {
		a, err := parseAddress(c.url)
		if err == nil {
			t.Errorf("%s: is taken for %+v", c.url, pointedAt(a))
			continue
		}
		want := "store URL: " + c.want + " (example: " + schemes[c.example].example + ")"
		if err.Error() != want {
			t.Errorf("%s:\ngot  %v\nwant %s", c.url, err, want)
		}
		if leaks(err.Error()) {
			t.Errorf("%s: the error tells the password: %v", c.url, err)
		}
	}
}

func leaks(text string) bool { return strings.Contains(text, "hun") || strings.Contains(text, "ter2") }

// Whatever characters a password has, escaped or not, the URL is either understood or rejected, and the error never shows the
// password.
func FuzzAddressKeepsPassword(f *testing.F) {
	f.Add(uint8(0), "", "")
	f.Add(uint8(1), "/", "@")
	f.Add(uint8(2), "@h/main?ca=", "&")
	f.Add(uint8(3), "%", "%zz:")
	f.Add(uint8(4), "@/x?password_file=", "#")
	tails := []string{"", "/1", "/main/2", "", "/run/redis.sock"}
	f.Fuzz(func(t *testing.T, n uint8, before, after string) {
		i := int(n) % len(schemes)
		host := "h"
		if schemes[i].name == "unix" {
			host = ""
		}
		password := before + "hunter2" + after
		a, err := parseAddress(schemes[i].name + "://weir:" + password + "@" + host + tails[i])
		if err != nil {
			if strings.Contains(err.Error(), "hunter2") {
				t.Fatal(err)
			}
		} else if plain, _ := url.PathUnescape(password); a.option.Password != plain || strings.Contains(a.shown, "hunter2") {
			t.Fatalf("%q is taken for %q, shown as %q", plain, a.option.Password, a.shown)
		}
		a, err = parseAddress(schemes[i].name + "://" + url.UserPassword("weir", password).String() + "@" + host + tails[i])
		if err != nil || a.option.Password != password {
			t.Fatalf("%q, escaped, is taken for %q: %v", password, a.option.Password, err)
		}
	})
}

// TestPlace checks that user, password and certificate don't change the place, and that another database or server does.
func TestPlace(t *testing.T) {
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	place := func(url string) string {
		t.Helper()
		a, err := parseAddress(url)
		if err != nil {
			t.Fatal(err)
		}
		return a.place()
	}
	for _, same := range [][]string{
		{"redis://h", "redis://h:6379/0", "redis://:x@h", "redis://weir:x@h", "redis://weir@h?password_file=" + password, "rediss://h"},
		{"redis://h/1", "redis://h?db=1"},
		{"redis://i"},
		{"redis-sentinel://h,i/m", "redis-sentinel://weir:x@i,h/m?sentinel_password=y"},
		{"redis-sentinel://h,i/n"},
		{"redis-cluster://h,i", "redis-cluster://i,h?tls=true"},
		{"unix:///h", "unix:///h?db=0"},
	} {
		for _, url := range same {
			if got, want := place(url), place(same[0]); got != want {
				t.Errorf("%s: %s, want %s", url, got, want)
			}
		}
	}
	seen := map[string]string{}
	for _, url := range []string{"redis://h", "redis://h/1", "redis://i", "redis-sentinel://h,i/m", "redis-sentinel://h,i/n", "redis-sentinel://h,i/m/1", "unix:///h"} {
		if other := seen[place(url)]; other != "" {
			t.Errorf("%s and %s are one", url, other)
		}
		seen[place(url)] = url
	}
}
