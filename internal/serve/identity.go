package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/weirhq/weir/httplimit"
)

// load reads the files that an identity names. Keys of a JWKS are followed until ctx is done.
func (id *Identity) load(ctx context.Context, log *slog.Logger) (httplimit.Identity, error) {
	out := httplimit.Identity{APIKey: id.APIKey, User: id.User, Org: id.Org, Tier: id.Tier, TrustUnverified: id.TrustUnverified}
	if id.KnownKeysFile != "" {
		keys, err := readKnownKeys(id.KnownKeysFile)
		if err != nil {
			return out, err
		}
		out.KnownKeys = keys
	}
	if id.JWT != nil {
		j := httplimit.JWT{JWKSURL: id.JWT.JWKSURL, Issuer: id.JWT.Issuer, Audience: id.JWT.Audience, OnFetch: logFetches(log)}
		var err error
		if id.JWT.SecretFile != "" {
			if j.Secret, err = os.ReadFile(id.JWT.SecretFile); err != nil {
				return out, fmt.Errorf("identity.jwt.secret_file: %w", err)
			}
			j.Secret = bytes.TrimRight(j.Secret, "\r\n")
		}
		if id.JWT.PublicKeyFile != "" {
			if j.PublicKey, err = os.ReadFile(id.JWT.PublicKeyFile); err != nil {
				return out, fmt.Errorf("identity.jwt.public_key_file: %w", err)
			}
		}
		if out.JWT, err = httplimit.NewVerifier(ctx, j); err != nil {
			return out, fmt.Errorf("identity.jwt: %w", err)
		}
	}
	return out, nil
}

// validate reports claims of tokens that nobody verifies.
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

// logFetches tells of every failure to fetch a JWKS, since without keys no token
// is verified, and of the first success after one.
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

// readKnownKeys reads SHA-256 hashes in hex, one a line, as sha256sum prints them; # begins a comment.
func readKnownKeys(path string) (httplimit.KnownKeys, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("identity.known_keys: %w", err)
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
