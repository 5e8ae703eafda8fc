package redisstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

// put replaces a file in the way that tools that rotate secrets do.
func put(t *testing.T, file string, parts ...string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(strings.Join(parts, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func text(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// logged waits until a line has been logged the given number of times.
func logged(t *testing.T, log *lines, line string, times int) {
	t.Helper()
	until(t, func(context.Context) error {
		if n := log.count(line); n < times {
			return fmt.Errorf("%q was logged %d times, want %d", line, n, times)
		}
		return nil
	})
}

const applied = "redis credentials applied"

// counts charges a key until a charge succeeds, because connections have just been killed, and counts the charges that succeed.
func counts(t *testing.T, s *Store, p *counter.Policy) {
	t.Helper()
	until(t, func(ctx context.Context) error { return take(ctx, s, charge1(p, "s"))[0].Err })
	if used(t, s, p, "s") == 0 {
		t.Error("nothing was counted")
	}
}

// TestThePasswordIsFollowed checks that a node goes on after its password was rotated and its connections were killed, whether
// Redis or the file gets the new password first: with one server, in a Cluster, and under Sentinels with a password of their
// own.
func TestThePasswordIsFollowed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	for name, open := range map[string]func() (string, []*redistest.Server){
		"Server": func() (string, []*redistest.Server) {
			r := redistest.New(t, redistest.Options{})
			return "redis://weir@" + r.Addr + "?password_file=" + file, []*redistest.Server{r}
		},
		"Cluster": func() (string, []*redistest.Server) {
			c := redistest.NewCluster(t, redistest.Options{})
			return strings.Replace(clusterURL(c), "://", "://weir@", 1) + "?password_file=" + file, c.Nodes
		},
		"Sentinel": func() (string, []*redistest.Server) {
			s := redistest.NewSentinel(t, redistest.Options{})
			url := "redis-sentinel://weir@" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName
			return url + "?password_file=" + file + "&sentinel_user=weir&sentinel_password_file=" + file, slices.Concat(s.Servers, s.Sentinels)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, servers := rotates(t, file, open)
			if name == "Sentinel" { // which are asked where the new primary is
				servers[0].Kill()
				counts(t, s, policy(t, "later", counter.TokenBucket, 1000, year))
			}
		})
	}
}

// rotates replaces a node's password three times.
func rotates(t *testing.T, file string, start func() (string, []*redistest.Server)) (*Store, []*redistest.Server) {
	put(t, file, "first\n")
	url, servers := start()
	user := func(change ...string) {
		t.Helper()
		for _, r := range servers {
			do(t, r, append([]string{"ACL", "SETUSER", "weir"}, change...)...)
		}
	}
	user("on", ">first", "~*", "&*", "+@all")
	kill := func() {
		t.Helper()
		for _, r := range servers {
			do(t, r, "CLIENT", "KILL", "USER", "weir")
		}
	}
	var log lines
	s := open(t, Options{URL: url, Logger: log.logger(), Timeout: 2 * time.Second})
	p := policy(t, "p", counter.TokenBucket, 1000, year)
	counts(t, s, p)

	// As the docs say, Redis accepts both passwords for a while.
	user(">second")
	put(t, file, "second\n")
	logged(t, &log, applied, 1)
	user("<first")
	kill()
	counts(t, s, p)

	// Change the file first. The old password stays in use until Redis knows the new one.
	put(t, file, "third\n")
	logged(t, &log, notInUse, 1)
	if h := s.Health(); !strings.Contains(h.Rejected, "WRONGPASS") || strings.Contains(fmt.Sprintf("%+v", h), "third") {
		t.Errorf("%+v", h)
	}
	kill()
	counts(t, s, p)
	user("resetpass", ">third")
	logged(t, &log, applied, 2)
	kill()
	counts(t, s, p)
	if h := s.Health(); h.Rejected != "" {
		t.Errorf("%+v", h)
	}

	// A missing file changes nothing, and Look makes the store read the files at once.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	logged(t, &log, notInUse, 2)
	s.Look()
	logged(t, &log, notInUse, 3)
	for _, secret := range []string{"first", "second", "third"} {
		if log.count(secret) != 0 {
			t.Errorf("the password %s is in the log", secret)
		}
	}
	return s, servers
}

// TestCertificatesAreFollowed replaces the CA, the server's certificate and the client's in the documented order while a node
// runs, and kills the node's connections after each step.
func TestCertificatesAreFollowed(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{TLS: true})
	old, dir := r.Certs, t.TempDir()
	host, _, _ := strings.Cut(r.TLSAddr, ":")
	fresh, err := redistest.NewCerts(dir, host)
	if err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, "used-"+name) }
	ca, cert, key, both := in("ca"), in("cert"), in("key"), in("both")
	put(t, ca, text(t, old.CA))
	put(t, cert, text(t, old.ClientCert))
	put(t, key, text(t, old.ClientKey))
	put(t, both, text(t, old.CA), text(t, fresh.CA))
	var log lines
	s := open(t, Options{URL: "rediss://" + r.TLSAddr + "?ca=" + ca + "&cert=" + cert + "&key=" + key, Logger: log.logger(), Timeout: 2 * time.Second})
	p := policy(t, "p", counter.TokenBucket, 1000, year)
	counts(t, s, p)
	step := func(times int) {
		t.Helper()
		logged(t, &log, applied, times)
		do(t, r, "CLIENT", "KILL", "TYPE", "normal")
		counts(t, s, p)
	}

	// Both sides trust both CAs.
	do(t, r, "CONFIG", "SET", "tls-ca-cert-file", both)
	put(t, ca, text(t, both))
	step(1)
	// Both sides present new certificates. Between writing cert and key, the pair doesn't match and isn't used.
	do(t, r, "CONFIG", "SET", "tls-cert-file", fresh.ServerCert, "tls-key-file", fresh.ServerKey)
	put(t, cert, text(t, fresh.ClientCert))
	logged(t, &log, notInUse, 1)
	put(t, key, text(t, fresh.ClientKey))
	step(2)
	// Both sides trust only the new CA.
	do(t, r, "CONFIG", "SET", "tls-ca-cert-file", fresh.CA)
	put(t, ca, text(t, fresh.CA))
	step(3)
}
