package weir

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"pgregory.net/rapid"
)

var (
	receiptSecret = []byte("the nodes' common secret")
	receiptTime   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// oldReceipts were sealed by a version without amounts, under the rules below and under rules with a split limit.
//
//go:embed testdata/receipts.txt
var oldReceipts string

// oldStore answers like the store of that version, and records what is given back.
type oldStore struct {
	once counter.Once
	keep time.Duration
	back []counter.Return
}

func (*oldStore) Take(_ context.Context, charges []counter.Charge, results []counter.Result) {
	for i := range results {
		results[i] = counter.Result{Allowed: true, Remaining: 1, Slot: receiptTime.UnixMicro() + int64(i)}
		if len(charges[i].Policy.Parts) > 0 {
			results[i].Part = 2
		}
	}
}

func (s *oldStore) GiveBack(_ context.Context, once counter.Once, keep time.Duration, back []counter.Return) error {
	s.once, s.keep, s.back = once, keep, back
	return nil
}

func (*oldStore) Reset(context.Context, []counter.Counter) error { return nil }

// oldLimiter returns a limiter of today's code with the rules under which the old receipts were sealed.
func oldLimiter(t *testing.T, split bool) (*Limiter, *oldStore) {
	t.Helper()
	rules := []Rule{
		{ID: "requests", Limits: []Limit{{Count: 100, Window: time.Minute, Burst: 20}}},
		{ID: "address", By: []string{"ip"}, Algorithm: FixedWindow, Limits: []Limit{{Count: 50, Window: time.Hour}}},
		{ID: "login", By: []string{"user", "ip"}, Algorithm: SlidingCounter, Cost: 3, Statuses: []int{401, 5}, Limits: []Limit{{Count: 30, Window: 24 * time.Hour}}},
		{ID: "queue", Algorithm: LeakyQueue, Limits: []Limit{{Count: 10, Window: time.Second, Refill: 2.5}}},
	}
	if split {
		rules = append(rules, Rule{ID: "busy", By: []string{}, Strict: true, Split: 4, Limits: []Limit{{Count: 10_000, Window: time.Second}}})
	}
	rs, err := Compile(Rules{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	s := new(oldStore)
	return NewLimiter(s, rs, Options{Secret: receiptSecret, Now: func() time.Time { return receiptTime }}), s
}

var oldRequest = Request{APIKey: "sk_prod_1", User: "u", IP: netip.MustParseAddr("198.51.100.1"), Cost: 5, Receipt: true}

// Receipts outlive an upgrade: this version reads those of the old version and gives back to the same counters.
func TestOldReceipts(t *testing.T) {
	for i, old := range strings.Fields(oldReceipts) {
		l, s := oldLimiter(t, i == 1)
		d, err := l.Check(t.Context(), &oldRequest)
		if err != nil || d.Receipt == "" {
			t.Fatal(d, err)
		}
		var said [2][]counter.Return
		var keep [2]time.Duration
		for j, receipt := range []string{d.Receipt, old} {
			if err := l.Finish(t.Context(), &Decision{Receipt: receipt}, Outcome{Abandoned: true}); err != nil || s.once == (counter.Once{}) {
				t.Fatalf("receipt %d: %v", i, err)
			}
			said[j], keep[j] = s.back, s.keep
		}
		if want := 4 + i; len(said[1]) != want || keep[0] != keep[1] {
			t.Errorf("receipt %d gives %d back for %s, want %d for %s", i, len(said[1]), keep[1], want, keep[0])
		}
		for j := range min(len(said[0]), len(said[1])) {
			a, b := fmt.Sprintf("%+v", told(said[0][j])), fmt.Sprintf("%+v", told(said[1][j]))
			if a != b {
				t.Errorf("receipt %d gives back\n%s, today's\n%s", i, b, a)
			}
		}
	}
}

// told returns the parts of a return that a store uses.
func told(r counter.Return) any {
	return struct {
		ID      uint64
		Place   uint16
		Name    string
		Limit   Limit
		Subject string
		N, Slot int64
		Used    int64
		Hold    *counter.Hold
	}{r.Policy.ID, r.Policy.Place, r.Policy.Name, r.Policy.Limit, string(r.Subject), r.N, r.Slot, r.Used, r.Hold}
}

// Receipts of requests without amounts haven't changed, except for the time at which they expire. So nodes of the old version
// can open them, too.
func TestReceiptsKeepTheirForm(t *testing.T) {
	forms := [][]byte{nil, []byte("places")}
	for i, old := range strings.Fields(oldReceipts) {
		l, _ := oldLimiter(t, i == 1)
		d, _ := l.Check(t.Context(), &oldRequest)
		var plain [2][]byte
		for j, receipt := range []string{old, d.Receipt} {
			box, err := base64.RawURLEncoding.DecodeString(receipt)
			if err != nil {
				t.Fatal(err)
			}
			if plain[j], err = l.sealer.Load().aead.Open(nil, nil, box, forms[i]); err != nil {
				t.Fatalf("receipt %d of version %d isn't of its form: %v", i, j, err)
			}
		}
		if from := len(counter.Once{}) + 8; !bytes.Equal(plain[0][from:], plain[1][from:]) {
			t.Errorf("receipt %d is\n%x, was\n%x", i, plain[1], plain[0])
		}
	}
}

// alone returns the policy of a limit that isn't in a rule.
func alone(t *testing.T, l Limit) *counter.Policy {
	t.Helper()
	p, err := counter.NewPolicy("test", l)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// drawDue draws the content of a receipt.
func drawDue(t *rapid.T) due {
	l := Limit{
		Algorithm: counter.Algorithm(rapid.IntRange(0, int(Concurrency)).Draw(t, "algorithm")),
		Count:     rapid.Int64Range(1, 1000).Draw(t, "count"),
		Window:    rapid.SampledFrom([]time.Duration{time.Second, time.Hour, 24 * time.Hour}).Draw(t, "window"),
	}
	var r due
	if a := l.Algorithm; a == TokenBucket || a == LeakyBucket || a == FixedWindow {
		if l.Decimal = rapid.Bool().Draw(t, "decimal"); l.Decimal {
			l.Fraction = counter.Amount(rapid.Int64Range(0, 999_999).Draw(t, "fraction"))
		}
	}
	if l.Algorithm <= LeakyQueue && rapid.Bool().Draw(t, "burst") {
		l.Burst, l.Refill = rapid.Int64Range(1, 1000).Draw(t, "of"), 2.5
	}
	if l.Algorithm == LeakyQueue {
		l.MaxDelay = time.Second
	}
	if l.Algorithm == FixedWindow && rapid.Bool().Draw(t, "on the calendar") {
		l.Calendar.Zone = rapid.SampledFrom([]string{"", "Europe/Berlin", "America/Santiago"}).Draw(t, "zone")
		switch l.Calendar.Unit = counter.CalendarUnit(rapid.IntRange(1, 3).Draw(t, "unit")); l.Calendar.Unit {
		case counter.Day:
			l.Window = 24 * time.Hour
		case counter.Week:
			l.Window, l.Calendar.Weekday = 7*24*time.Hour, time.Weekday(rapid.IntRange(0, 6).Draw(t, "weekday"))
		default:
			l.Window, l.Calendar.Day = 31*24*time.Hour, rapid.SampledFrom([]int{0, 1, 2, 14, 15, 28, 29, 30, 31}).Draw(t, "day")
		}
	}
	p, err := counter.NewPolicy(rapid.SampledFrom([]string{"a", "requests", "tokens-1h"}).Draw(t, "name"), l)
	if err != nil {
		t.Fatalf("%+v: %v", l, err)
	}
	p = p.With(func(d *counter.Definition) {
		d.ID, d.Place = rapid.Uint64Min(1).Draw(t, "id"), uint16(rapid.IntRange(0, 3).Draw(t, "place"))
	})
	p = p.With(func(d *counter.Definition) {
		d.Statuses = rapid.SampledFrom([][]int{nil, {401}, {4, 5, 302}}).Draw(t, "statuses")
	})
	r.Policy, r.Subject = p, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "subject")
	r.N, r.Slot = rapid.Int64Range(0, 1<<53).Draw(t, "n"), rapid.Int64Range(0, 1<<60).Draw(t, "slot")
	if rapid.Bool().Draw(t, "held") || l.Algorithm == Concurrency {
		r.Hold = &counter.Hold{For: time.Duration(rapid.Int64Range(0, int64(counter.RecordTime)).Draw(t, "for")), GiveBack: rapid.Bool().Draw(t, "back")}
		copy(r.Hold.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "hold"))
		if l.Decimal {
			r.amount, r.cost = rapid.SampledFrom([]string{"usd", "tokens"}).Draw(t, "amount"), rapid.Int64Range(1, counter.MaxTokens).Draw(t, "cost")
			for range rapid.IntRange(0, 4).Draw(t, "parts") {
				r.parts = append(r.parts, Weight{rapid.StringMatching(`[a-z_]{1,64}`).Draw(t, "part"), rapid.Int64Range(0, maxWeight).Draw(t, "each")})
			}
		}
	}
	return r
}

// The content of a receipt is the same after another node has opened it.
func TestReceiptsSurviveSealing(t *testing.T) {
	seal, open := newSealer(receiptSecret), newSealer(receiptSecret)
	rapid.Check(t, func(t *rapid.T) {
		var h held
		for range rapid.IntRange(1, 4).Draw(t, "returns") {
			h.add(drawDue(t))
		}
		later := time.Duration(rapid.Int64Range(0, int64(h.expires/time.Microsecond)-1).Draw(t, "later")) * time.Microsecond
		got, err := open.open(seal.seal(&h, receiptTime), receiptTime.Add(later))
		if err != nil || got.expires != h.expires-later || got.once == (counter.Once{}) || len(got.returns) != len(h.returns) {
			t.Fatalf("%+v, %v, want %+v", got, err, h)
		}
		for i := range h.returns {
			a, b := &h.returns[i], &got.returns[i]
			if x, y := told(a.Return), told(b.Return); !reflect.DeepEqual(x, y) {
				t.Fatalf("sealed %+v, opened %+v", x, y)
			}
			if !slices.Equal(a.statuses, b.statuses) || a.amount != b.amount || a.cost != b.cost || !slices.Equal(a.parts, b.parts) {
				t.Fatalf("sealed %+v, opened %+v", a, b)
			}
			if b.Policy.Amount != a.amount || b.Policy.GivesBack != (a.Hold != nil && a.Hold.GiveBack) || b.Policy.Numbers() != a.Policy.Numbers() {
				t.Fatalf("sealed %+v, opened %+v", a.Policy, b.Policy)
			}
		}
		if _, err := open.open(seal.seal(&h, receiptTime), receiptTime.Add(h.expires)); err != ErrReceiptExpired {
			t.Fatalf("when it had expired: %v", err)
		}
		if _, err := newSealer(nil).open(seal.seal(&h, receiptTime), receiptTime); err != ErrReceiptInvalid {
			t.Fatalf("under another secret: %v", err)
		}
	})
}

// Receipts of slots and reservations last for a day, because long requests renew their slots and reservations may be settled
// late.
func TestReceiptsOfHoldsLastADay(t *testing.T) {
	var h held
	h.add(due{Return: counter.Return{Counter: counter.Counter{Policy: alone(t, Limit{Algorithm: Concurrency, Count: 1, Window: time.Second})}}})
	if h.expires != counter.RecordTime {
		t.Errorf("that of a slot lasts %s", h.expires)
	}
	h = held{}
	h.add(due{amount: "usd", Return: counter.Return{Counter: counter.Counter{Policy: alone(t, Limit{Decimal: true, Count: 1, Window: time.Second})}}})
	if h.expires != counter.RecordTime {
		t.Errorf("that of a reservation lasts %s", h.expires)
	}
	h.add(due{Return: counter.Return{Counter: counter.Counter{Policy: alone(t, Limit{Count: 1, Window: 100 * time.Hour})}}})
	if h.expires != counter.RecordTime {
		t.Errorf("beside a limit over 100 hours it lasts %s", h.expires)
	}
	for window, want := range map[time.Duration]time.Duration{time.Second: time.Minute, 20 * time.Minute: 20 * time.Minute, 100 * time.Hour: time.Hour} {
		h = held{}
		if h.add(due{Return: counter.Return{Counter: counter.Counter{Policy: alone(t, Limit{Count: 1, Window: window})}}}); h.expires != want {
			t.Errorf("that of a limit over %s lasts %s, want %s", window, h.expires, want)
		}
	}
}

// FuzzReceipt: a forged receipt is rejected and does no harm.
func FuzzReceipt(f *testing.F) {
	s := newSealer(receiptSecret)
	f.Add([]byte(nil))
	f.Add([]byte("!"))
	f.Add(bytes.Repeat([]byte{0}, 28))
	f.Add(bytes.Repeat([]byte{255}, 200))
	for _, old := range strings.Fields(oldReceipts) {
		box, _ := base64.RawURLEncoding.DecodeString(old)
		for _, n := range []int{1, 12, 28, 40, len(box) - 1} {
			f.Add(box[:n])
		}
		for i := 0; i < len(box); i += 31 {
			bent := slices.Clone(box)
			bent[i] ^= 1
			f.Add(bent)
		}
		f.Add(append(slices.Clone(box), 0))
		f.Add([]byte(old + "="))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, receipt := range []string{string(b), base64.RawURLEncoding.EncodeToString(b)} {
			if h, err := s.open(receipt, receiptTime); err != ErrReceiptInvalid {
				t.Errorf("%q: %+v, %v", receipt, h, err)
			}
		}
	})
}

// A receipt in a later version's form is rejected, even if both versions have the same secret.
func TestReceiptsOfOtherForms(t *testing.T) {
	s := newSealer(receiptSecret)
	b := binary.LittleEndian.AppendUint64(make([]byte, len(counter.Once{})), uint64(receiptTime.Add(time.Hour).UnixMicro()))
	for form, want := range map[string]error{"": nil, "places": nil, "more": nil, "tomorrow's": ErrReceiptInvalid} {
		box := base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, b, []byte(form)))
		if _, err := s.open(box, receiptTime); err != want {
			t.Errorf("%q: %v, want %v", form, err, want)
		}
	}
}
