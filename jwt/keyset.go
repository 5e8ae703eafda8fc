package jwt

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
	gojwt "github.com/golang-jwt/jwt/v5"
)

// keySet holds the keys that an identity provider publishes. A goroutine fetches them, and requests only use the keys fetched
// so far. So no request waits if the provider is down or a client makes up key IDs.
type keySet struct {
	url    string
	shown  string // the URL without user, password and query, for messages
	client *http.Client
	told   func(error) // see Options.OnFetch
	keys   atomic.Pointer[[]publicKey]
	wanted chan struct{} // holds a value if a token named a key that isn't known
}

// publicKey is a key. It verifies tokens that name its key ID or none, and that use its algorithm. If algorithm is empty, any
// fits.
type publicKey struct {
	id, algorithm string
	key           crypto.PublicKey
}

const (
	refreshEvery = time.Hour
	wantedEvery  = 10 * time.Second // the shortest time between two fetches because of unknown keys
	firstRetry   = time.Second
	lastRetry    = time.Minute
	fetchTimeout = 10 * time.Second
	maxKeySet    = 1 << 20 // the largest answer, in bytes
)

func newKeySet(opts Options) (*keySet, error) {
	u, err := url.Parse(opts.JWKSURL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		// Don't show the URL or the error of url.Parse, which quotes it: the URL may contain a password.
		return nil, errors.New("jwks_url: must be a URL such as https://idp.example/keys")
	}
	// The user, the password and the query may be secret, and messages end up in logs.
	shown := (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
	s := &keySet{url: opts.JWKSURL, shown: shown, client: opts.Client, told: opts.OnFetch, wanted: make(chan struct{}, 1)}
	s.keys.Store(&[]publicKey{})
	if s.client == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.DisableKeepAlives = true // the next fetch is usually an hour away
		s.client = &http.Client{Transport: t, Timeout: fetchTimeout}
	}
	return s, nil
}

// find returns the keys that may have signed a token. If there are none, it asks for a fetch.
func (s *keySet) find(t *gojwt.Token) (any, error) {
	id, _ := t.Header["kid"].(string)
	var fit gojwt.VerificationKeySet
	for _, k := range *s.keys.Load() {
		if (id == "" || id == k.id) && (k.algorithm == "" || k.algorithm == t.Method.Alg()) {
			fit.Keys = append(fit.Keys, k.key)
		}
	}
	if fit.Keys == nil {
		select {
		case s.wanted <- struct{}{}:
		default:
		}
		return nil, errNoKey
	}
	return fit, nil
}

// keepFresh fetches the keys until ctx is done: every hour, and when a token names an unknown key. After a failure it retries
// with exponential backoff.
func (s *keySet) keepFresh(ctx context.Context) {
	retry := firstRetry
	for goOn := true; goOn; {
		err := s.fetch(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.told != nil {
			s.told(err)
		}
		if err != nil {
			goOn = pause(ctx, retry, nil)
			retry = min(2*retry, lastRetry)
		} else {
			goOn = pause(ctx, wantedEvery, nil) && pause(ctx, refreshEvery-wantedEvery, s.wanted)
			retry = firstRetry
		}
	}
}

// pause waits until d has passed or wake has a value, and returns true. If ctx is done, it returns false.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
	case <-wake:
	}
	return true
}

// fetch replaces the keys. Its error shows no secrets: it drops the URL from errors of the http.Client, since that contains the
// query, or a URL to which the client was redirected.
func (s *keySet) fetch(ctx context.Context) error {
	keys, err := s.download(ctx)
	if err == nil {
		s.keys.Store(&keys)
		return nil
	}
	if of, ok := errors.AsType[*url.Error](err); ok {
		err = of.Err
	}
	return fmt.Errorf("jwks_url: %s: %w", s.shown, err)
}

func (s *keySet) download(ctx context.Context) ([]publicKey, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered with status %d", resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxKeySet {
		return nil, fmt.Errorf("answered with more than %d bytes", maxKeySet)
	}
	return parseKeySet(text)
}

// parseKeySet returns the public keys for signatures, and ignores other keys, such as shared secrets. If no key is left and one
// couldn't be read, it returns that key's error.
func parseKeySet(text []byte) ([]publicKey, error) {
	var set jwkset.JWKSMarshal
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, err
	}
	if set.Keys == nil {
		return nil, errors.New("must be a JSON object with keys")
	}
	keys := []publicKey{}
	var failed error
	for _, m := range set.Keys {
		if m.USE == jwkset.UseEnc {
			continue
		}
		k, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil {
			failed = err
			continue
		}
		switch key := k.Key().(type) {
		case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
			keys = append(keys, publicKey{m.KID, m.ALG.String(), key})
		}
	}
	if len(keys) == 0 && failed != nil {
		return nil, failed
	}
	return keys, nil
}
