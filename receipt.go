package weir

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// What can be wrong with a receipt.
var (
	ErrReceiptInvalid = errors.New("weir: the receipt is not one of ours")
	ErrReceiptExpired = errors.New("weir: the receipt has expired")
)

// sealer makes receipts: sealed rather than signed, since what they hold names
// a client and its limits, and callers tend to log what they are handed.
type sealer struct{ aead cipher.AEAD }

func newSealer(secret []byte) *sealer {
	key := sha256.Sum256(append([]byte("weir receipt 2 "), secret...)) // 2: the version of what is sealed
	if secret == nil {
		_, _ = rand.Read(key[:]) // never fails
	}
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the key's length is right
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return &sealer{aead}
}

func (s *sealer) seal(h *held, now time.Time) string {
	var once Once
	_, _ = rand.Read(once[:])
	b := append([]byte(nil), once[:]...)
	b = binary.AppendVarint(b, now.Add(h.expires).UnixMicro())
	for i, r := range h.returns {
		b = appendLimit(b, r.Policy.Limit)
		b = binary.AppendUvarint(b, r.Policy.ID)
		b = appendBytes(b, []byte(r.Policy.Name))
		b = appendBytes(b, r.Subject)
		b = binary.AppendVarint(b, r.N)
		b = binary.AppendVarint(b, r.Slot)
		b = binary.AppendUvarint(b, uint64(len(h.statuses[i])))
		for _, status := range h.statuses[i] {
			b = binary.AppendUvarint(b, uint64(status))
		}
	}
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, b, nil))
}

func (s *sealer) open(receipt string, now time.Time) (*held, error) {
	sealed, err := base64.RawURLEncoding.DecodeString(receipt)
	if err != nil {
		return nil, ErrReceiptInvalid
	}
	b, err := s.aead.Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, ErrReceiptInvalid
	}
	r := reader{b: b}
	h := &held{}
	copy(h.once[:], r.take(len(h.once)))
	h.expires = time.UnixMicro(r.varint()).Sub(now)
	for len(r.b) > 0 && !r.bad {
		limit := r.limit()
		id := r.uvarint()
		p, err := NewPolicy(string(r.bytes()), limit)
		if err != nil {
			return nil, ErrReceiptInvalid // sealed by a version with other bounds
		}
		p.ID = id
		h.returns = append(h.returns, Return{Counter: Counter{Policy: p, Subject: r.bytes()}, N: r.varint(), Slot: r.varint()})
		var statuses []int
		for range r.uvarint() {
			if r.bad {
				break
			}
			statuses = append(statuses, int(r.uvarint()))
		}
		h.statuses = append(h.statuses, statuses)
	}
	if r.bad {
		return nil, ErrReceiptInvalid
	}
	if h.expires <= 0 {
		return nil, ErrReceiptExpired
	}
	return h, nil
}

func appendBytes(b, v []byte) []byte { return append(binary.AppendUvarint(b, uint64(len(v))), v...) }

func appendLimit(b []byte, l Limit) []byte {
	b = append(b, byte(l.Algorithm))
	b = binary.AppendVarint(b, l.Count)
	b = binary.AppendVarint(b, int64(l.Window))
	b = binary.AppendVarint(b, l.Burst)
	b = binary.AppendUvarint(b, math.Float64bits(l.Refill))
	return binary.AppendVarint(b, int64(l.MaxDelay))
}

// reader reads what a sealer wrote; bad is set instead of running past the end.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) bytes() []byte { return r.take(int(min(r.uvarint(), math.MaxInt32))) }

func (r *reader) limit() Limit {
	var l Limit
	if a := r.take(1); a != nil {
		l.Algorithm = Algorithm(a[0])
	}
	l.Count = r.varint()
	l.Window = time.Duration(r.varint())
	l.Burst = r.varint()
	l.Refill = math.Float64frombits(r.uvarint())
	l.MaxDelay = time.Duration(r.varint())
	return l
}
