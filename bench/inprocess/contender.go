package main

import (
	"hash/maphash"
	"regexp"
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
	// stats tells what a Weir store holds; nil for others.
	stats func() memstore.Stats
	close func()
}

// apart keeps what one goroutine writes out of the cache lines of another, which
// objects that are allocated one after the other would share.
type apart [128]byte

const (
	storeName = "Weir store"
	checkName = "Weir whole check"
	// amountName is a whole check that an amount decides.
	amountName = "Weir whole check, one amount"
	goLimiter  = "sethvargo/go-limiter 0.7.1"
)

// contenders are listed as the tables show them.
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

// pick returns the contenders whose name matches, and that keep says to keep.
func pick(names *regexp.Regexp, keep func(contender) bool) []contender {
	var picked []contender
	for _, c := range contenders {
		if names.MatchString(c.name) && keep(c) {
			picked = append(picked, c)
		}
	}
	return picked
}

func anyone(contender) bool { return true }

// openFloor does what no limiter can do without.
func openFloor(limit, int) (instance, error) {
	seed, start := maphash.MakeSeed(), time.Now()
	return instance{
		worker: func() check {
			return func(key string) bool {
				// Both count towards the answer, so that neither is optimized away.
				return maphash.String(seed, key)|uint64(time.Since(start)) != 0
			}
		},
		close: func() {},
	}, nil
}
