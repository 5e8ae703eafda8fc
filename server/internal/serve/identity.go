package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/node/watch"
	"github.com/weirhq/weir/jwt"
)

// load reads the files that an identity names. It keeps a JWKS up to date until ctx is done. Known
// is nil without a file of known keys.
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

// readSecret returns the contents of the file that a setting names, or nil if file is "".
func readSecret(setting, file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := watch.ReadSmall(file)
	return text, in(setting, err)
}

// validate rejects identities that use claims without a way to verify tokens.
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

// logFetches logs every failure to fetch a JWKS, and the first success after it.
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

// knownKeys are the API keys in a file. The node follows changes to the file, so new customers don't require a restart.
type knownKeys struct {
	path string
	log  *slog.Logger
	keys atomic.Pointer[httplimit.KnownKeys]
	text []byte     // the file's text when it was opened
	look watch.Bell // rings when the file should be checked now
}

func openKnownKeys(path string, log *slog.Logger) (*knownKeys, error) {
	text, err := watch.Read(path, maxKnownKeys)
	if err != nil {
		return nil, fmt.Errorf("identity.known_keys: %w", err)
	}
	keys, err := parseKnownKeys(path, text)
	if err != nil {
		return nil, err
	}
	k := &knownKeys{path: path, log: log, text: text, look: watch.NewBell()}
	k.keys.Store(&keys)
	return k, nil
}

func (k *knownKeys) Contains(key string) bool { return k.keys.Load().Contains(key) }

func (k *knownKeys) follow(ctx context.Context) error {
	return followFile(ctx, k.log, "known_keys", k.path, maxKnownKeys, k.text, k.look, func(text []byte) error {
		keys, err := parseKnownKeys(k.path, text)
		if err != nil {
			return err
		}
		k.keys.Store(&keys)
		k.log.Info("known_keys applied", "file", k.path, "keys", len(keys))
		return nil
	})
}

// maxKnownKeys is the largest size of a file of known keys in bytes: about a million keys.
const maxKnownKeys = 64 << 20

// parseKnownKeys reads SHA-256 hashes as sha256sum prints them, one per line; # begins a comment.
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
