package weir

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"
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

// sealed is one limit in a receipt. What has no fixed length follows: the policy's name, the subject, and the statuses.
type sealed struct {
	Limit           Limit
	ID              uint64
	N, Slot         int64
	Name, Subject   uint32
	Statuses, Place uint16
}

// withPlaces marks receipts of split limits, so that nodes which don't know of places, and always read 0 there, don't open them.
var withPlaces = []byte("places")

func (s *sealer) seal(h *held, now time.Time) string {
	var once Once
	_, _ = rand.Read(once[:])
	b := binary.LittleEndian.AppendUint64(once[:], uint64(now.Add(h.expires).UnixMicro()))
	var form []byte
	for i, r := range h.returns {
		p, statuses := r.Policy, h.statuses[i]
		b, _ = binary.Append(b, binary.LittleEndian, sealed{
			p.Limit, p.ID, r.N, r.Slot, uint32(len(p.Name)), uint32(len(r.Subject)), uint16(len(statuses)), p.Place})
		if p.Place != 0 {
			form = withPlaces
		}
		b = append(append(b, p.Name...), r.Subject...)
		for _, status := range statuses {
			b = binary.LittleEndian.AppendUint16(b, uint16(status))
		}
	}
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, b, form))
}

func (s *sealer) open(receipt string, now time.Time) (*held, error) {
	b, err := base64.RawURLEncoding.DecodeString(receipt)
	if err != nil {
		return nil, ErrReceiptInvalid
	}
	box := b
	if b, err = s.aead.Open(nil, nil, box, nil); err != nil {
		if b, err = s.aead.Open(nil, nil, box, withPlaces); err != nil {
			return nil, ErrReceiptInvalid
		}
	}
	// From here on it is what seal wrote.
	h := &held{}
	b = b[copy(h.once[:], b):]
	h.expires = time.UnixMicro(int64(binary.LittleEndian.Uint64(b))).Sub(now)
	if h.expires <= 0 {
		return nil, ErrReceiptExpired
	}
	for b = b[8:]; len(b) > 0; {
		var in sealed
		n, err := binary.Decode(b, binary.LittleEndian, &in)
		if err != nil {
			return nil, ErrReceiptInvalid
		}
		cut := func(length uint32) []byte {
			b = b[n:]
			n = int(length)
			return b[:n:n]
		}
		p, err := NewPolicy(string(cut(in.Name)), in.Limit)
		if err != nil {
			return nil, ErrReceiptInvalid // sealed by a version with other bounds
		}
		p.ID, p.Place = in.ID, in.Place
		h.returns = append(h.returns, Return{Counter: Counter{Policy: p, Subject: cut(in.Subject)}, N: in.N, Slot: in.Slot})
		var statuses []int
		for packed := cut(2 * uint32(in.Statuses)); len(packed) > 0; packed = packed[2:] {
			statuses = append(statuses, int(binary.LittleEndian.Uint16(packed)))
		}
		h.statuses = append(h.statuses, statuses)
		b = b[n:]
	}
	return h, nil
}
