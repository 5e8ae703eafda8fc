// Package inuse counts how much of a shared resource is in use: in total, and by each user.
package inuse

import "sync"

// Count counts what is in use, in total and for each key. The zero Count is empty. It isn't safe for concurrent use;
// see [Places] for a type that is.
type Count[K comparable] struct {
	all int64
	by  map[K]int64
}

// Add adds n for a key, or subtracts if n is negative. Keys with a count of 0 take no memory.
func (c *Count[K]) Add(key K, n int64) {
	if c.by == nil {
		c.by = map[K]int64{}
	}
	c.all += n
	if c.by[key] += n; c.by[key] == 0 {
		delete(c.by, key)
	}
}

// All returns the total.
func (c *Count[K]) All() int64 { return c.all }

// Of returns what one key uses.
func (c *Count[K]) Of(key K) int64 { return c.by[key] }

// Places limits how many of something, such as connections, are in use at a time, in total and for each key. The zero
// Places is empty. It is safe for concurrent use.
type Places[K comparable] struct {
	mu    sync.Mutex
	taken Count[K] // guarded by mu
}

// Enter takes one place for a key. It returns false if all places are taken in total, or if the key has taken each of
// them. The caller must call Leave once for each Enter that returns true.
func (p *Places[K]) Enter(key K, all, each int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken.All() >= all || p.taken.Of(key) >= each {
		return false
	}
	p.taken.Add(key, 1)
	return true
}

// Leave gives one of the key's places back.
func (p *Places[K]) Leave(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken.Add(key, -1)
}

// Taken returns how many places are taken in all.
func (p *Places[K]) Taken() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken.All()
}
