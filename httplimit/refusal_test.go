package httplimit_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
)

// Messages describe windows as a person would.
func TestWindowsInMessages(t *testing.T) {
	day := 24 * time.Hour
	for window, want := range map[time.Duration]string{
		time.Second: "second", time.Minute: "minute", time.Hour: "hour", day: "day", 7 * day: "week", time.Millisecond: "millisecond",
		15 * time.Minute: "15 minutes", 90 * time.Second: "90 seconds", 36 * time.Hour: "36 hours", 30 * day: "30 days", 366 * day: "366 days",
		61 * time.Second: "61 seconds", 250 * time.Millisecond: "250 milliseconds", 1500 * time.Microsecond: "1.5 milliseconds",
		14 * day: "2 weeks", 13 * day: "13 days", 48 * time.Hour: "2 days", 90 * time.Minute: "90 minutes", 1500 * time.Millisecond: "1.5 seconds",
	} {
		p, err := counter.NewPolicy("orders", weir.Limit{Count: 100, Window: window})
		if err != nil {
			t.Fatal(err)
		}
		x := httplimit.Describe(&weir.Request{}, &weir.Decision{Reason: weir.ReasonLimited, RetryAfter: time.Second, Policy: p}, time.Unix(1e9, 0))
		if want = "Rate limit of 100 requests per " + want + " exceeded"; x.Message != want {
			t.Errorf("%s: got %q, want %q", window, x.Message, want)
		}
	}
}

// A message about a cooldown rounds the wait up to units that a person would use.
func TestWaitsInMessages(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		time.Second: "1 second", 59 * time.Second: "59 seconds", 119 * time.Second: "119 seconds", 121 * time.Second: "3 minutes",
		time.Hour: "60 minutes", 119*time.Minute + time.Second: "120 minutes", 3*time.Hour - time.Second: "3 hours", 24 * time.Hour: "24 hours", 49 * time.Hour: "3 days",
	} {
		x := httplimit.Describe(&weir.Request{}, &weir.Decision{Reason: weir.ReasonCooldown, RetryAfter: wait}, time.Unix(1e9, 0))
		if want = "This client kept sending requests while it was told to wait, and is refused for " + want + " more"; x.Message != want {
			t.Errorf("%s: got %q, want %q", wait, x.Message, want)
		}
	}
}
