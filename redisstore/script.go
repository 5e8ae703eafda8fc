package redisstore

import (
	"embed"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/ledger"
)

//go:embed lua
var files embed.FS

var (
	decide    = rediscall.NewScript(files, "begin", "log", "lend", "hold", "main")
	heartbeat = rediscall.NewScript(files, "heartbeat")
	listPeers = rediscall.NewScript(files, "peers")
)

type kind uint8

const (
	kindTake kind = iota
	kindGiveBack
	kindReset
	kindTakeBack
)

// charge is one counter in an act: what to do with it, and then what Redis answered.
type charge struct {
	policy  *counter.Policy
	key     string
	n       int64
	slot    int64 // when giving back: the Slot of the charge that took; for lent tokens, their interval
	peek    bool
	waiting int64 // how many tokens to lend because other requests wait for them
	want    int64 // how many tokens to lend because the node is likely to need them
	claim   ledger.Claim
	guest   bool // it must not make a new counter
	again   bool // it is sent as a peek, since another charge takes for it
	payer   int  // 1 + the index of the charge that takes for all charges of this counter; 0: this is the only one
	hold    *counter.Hold
	used    int64 // how much of a hold was used, in an act that gives back
	record  bool  // give back only if the hold's record is there: see counter.Return

	fits    bool
	full    bool           // it fits, but Redis has no memory for a new counter or hold
	there   bool           // its hold existed already, so nothing was taken
	lent    int64          // how many tokens were lent
	account ledger.Account // the counter's state afterward; for logs and slots see charge.report
}

// lends reports whether the charge asks to borrow tokens.
func (c *charge) lends() bool { return c.waiting > 0 || c.want > 0 }

// act is a set of charges that one script call decides together: a take, a return or a reset. In a Cluster, its keys
// share a tag.
type act struct {
	kind    kind
	charges []charge
	once    string // the key that marks it as done; "" if it may be repeated
	keep    int64  // how long that mark is kept, in ms

	now  int64 // when Redis decided, µs
	used bool  // it was marked as done before, so nothing happened
	full bool  // Redis has no memory for the mark, so nothing happened
}

const (
	flagPeek         = 1
	flagRecorded     = 1 // the bit of flagPeek means this in acts that give back
	flagShadow       = 2
	flagLend         = 4
	flagClaim        = 8
	flagCountRefused = 16
	flagBook         = 32
	flagAgain        = 64
	flagHold         = 128

	flagGuest = 1 << 15 // added to the number of a policy

	// Marks of a policy, added to the number of its algorithm.
	markHolds     = 16 // the call looks at its holds
	markGivesBack = 32
	markCalendar  = 64
	markDecimal   = 128
)

// call encodes acts as keys and arguments of the script.
type call struct {
	keys     []string
	policies []*counter.Policy
	few      [2]*counter.Policy // the array behind policies in most calls
	held     []*counter.Policy  // policies whose holds the call looks at because of one of its charges
	clock    func() time.Time   // Redis' time, estimated
	body     []byte
}

