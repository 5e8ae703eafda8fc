package top

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha256"
	"sync"
)

// sealer encrypts the names of clients that nodes send each other through Redis. Whoever can read
// and write Redis can ask questions like a node, and knows the nodes' secret. So the encryption key
// is derived from what the nodes have in common outside of Redis: their admin tokens. Nodes that
// have no tokens in common don't learn each other's names.
type sealer struct {
	digest func() []byte // the digest of the tokens; nil, or returning nil, if there are none

	mu   sync.Mutex // guards what follows
	of   string     // the digest and the secret from which made is derived
	made cipher.AEAD
}

// guesses is how many hashes it takes to try a token on an encrypted name: some people choose
// tokens that can be guessed.
const guesses = 100_000

// box returns the cipher, or nil if there are no tokens. It takes a moment after tokens have
// changed.
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
		panic(err) // 32 bytes are always possible
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		panic(err) // 32 bytes are a key
	}
	box, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return box
}

// seal encrypts the names of clients. Without a cipher, it sends none.
func (t *told) seal(box cipher.AEAD) {
	for i := range t.Names {
		if n := &t.Names[i]; n.value != "" && box != nil {
			n.Sealed = box.Seal(nil, nil, []byte(n.value), nil)
		}
	}
}

// open decrypts the names. It ignores a name that doesn't match its hash: somebody may have moved
// an encrypted name to another client.
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
