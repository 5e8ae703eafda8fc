package top

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"sync"
)

// sealer seals names of clients, which nodes tell each other through Redis. Whoever can read and write there can ask as a node does, and
// knows the nodes' secret. So names are sealed under what the nodes have in common outside of Redis: their admin tokens. Nodes that have
// none in common tell each other no names.
type sealer struct {
	digest func() []byte // of the tokens; nil, or returns nil, without any

	mu   sync.Mutex // guards what follows
	of   string     // the digest and the secret that box is made of
	made cipher.AEAD
}

// guesses is what it costs to try out a token on a sealed name, in hashes: some people choose tokens that can be guessed.
const guesses = 100_000

// box is what seals, or nil. It takes a moment if tokens have changed.
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
		panic(err) // 32 bytes can be had
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		panic(err) // that is a key
	}
	box, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return box
}

// seal closes the names of clients. Without a box none is told.
func (t *told) seal(box cipher.AEAD) {
	for i := range t.Names {
		if n := &t.Names[i]; n.value != "" && box != nil {
			nonce := make([]byte, box.NonceSize())
			_, _ = rand.Read(nonce) // never fails
			n.Sealed = box.Seal(nonce, nonce, []byte(n.value), nil)
		}
	}
}

// open reads them. A name that isn't that of its hash isn't believed: somebody may have put what was sealed for one client beside another.
func (t *told) open(box cipher.AEAD, k *key) {
	for i := range t.Names {
		n := &t.Names[i]
		if box == nil || len(n.Sealed) < box.NonceSize() {
			continue
		}
		value, err := box.Open(nil, n.Sealed[:box.NonceSize()], n.Sealed[box.NonceSize():], nil)
		if err == nil && k.hash(Identity{n.Kind, string(value)}) == n.ID {
			n.value = string(value)
		}
	}
}