func (c *call) encode(acts []*act, now, leastTTL int64, node uint32) {
	c.keys, c.policies = make([]string, 0, len(acts)+1), c.few[:0]
	var few [256]byte
	charges := few[:0]
	for _, a := range acts {
		charges = append(charges, byte(a.kind))
		charges = appendUint(charges, 2, int64(len(a.charges)))
		if a.kind == kindGiveBack {
			charges = appendUint(charges, 6, a.keep)
		}
		for i := range a.charges {
			ch := &a.charges[i]
			c.keys = append(c.keys, ch.key)
			number := c.policy(ch.policy)
			if ch.guest {
				number += flagGuest
			}
			charges = appendUint(charges, 2, number)
			charges = appendUint(charges, 7, ch.n)
			flags := bit(ch.peek, flagPeek) | bit(ch.record, flagRecorded) | bit(ch.lends(), flagLend) |
				bit(ch.claim.Base > 0, flagClaim) | bit(ch.hold != nil, flagHold) |
				bit(ch.policy.Shadow || ch.again && ch.policy.Book, flagShadow) // these charges must not refuse the others
			switch {
			case a.kind != kindTake:
			case ch.policy.Book:
				flags |= flagBook
			case ch.policy.CountRefused && ch.policy.Limit.Algorithm == counter.FixedWindow:
				flags |= flagCountRefused
			}
			// The peek of such a charge must not overwrite the debit of the paying charge.
			flags |= bit(ch.again && flags&(flagCountRefused|flagBook) != 0, flagAgain)
			if (ch.hold != nil || a.kind == kindReset) && !slices.Contains(c.held, ch.policy) {
				c.held = append(c.held, ch.policy)
			}
			charges = append(charges, flags)
			if a.kind != kindTake {
				charges = appendUint(charges, 7, ch.slot)
			}
			if ch.lends() {
				charges = appendUint(charges, 5, ch.waiting, ch.want)
			}
			if cl := &ch.claim; cl.Base > 0 {
				level := cl.State.Level
				if ch.policy.Limit.Algorithm != counter.TokenBucket {
					level = ch.policy.Limit.Max()*1_000_000 - level
				}
				charges = appendUint(charges, 7, cl.Base, cl.State.Time, level)
				charges = appendUint(charges, 5, cl.Held)
			}
			if ch.hold != nil {
				charges = ch.appendHold(charges, a.kind)
			}
		}
		if a.once != "" {
			c.keys = append(c.keys, a.once)
		}
	}
	c.body = make([]byte, 0, 64+64*len(c.policies)+len(charges))
	c.body = appendUint(c.body, 7, now)
	c.body = appendUint(c.body, 5, leastTTL)
	c.body = appendUint(c.body, 3, int64(node))
	c.body = appendUint(c.body, 2, int64(len(c.policies)), int64(len(acts)))
	held := false
	for _, p := range c.policies {
		f := field(p)
		c.body = append(append(c.body, f[:]...), byte(p.Limit.Algorithm)+c.marks(p))
		held = held || c.holds(p)
		numbers := p.Numbers()
		switch {
		case p.Limit.Calendar.Unit != counter.NoUnit:
			edges := p.Edges(c.clock().UnixMicro())
			copy(numbers[1:], edges[:])
		case p.Limit.Algorithm <= counter.LeakyBucket && !p.Book:
			numbers[3] = ledger.Interval(p).Microseconds() // in place of a leaky queue's longest delay
		}
		c.body = appendUint(c.body, 7, numbers[:]...)
	}
	if held {
		c.addHolds(acts)
	}
	c.body = append(c.body, charges...)
}

// holds reports whether the call looks at the holds of a policy.
func (c *call) holds(p *counter.Policy) bool {
	return p.GivesBack || p.Limit.Algorithm == counter.Concurrency || slices.Contains(c.held, p)
}

func (c *call) marks(p *counter.Policy) byte {
	return bit(c.holds(p), markHolds) | bit(p.GivesBack, markGivesBack) |
		bit(p.Limit.Calendar.Unit != counter.NoUnit, markCalendar) | bit(p.Limit.Decimal, markDecimal)
}

// bit returns the flag if it is on, and otherwise 0.
func bit(on bool, flag byte) byte {
	if on {
		return flag
	}
	return 0
}

// addHolds adds the keys of holds after all others, in reverse order. The script reads them from the end, so the other
// keys are in the same place as in a call without holds.
func (c *call) addHolds(acts []*act) {
	for _, a := range slices.Backward(acts) {
		for i := range slices.Backward(a.charges) {
			if ch := &a.charges[i]; c.holds(ch.policy) {
				records, ends := ch.holdNames()
				c.keys = append(c.keys, records, ends)
			}
		}
	}
}

