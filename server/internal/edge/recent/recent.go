// Package recent remembers what was made lately of what callers bring.
package recent

import "sync"

// Cache remembers values that cost more to make than to look up. It holds at most two generations: a caller
// that brings new keys each time only has the old ones evicted. The zero Cache is empty. It is safe for
// concurrent use.
type Cache[K comparable, V any] struct {
	mu         sync.Mutex
	young, old map[K]entry[K, V] // guarded by mu
}

// entry has its key beside it: one that is looked up may be part of a larger text, which isn't to be kept.
type entry[K comparable, V any] struct {
	key   K
	value V
}

// Generation is how many values make one.
const Generation = 1024

// Get returns the value of a key. One that isn't there is made, with the key to keep it by; after an error
// nothing is kept.
func (c *Cache[K, V]) Get(key K, make func(K) (K, V, error)) (V, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.young[key]; ok {
		return e.value, nil
	}
	e, ok := c.old[key]
	if !ok {
		var err error
		if e.key, e.value, err = make(key); err != nil {
			return e.value, err
		}
	}
	if c.young == nil || len(c.young) == Generation {
		c.old, c.young = c.young, map[K]entry[K, V]{}
	}
	c.young[e.key] = e
	return e.value, nil
}
