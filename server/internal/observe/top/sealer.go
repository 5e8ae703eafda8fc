package top

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha256"
	"sync"
)

// sealer encrypts the identities of clients that nodes send each other through Redis. Anybody who
// can read and write Redis can ask questions like a node, and knows the nodes' secret. So the
// encryption key is derived from the admin tokens, which nodes share outside of Redis. Nodes with
// different admin tokens don't learn each other's identities.
type sealer struct {
	digest func() []byte // returns the digest of the admin tokens, or nil if there are none; may be nil itself

	mu   sync.Mutex // guards the fields below
	of   string     // the digest and the secret from which the cipher was derived
	made cipher.AEAD
}

// guesses is how many hashes an attacker needs to try one token on an encrypted identity, because
// some people choose tokens that can be guessed.
const guesses = 100_000

// box returns the cipher, or nil if there are no tokens. After tokens have changed, it is slow
// once.
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
		panic(err) // pbkdf2 accepts 32 bytes
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		panic(err) // a key of 32 bytes is valid
	}
	box, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return box
}

// seal encrypts the identities of clients. Without a cipher, it leaves them out.
func (t *told) seal(box cipher.AEAD) {
	for i := range t.Names {
		if n := &t.Names[i]; n.value != "" && box != nil {
			n.Sealed = box.Seal(nil, nil, []byte(n.value), nil)
		}
	}
}

// open decrypts the identities. It ignores an identity that doesn't match its hash, because
// somebody with access to Redis may have moved it to another client.
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