// appendHold encodes a charge's hold: its ID, then for a take how long it lasts and whether it gives back, otherwise how
// much of it was used.
func (c *charge) appendHold(b []byte, k kind) []byte {
	const longest = 1e15 // µs: later ends would be too large for the script's numbers
	b = append(b, c.hold.ID[:]...)
	if k != kindTake {
		return appendUint(b, 7, c.used)
	}
	b = appendUint(b, 7, min(max(0, c.hold.For.Microseconds()), longest))
	return append(b, bit(c.hold.GiveBack, 1))
}

// policy returns the number by which the script knows a policy in this call.
func (c *call) policy(p *counter.Policy) int64 {
	i := slices.Index(c.policies, p)
	if i < 0 {
		i = len(c.policies)
		c.policies = append(c.policies, p)
	}
	return int64(i + 1)
}

// appendUint appends numbers of size bytes each, in little-endian order.
func appendUint(b []byte, size int, numbers ...int64) []byte {
	for _, n := range numbers {
		var full [8]byte
		binary.LittleEndian.PutUint64(full[:], uint64(n))
		b = append(b, full[:size]...)
	}
	return b
}

var errReply = errors.New("redis: the script's reply makes no sense: is another version of it in use?")

// decode reads the script's reply into the acts. It returns the keys whose data was invalid and was dropped, and whether
// Redis was short of memory.
func decode(reply string, acts []*act) (dropped []string, full bool, err error) {
	r := replyReader{rest: reply}
	now := r.uint(7)
	for _, a := range acts {
		a.now = now
		switch a.kind {
		case kindTake:
			for i := range a.charges {
				c, answer := &a.charges[i], r.uint(1)
				c.fits, c.full, c.there, c.account, c.lent = answer > 0, answer == 2, answer == 3, r.account(), 0
				full = full || c.full
				if c.lends() {
					c.lent = r.uint(5)
				}
			}
		case kindGiveBack:
			mark := r.uint(1)
			a.used, a.full = mark == 0, mark == 2
			full = full || a.full
		}
	}
	for r.rest != "" {
		n := int(r.uint(2))
		if n > len(r.rest) {
			return nil, full, errReply
		}
		dropped = append(dropped, r.rest[:n])
		r.rest = r.rest[n:]
	}
	if r.short {
		return nil, full, errReply
	}
	return dropped, full, nil
}

type replyReader struct {
	rest  string
	short bool
}

// Forms in which a field is encoded, as in main.lua.
const (
	formNone    = 0
	formSmall   = 241
	formLarge   = 242
	formPair    = 243
	formAccount = 244
	formLog     = 245
)

// account reads a field of a hash in one of its forms, or a summary of a log or of slots: see charge.report.
func (r *replyReader) account() (a ledger.Account) {
	form := r.uint(1)
	if form != formNone && form != formLog {
		r.uint(1) // how long it takes to be full again, which isn't needed here
	}
	switch form {
	case formNone:
	case formSmall:
		a.State = counter.State{Time: r.uint(7), Level: r.uint(4)}
	case formLarge:
		a.State = counter.State{Time: r.uint(7), Level: r.int7()}
	case formPair:
		a.State = counter.State{Time: r.uint(7), Level: r.uint(4), Prev: r.uint(4)}
	case formLog:
		a.State = counter.State{Time: r.uint(7), Level: r.uint(7), Prev: r.uint(7)}
	case formAccount:
		a.State = counter.State{Time: r.uint(7), Level: r.int7()}
		a.Lent = [2]int64{r.uint(5), r.uint(5)}
		a.Since, a.Node, a.Streak = r.uint(7), uint32(r.uint(3)), uint8(r.uint(1))
	default:
		r.short = true
	}
	return a
}

// int7 reads a signed number of seven bytes.
func (r *replyReader) int7() int64 { return r.uint(7) << 8 >> 8 }

func (r *replyReader) uint(size int) int64 {
	if len(r.rest) < size {
		r.short, r.rest = true, ""
		return 0
	}
	var v int64
	for i := size - 1; i >= 0; i-- {
		v = v<<8 | int64(r.rest[i])
	}
	r.rest = r.rest[size:]
	return v
}
