package top

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha256"
	"sync"
)

// sealer encrypts the identities of clients that nodes send each other through Redis. Anybody who can read and write
// Redis can ask questions like a node, and knows the nodes' shared secret. So the encryption key is derived from the
// admin tokens, which nodes share without Redis. Nodes with different admin tokens don't learn each other's identities.
type sealer struct {
	digest func() []byte // returns the digest of the admin tokens, or nil if there are none; the field may also be nil

	mu   sync.Mutex // guards the fields below
	of   string     // the digest and the secret from which the current cipher was derived
	made cipher.AEAD
}

// guesses is how many hashes an attacker has to compute to try a single token on an encrypted identity. It is high
// because some people choose tokens that can be guessed.
const guesses = 100_000

// box returns the cipher, or nil if there are no tokens. The first call after the tokens have changed is slow.
func (s *sealer) box(k *key) cipher.AEAD {
	if s.digest == nil || k.secret == "" {
		return nil
	}
	digest := s.digest()
	if digest == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := string(digest) + k.secret; of != s.of {
		s.of, s.made = of, newBox(digest, k.secret)
	}
	return s.made
}

func newBox(digest []byte, salt string) cipher.AEAD {
	secret, err := pbkdf2.Key(sha256.New, string(digest), []byte("weir: names of clients"+salt), guesses, 32)
	if err != nil {
		panic(err) // can't happen: pbkdf2 accepts 32 bytes
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		panic(err) // can't happen: a key of 32 bytes is valid
	}
	box, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return box
}

// seal encrypts the identities of clients. If box is nil, it leaves them out.
func (t *told) seal(box cipher.AEAD) {
	for i := range t.Names {
		if n := &t.Names[i]; n.value != "" && box != nil {
			n.Sealed = box.Seal(nil, nil, []byte(n.value), nil)
		}
	}
}

// open decrypts the identities. It ignores an identity that doesn't match its hash, because somebody with access to
// Redis may have moved it from another client.
func (t *told) open(box cipher.AEAD, k *key) {
	for i := range t.Names {
		n := &t.Names[i]
		if box == nil || len(n.Sealed) == 0 {
			continue
		}
		value, err := box.Open(nil, nil, n.Sealed, nil)
		if err == nil && k.hash(Identity{n.Kind, string(value)}) == n.ID {
			n.value = string(value)
		}
	}
}
