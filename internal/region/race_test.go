//go:build race

package region

const slow = true
