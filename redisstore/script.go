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

// charge is one counter in an act, with what came back for it.
type charge struct {
	policy  *counter.Policy
	key     string
	n       int64
	slot    int64 // of what is given back; of what was lent, its interval
	peek    bool
	waiting int64 // more, to be lent: other requests wait for it,
	want    int64 // or the node is likely to need it
	claim   ledger.Claim
	guest   bool // it may make no new counter
	again   bool // it is sent as a peek, since another one takes for it
	payer   int  // 1 + the index of the charge that takes for all that name this counter; 0: no other does
	hold    *counter.Hold
	used    int64 // of what is given back with a hold
	record  bool  // counter.Return.Recorded: it goes back only if the hold's record is there

	fits    bool
	full    bool // it fits, but Redis has no memory for a new counter or hold
	there   bool // its hold was there already, and nothing was taken
	lent    int64
	account ledger.Account // as it is now; for logs and slots see report
}

// lends reports whether the charge asks for tokens to hold.
func (c *charge) lends() bool { return c.waiting > 0 || c.want > 0 }

// act is what happens at once: a take, or counters given back or reset. Its keys share a tag where that matters.
type act struct {
	kind    kind
	charges []charge
	once    string // marks it as done; "" if it may happen again
	keep    int64  // ms to remember that

	now  int64 // when Redis decided, µs
	used bool  // it had been done before
	full bool  // Redis has no memory to mark it as done, so it isn't
}

const (
	flagPeek         = 1
	flagRecorded     = 1 // in place of flagPeek, for charges that are given back
	flagShadow       = 2
	flagLend         = 4
	flagClaim        = 8
	flagCountRefused = 16
	flagBook         = 32
	flagAgain        = 64
	flagHold         = 128

	flagGuest = 1 << 15 // added to a policy's number

	// Marks of a policy, added to its algorithm.
	markHolds     = 16 // this call looks at its holds
	markGivesBack = 32
	markCalendar  = 64
	markDecimal   = 128
)

// call encodes acts as arguments of the script.
type call struct {
	keys     []string
	policies []*counter.Policy
	few      [2]*counter.Policy // behind policies, mostly
	held     []*counter.Policy  // of those, the ones whose holds are looked at for a charge of this call
	clock    func() time.Time   // Redis' time, about
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
				bit(ch.policy.Shadow || ch.again && ch.policy.Book, flagShadow) // which must not refuse
			switch {
			case a.kind != kindTake:
			case ch.policy.Book:
				flags |= flagBook
			case ch.policy.CountRefused && ch.policy.Limit.Algorithm == counter.FixedWindow:
				flags |= flagCountRefused
			}
			// It must not write over what the other takes.
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
			numbers[3] = ledger.Interval(p).Microseconds() // in place of a queue's longest delay
		}
		c.body = appendUint(c.body, 7, numbers[:]...)
	}
	if held {
		c.addHolds(acts)
	}
	c.body = append(c.body, charges...)
}

// holds reports whether the holds of a policy are looked at in this call.
func (c *call) holds(p *counter.Policy) bool {
	return p.GivesBack || p.Limit.Algorithm == counter.Concurrency || slices.Contains(c.held, p)
}

func (c *call) marks(p *counter.Policy) byte {
	return bit(c.holds(p), markHolds) | bit(p.GivesBack, markGivesBack) |
		bit(p.Limit.Calendar.Unit != counter.NoUnit, markCalendar) | bit(p.Limit.Decimal, markDecimal)
}

// bit is a flag if it is on.
func bit(on bool, flag byte) byte {
	if on {
		return flag
	}
	return 0
}

// addHolds adds the keys of holds. The script takes them from the end on, so that it finds all the others where they are
// without any.
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

// appendHold encodes a hold, and what to do with it.
func (c *charge) appendHold(b []byte, k kind) []byte {
	const longest = 1e15 // µs: later ends would be too large for the script's numbers
	b = append(b, c.hold.ID[:]...)
	if k != kindTake {
		return appendUint(b, 7, c.used)
	}
	b = appendUint(b, 7, min(max(0, c.hold.For.Microseconds()), longest))
	return append(b, bit(c.hold.GiveBack, 1))
}

// policy is the number by which the script knows a policy in this call.
func (c *call) policy(p *counter.Policy) int64 {
	i := slices.Index(c.policies, p)
	if i < 0 {
		i = len(c.policies)
		c.policies = append(c.policies, p)
	}
	return int64(i + 1)
}

// appendUint appends numbers of so many bytes each.
func appendUint(b []byte, size int, numbers ...int64) []byte {
	for _, n := range numbers {
		var full [8]byte
		binary.LittleEndian.PutUint64(full[:], uint64(n))
		b = append(b, full[:size]...)
	}
	return b
}

var errReply = errors.New("redis: the script's reply makes no sense: is another version of it in use?")

// decode reads the script's reply into the acts. It returns the keys whose data was dropped, and whether memory was
// missing.
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

// Forms of a field, as in main.lua.
const (
	formNone    = 0
	formSmall   = 241
	formLarge   = 242
	formPair    = 243
	formAccount = 244
	formLog     = 245
)

// account reads a field of a hash in one of its forms, or what there is to say of a log or of slots.
func (r *replyReader) account() (a ledger.Account) {
	form := r.uint(1)
	if form != formNone && form != formLog {
		r.uint(1) // how long it takes to be full again
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

// int7 is a number of seven bytes with a sign.
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
