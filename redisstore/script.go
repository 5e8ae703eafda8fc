package redisstore

import (
	"crypto/sha1"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/weirhq/weir"
)

//go:embed lua
var files embed.FS

// script is Lua with the hash by which Redis knows it.
type script struct{ body, sha string }

func newScript(names ...string) script {
	var body []byte
	for _, name := range names {
		b, err := files.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // it is embedded
		}
		body = append(body, b...)
	}
	sum := sha1.Sum(body)
	return script{string(body), hex.EncodeToString(sum[:])}
}

var (
	decide    = newScript("begin", "log", "main")
	heartbeat = newScript("heartbeat")
)

type kind uint8

const (
	kindTake kind = iota
	kindGiveBack
	kindReset
)

// charge is one counter in an act, with what came back for it.
type charge struct {
	policy  *weir.Policy
	key     string
	n       int64
	slot    int64
	peek    bool
	want    int64 // more, to be lent,
	waiting int64 // of which some are waited for
	spent   int64 // of what was lent before, in that slot
	unspent bool  // what is given back was lent, and not spent
	slow    bool  // it is to be lent, or was, for longer than a moment
	ahead   bool  // what is yet to refill may be lent as well
	guest   bool  // it may make no new counter
	payer   int   // 1 + the index of the charge that takes for all that name this counter; 0: no other does

	fits   bool
	full   bool // it fits, but Redis has no memory for a new counter
	lent   int64
	ledger weir.Ledger // as it is now; of a log see reportLog
}

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
	flagPeek   = 1
	flagShadow = 2
	flagLend   = 4
	flagSlow   = 8
	flagAhead  = 16 // and slow

	flagGuest = 1 << 15 // added to a policy's number
)

// call encodes acts as arguments of the script.
type call struct {
	keys     []string
	policies []*weir.Policy
	body     []byte
}

func (c *call) encode(acts []*act, now, leastTTL int64) {
	c.keys = make([]string, 0, len(acts)+1)
	charges := make([]byte, 0, 16*len(acts)+32)
	for _, a := range acts {
		charges = append(charges, byte(a.kind))
		charges = appendUint(charges, 2, len(a.charges))
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
			if a.kind != kindTake {
				charges = appendUint(charges, 7, ch.slot)
			}
			flags := byte(0)
			if ch.peek {
				flags |= flagPeek
			}
			if ch.policy.Shadow {
				flags |= flagShadow
			}
			if ch.want > 0 || ch.unspent {
				flags |= flagLend
				if ch.slow {
					flags |= flagSlow
					if ch.ahead {
						flags |= flagAhead
					}
				}
			}
			charges = append(charges, flags)
			if ch.want > 0 {
				charges = appendUint(charges, 5, ch.want)
				if ch.slow {
					charges = appendUint(charges, 5, ch.spent)
					charges = appendUint(charges, 7, ch.slot)
				} else {
					charges = appendUint(charges, 5, ch.waiting)
				}
			}
		}
		if a.once != "" {
			c.keys = append(c.keys, a.once)
		}
	}
	c.body = make([]byte, 0, 64+64*len(c.policies)+len(charges))
	c.body = appendUint(c.body, 7, now)
	c.body = appendUint(c.body, 5, leastTTL)
	c.body = appendUint(c.body, 2, len(c.policies))
	c.body = appendUint(c.body, 2, len(acts))
	for _, p := range c.policies {
		f := field(p)
		c.body = append(append(c.body, f[:]...), byte(p.Limit.Algorithm))
		for _, n := range p.Numbers() {
			c.body = appendUint(c.body, 7, n)
		}
	}
	c.body = append(c.body, charges...)
}

// policy is the number by which the script knows a policy in this call.
func (c *call) policy(p *weir.Policy) int {
	i := slices.Index(c.policies, p)
	if i < 0 {
		i = len(c.policies)
		c.policies = append(c.policies, p)
	}
	return i + 1
}

func appendUint[T int | int64](b []byte, size int, v T) []byte {
	var full [8]byte
	binary.LittleEndian.PutUint64(full[:], uint64(v))
	return append(b, full[:size]...)
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
				c, head := &a.charges[i], r.uint(1)
				if c.full = head == 15; c.full {
					head, full = 1, true
				}
				c.fits, c.ledger, c.lent = head%2 == 1, r.ledger(head/2), 0
				if c.want > 0 {
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

// ledger reads a field of a hash in one of its forms, or what there is to say of a log.
func (r *replyReader) ledger(form int64) (l weir.Ledger) {
	if form != 0 && form != 4 {
		r.uint(1) // how long it takes to be whole again
	}
	switch form {
	case 0:
	case 1:
		l.State = weir.State{Time: r.uint(7), Level: r.uint(4)}
	case 2:
		l.State = weir.State{Time: r.uint(7), Level: r.int7()}
	case 3:
		l.State = weir.State{Time: r.uint(7), Level: r.uint(4), Prev: r.uint(4)}
	case 4:
		l.State = weir.State{Time: r.uint(7), Level: r.uint(7), Prev: r.uint(7)}
	case 5, 6:
		l.State = weir.State{Time: r.uint(7), Level: r.int7()}
		l.Recent = [2]int64{r.uint(5), r.uint(5)}
		if form == 6 {
			pace := r.uint(1)
			l.Pace, l.Phase = weir.Pace(pace%4), uint8(pace/4)
		}
	default:
		r.short = true
	}
	return l
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
