package weir

import (
	"time"

	"github.com/weirhq/weir/counter"
)

// Limit is an algorithm with its numbers: 100 per minute, burst 20.
type Limit = counter.Limit

// Algorithm says how a limit counts.
type Algorithm = counter.Algorithm

// The algorithms: see [counter.Algorithm].
const (
	TokenBucket    = counter.TokenBucket
	LeakyBucket    = counter.LeakyBucket
	LeakyQueue     = counter.LeakyQueue
	FixedWindow    = counter.FixedWindow
	SlidingLog     = counter.SlidingLog
	SlidingCounter = counter.SlidingCounter
	Concurrency    = counter.Concurrency
)

// PerSecond is a token bucket of n tokens a second.
func PerSecond(n int64) Limit { return counter.PerSecond(n) }

// PerMinute is a token bucket of n tokens a minute.
func PerMinute(n int64) Limit { return counter.PerMinute(n) }

// PerHour is a token bucket of n tokens an hour.
func PerHour(n int64) Limit { return counter.PerHour(n) }

// ParseLimit reads "100/minute", "5/15m", "20 per second", and "50/month", which is the calendar's.
func ParseLimit(s string) (Limit, error) { return counter.ParseLimit(s) }

// ParseWindow reads a length of time: "minute", "15m", "90s", "1h30m", "2 days".
func ParseWindow(s string) (time.Duration, error) { return counter.ParseWindow(s) }

// Amount is a decimal number, kept exactly in millionths: 1,500 tokens, or 0.012 dollars.
type Amount = counter.Amount

// ParseAmount reads a decimal number with at most six digits behind the point: "1500", "0.012".
func ParseAmount(s string) (Amount, error) { return counter.ParseAmount(s) }

// Whole is an amount of n.
func Whole(n int64) Amount { return counter.Whole(n) }

// Bounds of a limit's numbers and of amounts.
const (
	MaxTokens = counter.MaxTokens
	MaxAmount = counter.MaxAmount
)

// Calendar makes fixed windows of a calendar's days, weeks or months.
type Calendar = counter.Calendar

// CalendarUnit is what a calendar window is.
type CalendarUnit = counter.CalendarUnit

// The zero CalendarUnit is none.
const (
	NoUnit = counter.NoUnit
	Day    = counter.Day
	Week   = counter.Week
	Month  = counter.Month
)

// FailureMode says what a rule does while its store can't be reached.
type FailureMode = counter.FailureMode

// The failure modes: see [counter.FailureMode].
const (
	FailAllow  = counter.FailAllow
	FailRefuse = counter.FailRefuse
	FailLocal  = counter.FailLocal
)

// Abuse says what happens to a client that keeps sending requests while a rule refuses it.
type Abuse = counter.Abuse

// Problem is something wrong with a rule document, or with one limit, and where.
type Problem = counter.Problem

// Never is the RetryAfter of a request that is larger than its limit can ever admit.
const Never = counter.Never
