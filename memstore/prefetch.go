//go:build amd64 || arm64

package memstore

// prefetch begins to bring a slot and those behind it into the cache, and waits for
// nothing. Reading the clock takes a good part of the time that memory needs, and
// would otherwise come before or after it: the processor starts no load across it.
//
//go:noescape
func prefetch(s *slot)
