//go:build !amd64 && !arm64

package memstore

func prefetch(*slot) {}
