package admin_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/server/internal/admin"
)

const budgets = `rules:
  - {id: spend, amount: usd, algorithm: fixed_window, limit: 10.5/month, calendar: {tz: Europe/Berlin, day: 15}}
  - {id: tokens, amount: tokens, limit: 1000/minute}
  - {id: flight, algorithm: concurrency, limit: 3}
  - {id: calls, algorithm: fixed_window, limit: 1000000/hour, cost: 499999, shadow: true}
`

// countersOf requests counters, and returns the response, also by rule.
func (p *port) countersOf(t *testing.T, body string, headers ...string) (admin.Counters, map[string]admin.Counter) {
	t.Helper()
	a := p.do(t, "POST", "/v1/counters", body, headers...)
	var out admin.Counters
	if err := json.Unmarshal([]byte(a.text), &out); err != nil {
		t.Fatal(a.text, err)
	}
	by := map[string]admin.Counter{}
	for _, c := range out.Counters {
		by[c.Rule] = c
	}
	return out, by
}

// Limits on amounts are shown as decimals, budgets with the end of their window and when they run out, and slots as
// requests in flight.
func TestCountersOfAmountsAndSlots(t *testing.T) {
	p := open(t, nil, "")
	p.want(t, p.do(t, "PUT", "/v1/rules?force=true", budgets, "If-Match: *", "Content-Type: application/yaml"), 200, "")
	const asked = `{"key": "sk_1"}`
	all, by := p.countersOf(t, asked)
	if s := by["spend"]; !all.Allowed || s.Amount != "usd" || s.Limit != "10.5/month" || s.Max.String() != "10.5" || s.Remaining != s.Max || s.RunsOutAt != nil || s.FullAt != nil || s.InFlight != nil {
		t.Errorf("untouched: %v %+v", all.Allowed, s)
	}
	spend := func(amounts map[string]counter.Amount) *weir.Decision {
		t.Helper()
		d, err := p.limiter.Check(t.Context(), &weir.Request{APIKey: "sk_1", Amounts: amounts})
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		return &d
	}
	first := spend(map[string]counter.Amount{"usd": 10_499_999, "tokens": counter.Whole(250)})
	spend(nil)
	all, by = p.countersOf(t, asked)
	if !all.Allowed {
		t.Errorf("refused although something is left: %+v", all)
	}
	s := by["spend"]
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if s.Remaining.String() != "0.000001" || s.WindowEnd == nil || s.RunsOutAt == nil || !s.RunsOutAt.Before(*s.WindowEnd) || s.FullAt == nil {
		t.Errorf("%+v", s)
	} else if end := s.WindowEnd.In(berlin); end.Day() != 15 || end.Hour() != 0 || time.Until(end) > 31*24*time.Hour+time.Hour {
		t.Errorf("it ends at %v", end)
	}
	if c := by["tokens"]; c.Amount != "tokens" || c.Max != counter.Whole(1000) || c.Remaining < counter.Whole(750) || c.WindowEnd != nil || c.RunsOutAt != nil {
		t.Errorf("%+v", c)
	}
	if c := by["calls"]; c.Amount != "" || c.Max != counter.Whole(1_000_000) || c.Remaining != counter.Whole(2) || c.WindowEnd == nil || c.RunsOutAt != nil {
		t.Errorf("%+v", c)
	}
	if c := by["flight"]; c.InFlight == nil || *c.InFlight != 2 || c.Max != counter.Whole(3) || c.Remaining != counter.Whole(1) || c.FullAt != nil || c.Limit != "3 in flight" {
		t.Errorf("%+v", c)
	}
	if err := p.limiter.Finish(t.Context(), first, weir.Outcome{}); err != nil {
		t.Fatal(err)
	}
	spend(map[string]counter.Amount{"usd": 1})
	all, by = p.countersOf(t, asked)
	if s := by["spend"]; all.Allowed || all.Binding != "spend" || !s.Refuses || s.Remaining != 0 || s.RunsOutAt != nil {
		t.Errorf("used up: %v by %s, %+v", all.Allowed, all.Binding, s)
	}
	if c := by["flight"]; c.InFlight == nil || *c.InFlight != 2 {
		t.Errorf("after one request has ended and another begun: %+v", c)
	}
	if all, _ = p.countersOf(t, `{"key": "sk_2", "amounts": {"usd": 10.6}}`); all.Allowed {
		t.Error("a cost above the limit is allowed")
	}
}

// A reset also resets budgets, although its request names no amount.
func TestBudgetsAreReset(t *testing.T) {
	p := open(t, nil, "")
	p.want(t, p.do(t, "PUT", "/v1/rules?force=true", budgets, "If-Match: *", "Content-Type: application/yaml"), 200, "")
	if d, err := p.limiter.Check(t.Context(), &weir.Request{APIKey: "sk_1", Amounts: map[string]counter.Amount{"usd": counter.Whole(10)}}); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	p.want(t, p.do(t, "POST", "/v1/counters/reset", `{"key": "sk_1"}`), 200, "")
	if _, by := p.countersOf(t, `{"key": "sk_1"}`); by["spend"].Remaining != by["spend"].Max {
		t.Errorf("%+v", by["spend"])
	}
}
