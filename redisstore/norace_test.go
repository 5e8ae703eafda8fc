//go:build !race

package redisstore

const slowness = 1
