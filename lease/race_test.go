//go:build race

package lease

const slow = true
