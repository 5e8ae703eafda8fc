package serve

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/node/watch"
	"github.com/weirhq/weir/jwt"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

type guards struct{ http, admin *guard.Guard }

func (c *Config) guards() (g guards, err error) {
	tokens, err := guard.LoadTokens(c.AdminToken, c.AdminTokens)
	if err != nil {
		return g, fmt.Errorf("--admin-tokens: %w", err)
	}
	g.admin = guard.New(guard.Options{Tokens: tokens, Name: hostName(c.Admin), Console: true})
	var one guard.Tokens
	if c.HTTPToken != "" {
		if one, err = guard.OneToken("http", c.HTTPToken); err != nil {
			return g, fmt.Errorf("--http-token: %w", err)
		}
	}
	g.http = guard.New(guard.Options{Tokens: one, Name: hostName(c.HTTP), AnyName: !isLoopback(c.HTTP)})
	return g, nil
}

// followTokens follows the file of admin tokens, because a leaked token mustn't stay valid until a restart.
func (n *node) followTokens(ctx context.Context, g *guard.Guard) error {
	c := &n.config
	var last guard.Tokens
	return followFile(ctx, n.log, "admin-tokens", c.AdminTokens, watch.Small, nil, n.tokens, func([]byte) error {
		tokens, err := guard.LoadTokens(c.AdminToken, c.AdminTokens)
		if err != nil {
			return err
		}
		g.SetTokens(tokens)
		if last != nil && !slices.Equal(tokens, last) {
			n.log.Info("admin-tokens applied", "file", c.AdminTokens, "tokens", len(tokens))
		}
		last = tokens
		return nil
	})
}

// followFile calls use with each new text of a file, until ctx is done. It logs that a text can't be read, or that use
// has returned an error.
func followFile(ctx context.Context, log *slog.Logger, what, path string, most int, last []byte, look watch.Bell,
	use func([]byte) error) error {
	return watch.File(ctx, path, most, last, look, func(text []byte) {
		if err := use(text); err != nil {
			log.Error(what+" rejected: the ones in use stay", "error", err)
		}
	}, func(err error) { log.Error(what+" can't be read: the ones in use stay", "error", err) })
}

// shortToken is the length below which a token is so short that it can be guessed.
const shortToken = 16

// warnOfStrangers warns of settings that let strangers use a port. The addresses may be nil.
func (n *node) warnOfStrangers(addr, grpc net.Addr) {
	c := &n.config
	for _, t := range []struct{ flag, token string }{{"--http-token", c.HTTPToken}, {"--admin-token", c.AdminToken}} {
		if l := len(t.token); l > 0 && l < shortToken {
			n.log.Warn(fmt.Sprintf("%s is short enough to be guessed: use at least %d random characters, such as: openssl rand -hex 16", t.flag, shortToken), "characters", l)
		}
	}
	for _, p := range c.TrustedProxies {
		if p.Bits() == 0 {
			n.log.Warn("--trusted-proxies trusts everybody: any client chooses its own address, and limits by ip hold for nobody; name your proxies' addresses", "range", p.String())
		}
	}
	httpOpen := public(addr) && c.HTTPToken == "" && !c.asksClients("http")
	grpcOpen := public(grpc) && c.HTTPToken == "" && !c.asksClients("grpc")
	if c.OnlyEnvoy && (httpOpen || grpcOpen) { // only one warning for both ports, because it appears at every start, and envoyproxy/ratelimit is open, too
		n.log.Warn("anybody who reaches the rate limit service can use it: ask for client certificates, or let only Envoy reach its ports", "http", httpOpen, "grpc", grpcOpen)
		return
	}
	if httpOpen {
		n.log.Warn("anybody who reaches the check API can use it: give it --http-token or --http-client-ca, or an address that only your services reach", "http", addr.String())
	}
	if grpcOpen {
		n.log.Warn("anybody who reaches the services of --grpc can use them: give it --http-token or --grpc-client-ca, or an address that only Envoy reaches", "grpc", grpc.String())
	}
}

func public(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback()
}

// certificate returns the files with the certificate and the key of a listener, and the prefix of their flags. Without
// TLS, the files are "".
func (c *Config) certificate(listener string) (flag, cert, key string) {
	if listener == "grpc" && c.GRPCTLSCert != "" {
		return "--grpc-tls-", c.GRPCTLSCert, c.GRPCTLSKey
	}
	return "--tls-", c.TLSCert, c.TLSKey
}

// clientCA returns the file with the CA for a listener's clients, and its flag. If there is none, the file is "".
func (c *Config) clientCA(listener string) (flag, file string) {
	own := map[string]string{"http": c.HTTPClientCA, "grpc": c.GRPCClientCA, "admin": c.AdminClientCA}[listener]
	if own != "" {
		return "--" + listener + "-client-ca", own
	}
	return "--tls-client-ca", c.TLSClientCA
}

