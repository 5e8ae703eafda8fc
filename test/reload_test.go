package test

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

func always(map[string]any) bool { return true }

// On SIGHUP, a node reads certificates, rules and known keys again. It never exits, and no request fails.
func TestAHangupReadsFilesAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	first, second := ca.issue(t, dir, "first"), ca.issue(t, dir, "second")
	inUse := issued{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	put := func(i issued) {
		t.Helper()
		for from, to := range map[string]string{i.cert: inUse.cert, i.key: inUse.key} {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			write(t, to, string(text))
		}
	}
	put(first)
	rules := write(t, filepath.Join(dir, "rules.yaml"), "rules:\n  - {id: all, limit: 1000000/second}\n")
	n := serve(t, "--rules", rules, "--tls-cert", inUse.cert, "--tls-key", inUse.key)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	trusting := func() *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	}
	served := func() string { // returns the common name in the node's certificate
		t.Helper()
		client := trusting()
		defer client.CloseIdleConnections()
		res, err := client.Get(n.HTTP + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.ProtoMajor != 2 {
			t.Errorf("served over %s", res.Proto)
		}
		return res.TLS.PeerCertificates[0].Subject.CommonName
	}

	var load sync.WaitGroup
	var stop atomic.Bool
	defer load.Wait()
	defer stop.Store(true)
	for range 2 {
		load.Go(func() {
			client := trusting()
			defer client.CloseIdleConnections()
			for !stop.Load() {
				if status, body := post(t, client, n.HTTP+"/v1/check", `{"key": "k"}`); status != 200 {
					t.Errorf("%d %s", status, body)
				}
			}
		})
	}
	hangUp := func() {
		t.Helper()
		if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	if by := served(); by != "first" {
		t.Errorf("at the start: served by %s", by)
	}
	put(second)
	hangUp()
	n.await("certificates applied", always)
	if by := served(); by != "second" {
		t.Errorf("after a hangup: served by %s", by)
	}
	write(t, inUse.key, "nonsense")
	write(t, rules, "rules:\n  - {id: all, limit: 0/second}\n")
	hangUp()
	n.await("certificates rejected: the ones in use stay", func(l map[string]any) bool { return strings.Contains(l["error"].(string), "--tls-cert") })
	n.await("rules rejected: the ones in force stay", always)
	if by := served(); by != "second" {
		t.Errorf("after files that can't be used: served by %s", by)
	}
	put(first)
	write(t, rules, "rules:\n  - {id: other, limit: 1000000/second}\n")
	hangUp()
	n.await("certificates applied", func(map[string]any) bool { return served() == "first" })
	n.await("rules applied", func(l map[string]any) bool { return l["version"] == 2.0 })
}

// A client whose CA was removed can't connect anymore, not even by resuming a TLS session.
func TestAHangupReadsClientCAsAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, theirs := newAuthority(t, t.TempDir()), newAuthority(t, t.TempDir())
	server, client := ours.issue(t, dir, "server"), theirs.issue(t, dir, "client")
	trusted := func(a *authority) string {
		text, err := os.ReadFile(a.file)
		if err != nil {
			t.Fatal(err)
		}
		return write(t, filepath.Join(dir, "trusted.pem"), string(text))
	}
	n := serve(t, "--tls-cert", server.cert, "--tls-key", server.key, "--tls-client-ca", trusted(theirs))
	pair, err := tls.LoadX509KeyPair(client.cert, client.key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	config := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	ask := func() (resumed bool, err error) {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		res, err := c.Get(n.HTTP + "/healthz")
		if err != nil {
			return false, err
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res.TLS.DidResume, nil
	}
	if _, err := ask(); err != nil {
		t.Fatal(err)
	}
	if resumed, err := ask(); err != nil || !resumed {
		t.Fatalf("resumed %v, %v", resumed, err)
	}
	trusted(ours)
	_ = n.cmd.Process.Signal(syscall.SIGHUP)
	n.await("certificates applied", always)
	if _, err := ask(); err == nil {
		t.Error("a client of a CA that isn't trusted any more was served")
	}
}

// A key is known as soon as the file contains its hash, and no longer than that. If the file becomes invalid, nothing
// changes.
func TestKnownKeysAreFollowed(t *testing.T) {
	t.Parallel()
	line := func(key string) string { return fmt.Sprintf("%x\n", sha256.Sum256([]byte(key))) }
	file := write(t, filepath.Join(t.TempDir(), "keys.sha256"), line("sk_prod_old"))
	n, limitOf := gatewayWith(t, "identity: {known_keys: "+file+"}\n")
	expect := func(old, young string) {
		t.Helper()
		if a, b := limitOf("X-API-Key", "sk_prod_old"), limitOf("X-API-Key", "sk_prod_new"); a != old || b != young {
			t.Errorf("limits %q and %q, want %q and %q", a, b, old, young)
		}
	}
	applied := func(keys float64) {
		t.Helper()
		n.await("known_keys applied", func(l map[string]any) bool { return l["keys"] == keys })
	}
	expect("50", "5")
	write(t, file, line("sk_prod_old")+line("sk_prod_new"))
	applied(2)
	expect("50", "50")
	write(t, file, line("sk_prod_new")+"nonsense\n")
	n.await("known_keys rejected: the ones in use stay", func(l map[string]any) bool { return strings.Contains(l["error"].(string), "keys.sha256:2: ") })
	expect("50", "50")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	n.await("known_keys can't be read: the ones in use stay", always)
	expect("50", "50")
	write(t, file, line("sk_prod_new"))
	applied(1)
	expect("5", "50")
}

// A SIGHUP during a node's start doesn't end the process, because the handler is installed before packages that take
// long to initialize.
func TestHangupsAreCaughtFromTheStart(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(binary, "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	initialized := string(out)
	caught := strings.Index(initialized, "init github.com/weirhq/weir/server/cmd/weir/hangup ")
	for _, slow := range []string{"google.golang.org/protobuf/reflect/protodesc", "github.com/envoyproxy/go-control-plane/envoy/config/core/v3", "github.com/weirhq/weir/redisstore", "main"} {
		if at := strings.Index(initialized, "init "+slow+" "); caught < 0 || at < caught {
			t.Errorf("hangups are caught at %d, and %s is initialized at %d, of\n%s", caught, slow, at, initialized)
		}
	}
}

// If Redis' password is rotated as the docs describe, the node uses the new one, also after SIGHUP. The log, /readyz
// and /v1/now report a password that Redis refuses. If connections are killed afterward, the node keeps counting.
func TestAPasswordOfRedisIsFollowed(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	redis := func(args ...string) {
		t.Helper()
		if _, err := r.Do(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	redis("ACL", "SETUSER", "weir", "on", ">first-secret", "~*", "&*", "+@all")
	dir := t.TempDir()
	rules := write(t, filepath.Join(dir, "rules.yaml"), "rules:\n  - {id: all, limit: 1000/day, strict: true}\n")
	file := write(t, filepath.Join(dir, "password"), "first-secret\n")
	n := serve(t, "--rules", rules, "--store", "redis://weir@"+r.Addr+"?password_file="+file)
	reached(t, n)

	write(t, file, "mistaken-secret\n")
	n.await("new redis credentials aren't in use: those before them stay", always)
	until(t, func() error {
		_, text := admin(t, n, "GET", "/readyz", "")
		now := nowOf(t, n)
		if !strings.Contains(text, "aren't in use (WRONGPASS") || trouble(&now, "store_credentials") == nil {
			return fmt.Errorf("%s, %+v", text, now.Trouble)
		}
		return nil
	})

	redis("ACL", "SETUSER", "weir", ">second-secret")
	write(t, file, "second-secret\n")
	if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	n.await("redis credentials applied", always)
	redis("ACL", "SETUSER", "weir", "<first-secret")
	redis("CLIENT", "KILL", "USER", "weir")
	until(t, func() error {
		if a := check(t, n, `{"key":"k"}`); a.Degraded {
			return errors.New("degraded")
		}
		if _, text := admin(t, n, "GET", "/readyz", ""); strings.Contains(text, "warning") {
			return errors.New(text)
		}
		return nil
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if strings.Contains(n.text.String(), "-secret") {
		t.Error("a password is in the log")
	}
}
