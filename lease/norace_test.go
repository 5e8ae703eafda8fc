//go:build !race

package lease

const slow = false