// asksClients reports whether a listener's clients must show a certificate.
func (c *Config) asksClients(listener string) bool {
	_, file := c.clientCA(listener)
	return file != ""
}

// tls returns the TLS configuration of a listener. If the listener has no certificate, it returns nil.
func (c *Config) tls(listener string) (*tls.Config, error) {
	flag, cert, key := c.certificate(listener)
	if cert == "" {
		return nil, nil
	}
	pair, err := watch.KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s%w", flag, err)
	}
	t := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if flag, file := c.clientCA(listener); file != "" {
		if t.ClientCAs, err = watch.Authorities(file); err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		t.ClientAuth = tls.RequireAndVerifyClientCert
		if listener == "grpc" && c.GRPCClientSAN != "" {
			// Don't use VerifyPeerCertificate, because it isn't called for resumed sessions.
			t.VerifyConnection = func(s tls.ConnectionState) error { return bears(s.PeerCertificates[0], c.GRPCClientSAN) }
		}
	}
	return t, nil
}

// bears returns nil if a certificate is valid for a DNS name, an IP address, or a URI such as SPIFFE's. Otherwise it
// returns an error.
func bears(cert *x509.Certificate, name string) error {
	if !strings.Contains(name, "://") {
		return cert.VerifyHostname(name)
	}
	return when(!slices.ContainsFunc(cert.URIs, func(u *url.URL) bool { return u.String() == name }), "the client's certificate is for another name")
}

// reload checks all files whenever the operator asks for it. Without being asked, a node notices changes within two
// seconds.
func (n *node) reload(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.config.Reload:
		}
		n.log.Info("reading files again")
		n.rules.Look()
		if n.envoyConfig != nil {
			n.envoyConfig.Look()
		}
		if n.redis != nil {
			n.redis.Look()
		}
		n.certificates.Ring()
		n.tokens.Ring()
		if n.known != nil {
			n.known.look.Ring()
		}
		if n.decided != nil {
			n.decided.Reopen()
		}
	}
}

type certificateFiles map[string]string

func (c *Config) readCertificates() (certificateFiles, error) {
	read := certificateFiles{}
	for _, name := range []string{c.TLSCert, c.TLSKey, c.TLSClientCA, c.HTTPClientCA, c.AdminClientCA, c.GRPCTLSCert, c.GRPCTLSKey, c.GRPCClientCA} {
		if name == "" {
			continue
		}
		text, err := watch.ReadSmall(name)
		if err != nil {
			return nil, err
		}
		read[name] = string(text)
	}
	return read, nil
}

// followCertificates uses changed certificate files for new connections, so that tools which renew certificates don't
// have to know this node. last is the content of the files before the current certificates were read.
func (n *node) followCertificates(ctx context.Context, ports []*port, last certificateFiles) error {
	_, cert, _ := n.config.certificate("grpc") // all files are usually in the same folder
	return watch.Dir(ctx, filepath.Dir(cert), n.config.readCertificates, maps.Equal[certificateFiles, certificateFiles], last, n.certificates,
		func(certificateFiles) { n.useCertificates(ports) },
		func(err error) { n.log.Error("certificates can't be read: the ones in use stay", "error", err) })
}

// useCertificates reads the certificates again, for new connections. If any of them can't be used, no port changes.
func (n *node) useCertificates(ports []*port) {
	var failed error
	fresh := make([]*tls.Config, len(ports))
	for i, p := range ports {
		var err error
		fresh[i], err = n.config.tls(p.name)
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		n.log.Error("certificates rejected: the ones in use stay", "error", failed)
		return
	}
	var expires time.Time // when the first certificate expires
	for i, p := range ports {
		p.tls.Store(fresh[i])
		if fresh[i] == nil {
			continue
		}
		if end := fresh[i].Certificates[0].Leaf.NotAfter; expires.IsZero() || end.Before(expires) {
			expires = end
		}
	}
	n.log.Info("certificates applied", "expires", expires)
}

