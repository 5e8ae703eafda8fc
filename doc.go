// Package weir is a rate limiter. [New] limits by key, and [NewLimiter] by rules. Package node adds rule files and Redis, and
// package httplimit is HTTP middleware.
//
//	limit := weir.New(weir.PerMinute(100))
//	if !limit.Allow(user) { … }
package weir
