package weir

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"time"

	"github.com/weirhq/weir/counter"
)

// sealer makes receipts. They are encrypted, not just signed, because they contain a client's name and limits, and callers tend
// to log them.
type sealer struct{ aead cipher.AEAD }

func newSealer(secret []byte) *sealer {
	key := sha256.Sum256(append([]byte("weir receipt 2 "), secret...)) // 2 is the version of the content
	if secret == nil {
		_, _ = rand.Read(key[:]) // never fails
	}
	block, _ := aes.NewCipher(key[:]) // can't fail, since the key has a valid length
	aead, _ := cipher.NewGCMWithRandomNonce(block)
	return &sealer{aead}
}

// sealed is one limit in a receipt. After it come the policy's name, the subject and the statuses.
type sealed struct {
	Limit           sealedLimit
	ID              uint64
	N, Slot         int64
	Name, Subject   uint32
	Statuses, Place uint16
}

// sealedLimit is the part of a Limit that every receipt contains.
type sealedLimit struct {
	Algorithm     counter.Algorithm
	Count, Window int64
	Burst         int64
	Refill        float64
	MaxDelay      int64
}

// sealedMore follows each limit in receipts with amounts, slots, calendars or global limits. After it come the zone, the
// amount's name, the home, and the amount's parts. A part is its weight, the length of its name, and the name.
type sealedMore struct {
	Decimal      bool
	Fraction     counter.Amount
	Unit         counter.CalendarUnit
	Day, Weekday uint8
	Held         uint8 // 0 for none, 1, or 3 if the caller chose its ID; the previous version reads 3 as 1
	Hold         counter.Once
	For          int64
	GiveBack     bool
	Cost         int64
	Zone, Amount uint16
	Parts        uint16
	Scope        uint8 // see scopeOf
	Home         uint16
}

// Forms of receipts. Nodes can't read receipts in a form that they don't know.
var (
	withPlaces = []byte("places") // a limit is split
	withMore   = []byte("more")   // each limit has a sealedMore
)

func (s *sealer) seal(h *held, now time.Time) string {
	once := h.name()
	b := binary.LittleEndian.AppendUint64(once[:], uint64(now.Add(h.expires).UnixMicro()))
	var form []byte
	more := false
	returns := slices.DeleteFunc(slices.Clone(h.returns), func(r due) bool { return r.local })
	for _, r := range returns {
		if r.Policy.Place != 0 {
			form = withPlaces
		}
		l := r.Policy.Limit
		more = more || r.Hold != nil || l.Decimal || l.Calendar.Unit != counter.NoUnit || r.Policy.Global
	}
	if more {
		form = withMore
	}
	for _, r := range returns {
		p, l := r.Policy, r.Policy.Limit
		b, _ = binary.Append(b, binary.LittleEndian, sealed{
			sealedLimit{l.Algorithm, l.Count, int64(l.Window), l.Burst, l.Refill, int64(l.MaxDelay)},
			p.ID, r.N, r.Slot, uint32(len(p.Name)), uint32(len(r.Subject)), uint16(len(r.statuses)), p.Place})
		b = append(append(b, p.Name...), r.Subject...)
		for _, status := range r.statuses {
			b = binary.LittleEndian.AppendUint16(b, uint16(status))
		}
		if more {
			b = sealMore(b, &r)
		}
	}
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, b, form))
}

// name returns the receipt's idempotency key. If a check is repeated, both receipts have the same key.
func (h *held) name() (once counter.Once) {
	for _, r := range h.returns {
		if r.Hold != nil && r.Hold.ID != (counter.Once{}) {
			sum := sha256.Sum256(append([]byte("weir receipt of a hold "), r.Hold.ID[:]...))
			copy(once[:], sum[:])
			return once
		}
	}
	_, _ = rand.Read(once[:])
	return once
}

// scopeOf encodes where a limit is counted: 0 for limits that aren't Global, 1 for those with Travels, and Floor + 2 for others.
func scopeOf(p *counter.Policy) uint8 {
	switch {
	case !p.Global:
		return 0
	case p.Travels:
		return 1
	}
	return uint8(p.Floor) + 2
}