// load reads the files that an identity names. If there is a JWKS, it keeps the JWKS up to date until ctx is done.
// known may be nil.
func (id *Identity) load(ctx context.Context, log *slog.Logger) (out httplimit.Identity, known *knownKeys, err error) {
	out = httplimit.Identity{APIKey: id.APIKey, User: id.User, Org: id.Org, Tier: id.Tier, TrustUnverified: id.TrustUnverified}
	if id.KnownKeysFile != "" {
		if known, err = openKnownKeys(id.KnownKeysFile, log); err != nil {
			return out, nil, err
		}
		out.KnownKeys = known
	}
	if id.JWT != nil {
		opts := jwt.Options{JWKSURL: id.JWT.JWKSURL, Issuer: id.JWT.Issuer, Audience: id.JWT.Audience, OnFetch: logFetches(log)}
		if opts.Secret, err = readSecret("identity.jwt.secret_file", id.JWT.SecretFile); err != nil {
			return out, nil, err
		}
		opts.Secret = bytes.TrimRight(opts.Secret, "\r\n")
		if opts.PublicKey, err = readSecret("identity.jwt.public_key_file", id.JWT.PublicKeyFile); err != nil {
			return out, nil, err
		}
		tokens, err := jwt.NewVerifier(ctx, opts)
		if err != nil {
			return out, nil, fmt.Errorf("identity.jwt: %w", err)
		}
		out.JWT = tokens
	}
	return out, known, nil
}

// readSecret returns the content of the file that a setting names. If file is "", it returns nil.
func readSecret(setting, file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := watch.ReadSmall(file)
	return text, in(setting, err)
}

// validate rejects identities that use claims although no tokens can be verified.
func (id *Identity) validate() error {
	for _, of := range []struct {
		name string
		from httplimit.Source
	}{{"api_key", id.APIKey}, {"user", id.User}, {"org", id.Org}, {"tier", id.Tier}} {
		if id.JWT == nil && of.from.Claim != "" {
			return fmt.Errorf("identity.%s: claim: needs identity.jwt, which says how tokens are verified, such as jwt: {jwks_url: https://id.example.com/keys.json}", of.name)
		}
	}
	return nil
}

// logFetches returns a function that logs every failure to fetch a JWKS, and the first success after a failure.
func logFetches(log *slog.Logger) func(error) {
	failing := true
	return func(err error) {
		switch {
		case err != nil:
			log.Warn("identity: keys of tokens can't be fetched: those fetched before stay", "error", err)
		case failing:
			log.Info("identity: keys of tokens fetched")
		}
		failing = err != nil
	}
}

// knownKeys are the API keys in a file. The node follows the file, so that new customers don't require a restart.
type knownKeys struct {
	path string
	log  *slog.Logger
	keys atomic.Pointer[httplimit.KnownKeys]
	text []byte     // content of the file when it was opened
	look watch.Bell // rung when the file should be checked now
}

func openKnownKeys(path string, log *slog.Logger) (*knownKeys, error) {
	text, err := watch.Read(path, maxKnownKeys)
	if err != nil {
		return nil, in("identity.known_keys", err)
	}
	k := &knownKeys{path: path, log: log, text: text, look: watch.NewBell()}
	return k, k.apply(text)
}

// apply puts the keys in a text into use. If any of them is invalid, it changes nothing.
func (k *knownKeys) apply(text []byte) error {
	keys, err := parseKnownKeys(k.path, text)
	if err == nil {
		k.keys.Store(&keys)
	}
	return err
}

func (k *knownKeys) Contains(key string) bool { return k.keys.Load().Contains(key) }

func (k *knownKeys) follow(ctx context.Context) error {
	return followFile(ctx, k.log, "known_keys", k.path, maxKnownKeys, k.text, k.look, func(text []byte) error {
		err := k.apply(text)
		if err == nil {
			k.log.Info("known_keys applied", "file", k.path, "keys", len(*k.keys.Load()))
		}
		return err
	})
}

// maxKnownKeys is the maximum size of a file of known keys, in bytes. It is enough for about a million keys.
const maxKnownKeys = 64 << 20

// parseKnownKeys parses SHA-256 hashes as sha256sum prints them, one per line. A # begins a comment.
func parseKnownKeys(path string, text []byte) (httplimit.KnownKeys, error) {
	if len(text) > maxKnownKeys {
		return nil, fmt.Errorf("%s: is too large: a file of known keys has at most %d MiB", path, maxKnownKeys>>20)
	}
	keys := httplimit.KnownKeys{}
	scan := bufio.NewScanner(bytes.NewReader(text))
	for line := 1; scan.Scan(); line++ {
		field, _, _ := strings.Cut(strings.TrimSpace(scan.Text()), " ")
		if field == "" || field[0] == '#' {
			continue
		}
		var sum [32]byte
		if n, err := hex.Decode(sum[:], []byte(field[:min(len(field), 64)])); err != nil || n != 32 || len(field) != 64 {
			return nil, fmt.Errorf("%s:%d: must be the SHA-256 of a key in hex, as in: printf %%s \"$KEY\" | sha256sum", path, line)
		}
		keys[sum] = struct{}{}
	}
	return keys, scan.Err()
}
