//go:build amd64 || arm64

package weir

// prefetch begins to bring what p points at into the cache, and waits for nothing.
//
//go:noescape
func prefetch(p *byte)