func sealMore(b []byte, r *due) []byte {
	l := r.Policy.Limit
	more := sealedMore{
		Decimal: l.Decimal, Fraction: l.Fraction, Unit: l.Calendar.Unit, Day: uint8(l.Calendar.Day), Weekday: uint8(l.Calendar.Weekday),
		Cost: r.cost, Zone: uint16(len(l.Calendar.Zone)), Amount: uint16(len(r.amount)), Parts: uint16(len(r.parts)), Scope: scopeOf(r.Policy), Home: uint16(len(r.Policy.Home)),
	}
	if r.Hold != nil {
		more.Held, more.Hold, more.For, more.GiveBack = 1, r.Hold.ID, int64(r.Hold.For), r.Hold.GiveBack
		if r.named {
			more.Held = 3
		}
	}
	b, _ = binary.Append(b, binary.LittleEndian, more)
	b = append(append(append(b, l.Calendar.Zone...), r.amount...), r.Policy.Home...)
	for _, w := range r.parts {
		b = binary.LittleEndian.AppendUint64(b, uint64(w.Each))
		b = append(binary.LittleEndian.AppendUint16(b, uint16(len(w.Amount))), w.Amount...)
	}
	return b
}

func (s *sealer) open(receipt string, now time.Time) (*held, error) {
	box, err := base64.RawURLEncoding.DecodeString(receipt)
	if err != nil {
		return nil, ErrReceiptInvalid
	}
	for i, form := range [][]byte{nil, withPlaces, withMore} {
		if b, err := s.aead.Open(nil, nil, box, form); err == nil {
			return (&unsealer{b: b, more: i == 2}).read(now) // b was written by seal
		}
	}
	return nil, ErrReceiptInvalid
}

// unsealer reads the content that seal wrote.
type unsealer struct {
	b    []byte
	more bool
}

func (u *unsealer) cut(n int) []byte {
	out := u.b[:n:n]
	u.b = u.b[n:]
	return out
}

func (u *unsealer) uint16() int { return int(binary.LittleEndian.Uint16(u.cut(2))) }

// fixed reads a struct of fixed length.
func (u *unsealer) fixed(into any) error {
	n, err := binary.Decode(u.b, binary.LittleEndian, into)
	if err != nil {
		return ErrReceiptInvalid
	}
	u.b = u.b[n:]
	return nil
}

func (u *unsealer) read(now time.Time) (*held, error) {
	h := &held{}
	copy(h.once[:], u.cut(len(h.once)))
	h.expires = time.UnixMicro(int64(binary.LittleEndian.Uint64(u.cut(8)))).Sub(now)
	if h.expires <= 0 {
		return nil, ErrReceiptExpired
	}
	for len(u.b) > 0 {
		r, err := u.due()
		if err != nil {
			return nil, err
		}
		h.returns = append(h.returns, r)
		h.age = max(h.age, r.life()-h.expires)
	}
	return h, nil
}

func (u *unsealer) due() (r due, err error) {
	var in sealed
	if err := u.fixed(&in); err != nil {
		return r, err
	}
	name := string(u.cut(int(in.Name)))
	r.Subject, r.N, r.Slot = u.cut(int(in.Subject)), in.N, in.Slot
	for range in.Statuses {
		r.statuses = append(r.statuses, u.uint16())
	}
	l := Limit{Algorithm: in.Limit.Algorithm, Count: in.Limit.Count, Window: time.Duration(in.Limit.Window), Burst: in.Limit.Burst, Refill: in.Limit.Refill, MaxDelay: time.Duration(in.Limit.MaxDelay)}
	if u.more {
		if err := u.readMore(&r, &l); err != nil {
			return r, err
		}
	}
	r.Policy, err = counter.Define(counter.Definition{
		Name: name, Limit: l, ID: in.ID, Place: in.Place, Amount: r.amount, GivesBack: r.Hold != nil && r.Hold.GiveBack,
		Global: r.scope > 0, Home: r.home, Travels: r.scope == 1, Floor: max(0, int(r.scope)-2),
	})
	if err != nil {
		return r, ErrReceiptInvalid // it was made by a version with other bounds
	}
	return r, nil
}

func (u *unsealer) readMore(r *due, l *Limit) error {
	var in sealedMore
	if err := u.fixed(&in); err != nil {
		return err
	}
	l.Decimal, l.Fraction, r.cost = in.Decimal, in.Fraction, in.Cost
	l.Calendar = counter.Calendar{Unit: in.Unit, Day: int(in.Day), Weekday: time.Weekday(in.Weekday), Zone: string(u.cut(int(in.Zone)))}
	r.amount, r.home, r.scope = string(u.cut(int(in.Amount))), string(u.cut(int(in.Home))), in.Scope
	for range in.Parts {
		each := int64(binary.LittleEndian.Uint64(u.cut(8)))
		r.parts = append(r.parts, Weight{Amount: string(u.cut(u.uint16())), Each: each})
	}
	if r.named = in.Held == 3; in.Held != 0 {
		r.Hold = &counter.Hold{ID: in.Hold, For: time.Duration(in.For), GiveBack: in.GiveBack}
	}
	return nil
}
