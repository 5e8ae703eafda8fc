package compare

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/internal/load"
)

// Limit is the limit that every contender enforces: a bucket of tokens that refills by one token per interval.
type Limit struct {
	Tokens int64
	Every  time.Duration
}

// PerSecond returns how many tokens per second are refilled.
func (l Limit) PerSecond() float64 { return 1 / l.Every.Seconds() }

// Window returns how long the whole bucket takes to fill.
func (l Limit) Window() time.Duration { return time.Duration(l.Tokens) * l.Every }

func (l Limit) weir() weir.Limit {
	return weir.Limit{Count: l.Tokens, Window: time.Hour, Refill: l.PerSecond()}
}

// Check returns ErrRefused if a request isn't allowed. It takes no context, since some clients are slower with one.
type Check func(key string) error

// ErrRefused is the error of a [Check] for a request over the limit.
var ErrRefused = errors.New("refused")

// Limiter is a contender with its own store.
type Limiter struct {
	Worker func() Check          // returns a check for one goroutine
	Stats  func() memstore.Stats // returns the statistics of a store in this process; nil if it has none
}

// Shared returns a limiter with one check for all goroutines.
func Shared(check Check) *Limiter {
	return &Limiter{Worker: func() Check { return check }}
}

// Target returns a target that sends load with the given keys to the limiter.
func (l *Limiter) Target(keys Keys) load.Target { return target{l, keys} }

// Fill checks each key from first to last-1 once, in the given number of goroutines.
func (l *Limiter) Fill(r *command.Run, keys Keys, first, last, goroutines int) {
	var group sync.WaitGroup
	var next atomic.Int64
	next.Store(int64(first))
	errs := make([]error, goroutines)
	for i := range errs {
		group.Go(func() {
			check := l.Worker()
			for errs[i] == nil && r.Err() == nil {
				n := next.Add(1) - 1
				if n >= int64(last) {
					return
				}
				errs[i] = check(keys.At(uint32(n)))
			}
		})
	}
	group.Wait()
	command.Check(errors.Join(append(errs, r.Err())...))
}

type target struct {
	limiter *Limiter
	keys    Keys
}

func (t target) String() string      { return "limiter" }
func (t target) Sender() load.Sender { return sender{t.limiter.Worker(), t.keys} }

type sender struct {
	check Check
	keys  Keys
}

var _ load.Batcher = sender{}

func (s sender) Send(_ context.Context, n uint32) load.Answer {
	err := s.check(s.keys.At(n))
	switch {
	case err == nil:
		return load.Answer{}
	case errors.Is(err, ErrRefused):
		return load.Answer{Outcome: load.Refused}
	}
	return load.Answer{Outcome: load.Failed, Err: err}
}

func (s sender) SendBatch(clients []uint32) (refused int64) {
	for _, n := range clients {
		if s.check(s.keys.At(n)) != nil {
			refused++
		}
	}
	return refused
}

// Keys are API keys such as sk_prod_9e3779b97f4a7c15. They are stored in one string, because scanning many strings for
// garbage collection would slow down contenders that allocate.
type Keys struct{ all string }

const (
	keyPrefix = "sk_prod_"
	keyLength = len(keyPrefix) + 16
)

// MakeKeys makes n keys, the same in every run.
func MakeKeys(n int) Keys {
	var b strings.Builder
	b.Grow(n * keyLength)
	var id [8]byte
	var text [16]byte
	for i := range n {
		binary.BigEndian.PutUint64(id[:], scramble(uint64(i)))
		hex.Encode(text[:], id[:])
		b.WriteString(keyPrefix)
		b.Write(text[:])
	}
	return Keys{b.String()}
}

// At returns the i-th key.
func (k Keys) At(i uint32) string { return k.all[int(i)*keyLength:][:keyLength] }

// scramble maps each number to a different number (splitmix64).
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
