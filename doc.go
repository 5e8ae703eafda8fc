// Package weir is a rate limiter. 100 requests a minute for each user take two lines:
//
//	limit := weir.New(weir.PerMinute(100))
//	if !limit.Allow(user) { … }
//
// With rules for endpoints, tiers and clients, [Compile] makes a [RuleSet], [NewLimiter] a [Limiter], and [Limiter.Check]
// decides a [Request]: it charges all limits that apply, or none. Package node reads rules from a file and counts in Redis.
// Package httplimit is the middleware.
//
// Checks are in whole microseconds, and allocate nothing. This package needs no others but Go's.
package weir
