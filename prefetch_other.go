//go:build !amd64 && !arm64

package weir

func prefetch(*byte) {}
