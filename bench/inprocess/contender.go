package main

import (
	"hash/maphash"
	"time"

	"github.com/weirhq/weir/memstore"
)

// contender is one way to limit, ready to be opened.
type contender struct {
	name string
	kind kind
	open func(l limit, keys int) (instance, error)
}

type kind uint8

const (
	weirs kind = iota
	rival
	floor
)

// check asks whether a request with this key is allowed.
type check func(key string) bool

// instance is a contender with a store of its own.
type instance struct {
	// worker returns a check for the use of one goroutine.
	worker func() check
	// stats reports what a Weir store holds; nil for others.
	stats func() memstore.Stats
	close func()
}

// padding keeps what one goroutine writes out of the cache lines of another, which objects that are allocated one after
// the other would share.
type padding [128]byte

const (
	storeName = "Weir store"
	checkName = "Weir whole check"
	// amountName is a whole check that an amount decides.
	amountName = "Weir whole check, one amount"
	goLimiter  = "sethvargo/go-limiter 0.7.1"
)

// contenders are listed in the order of the tables. Whatever a program would call to limit a key belongs side by side: a
// contender of Weir's beside the rival that it is held against.
var contenders = []contender{
	{storeName, weirs, openStore},
	{checkName, weirs, openLimiter},
	{amountName, weirs, openAmount},
	{goLimiter, rival, openGoLimiter},
	{"x/time/rate 0.16 in a sync.Map", rival, openTimeRate},
	{"throttled 2.15, GCRA", rival, openThrottled},
	{"ulule/limiter 3.11.2", rival, openUlule},
	{"go-chi/httprate 0.16.1", rival, openHTTPRate},
	{"floor: hash the key, read the clock", floor, openFloor},
}

// pick returns the contenders that the flags name and that keep keeps.
func pick(c *config, keep func(contender) bool) []contender {
	var picked []contender
	for _, o := range contenders {
		if c.Contenders.MatchString(o.name) && keep(o) {
			picked = append(picked, o)
		}
	}
	return picked
}

// openFloor does only what every limiter has to do.
func openFloor(limit, int) (instance, error) {
	seed, start := maphash.MakeSeed(), time.Now()
	return instance{
		worker: func() check {
			return func(key string) bool {
				// Both are part of the result, so that the compiler keeps both.
				return maphash.String(seed, key)|uint64(time.Since(start)) != 0
			}
		},
		close: func() {},
	}, nil
}
