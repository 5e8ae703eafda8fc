package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var today = time.Date(2026, 11, 16, 0, 0, 0, 0, time.UTC)

const twoRules = `
blacklist: [sk_bad]
rules:
  - id: login
    match: {endpoint: POST /login}
    by: [ip]
    algorithm: fixed_window
    limit: 2/10s
  - id: client
    limit: 5/minute
  - id: elsewhere
    match: {endpoint: GET /other}
    limit: 1/minute
`

func own(t *testing.T, text string) *Engine {
	t.Helper()
	e := start(t, ten)
	if r := e.Rules(text, today); len(r.Problems) > 0 {
		t.Fatal(r.Problems)
	}
	return e
}

func ask(t *testing.T, e *Engine, r Request) Explanation {
	t.Helper()
	x, err := e.Ask(r)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

var login = Request{Key: "sk_1", IP: "203.0.113.7", Method: "post", Path: "/login"}

func TestOwnRulesAreExplained(t *testing.T) {
	e := own(t, twoRules)
	x := ask(t, e, login)
	var got []string
	for _, r := range x.Rules {
		if r.Applies {
			got = append(got, r.ID+": "+strings.Join(r.Limits, ", ")+" by "+strings.Join(r.By, ", "))
		} else {
			got = append(got, r.ID+": "+r.Why)
		}
	}
	want := []string{"login: 2/10s fixed_window by ip", "client: 5/minute token_bucket by api_key", "elsewhere: the path doesn't match endpoint GET /other"}
	if x.Reason != "within" || !slices.Equal(got, want) {
		t.Errorf("%s %q, want %q", x.Reason, got, want)
	}
	if lanes := e.Lanes(); len(lanes) != 2 || lanes[0].Rule != "login" || lanes[1].Rule != "client" || lanes[0].Max != 2 {
		t.Errorf("lanes %+v", lanes)
	}
	if x := ask(t, e, Request{Key: "sk_bad"}); x.Reason != "denied" || x.Entry == "" || len(e.Lanes()) != 0 {
		t.Errorf("a denied key: %+v, %d lanes", x, len(e.Lanes()))
	}
}

// All rules decide together: a request that one rule refuses isn't charged to the others.
func TestOwnRulesDecideTogether(t *testing.T) {
	e := own(t, twoRules)
	ask(t, e, login)
	if err := e.Send(4, 0); err != nil {
		t.Fatal(err)
	}
	f := e.Advance(second)
	if f.Whole.Admitted != 2 || f.Whole.Refused != 2 || f.Whole.Text != "refused by login, fits again in 10 s" {
		t.Errorf("in all %+v %q", f.Whole.Counts, f.Whole.Text)
	}
	for i, want := range [][]float64{{0, 1, 0, 1, 1, 0, 2, 0, 0, 3, 0, 0}, {0, 1, 0, 1, 1, 0, 2, 3, 0, 3, 3, 0}} {
		if got := f.Lanes[i].Marks; !slices.Equal(got, want) {
			t.Errorf("lane %d: marks %v, want %v", i, got, want)
		}
	}
	if v := f.Lanes[1].Value; v < 3 || v > 3.1 {
		t.Errorf("the client's bucket has %v tokens, want 3", v)
	}
}

// A request of another client has its own counters, and those of the first client are kept.
func TestOwnRulesCountEachClient(t *testing.T) {
	e := own(t, twoRules)
	ask(t, e, login)
	_ = e.Send(2, 0)
	e.Advance(second)
	other := login
	other.IP, other.Key = "203.0.113.8", "sk_2"
	ask(t, e, other)
	if f := e.Advance(second); !f.Fresh || f.Lanes[0].Sent != 0 || f.Whole.Sent != 2 {
		t.Errorf("another client: %+v", f.Lanes[0].Counts)
	}
	_ = e.Send(1, 0)
	ask(t, e, login)
	if f := e.Advance(second); f.Lanes[0].Admitted != 2 || f.Lanes[0].Value != 2 {
		t.Errorf("the first client: %+v", f.Lanes[0].Counts)
	}
	if f := e.Advance(0); f.Whole.Sent != 2 || f.Lanes[0].Sent != 2 {
		t.Errorf("rewound: %+v", f.Whole.Counts)
	}
	if f := e.Advance(second); f.Whole.Sent != 3 || f.Whole.Admitted != 3 {
		t.Errorf("and back: %+v", f.Whole.Counts)
	}
}

func TestOwnRulesWithMistakesAreShownAtTheirPlace(t *testing.T) {
	e := own(t, twoRules)
	r := e.Rules("rules:\n  - id: login\n    limit: 0/minute\n", today)
	if len(r.Problems) != 1 || r.Problems[0].Line != 3 || r.Problems[0].Column != 12 {
		t.Errorf("%+v", r.Problems)
	}
	if ask(t, e, login); len(e.Lanes()) != 2 {
		t.Error("the rules before aren't in force any more")
	}
	if r := e.Rules(strings.Repeat("#", MaxText+1), today); len(r.Problems) != 1 {
		t.Errorf("a large file: %+v", r)
	}
	if r := e.Rules("rules: [", today); len(r.Problems) == 0 || r.Problems[0].Line != 1 {
		t.Errorf("no YAML: %+v", r)
	}
}

func TestImpossibleRequestsAreRefused(t *testing.T) {
	e := start(t, ten)
	if _, err := e.Ask(login); err == nil {
		t.Error("a request without rules is accepted")
	}
	e = own(t, twoRules)
	for _, r := range []Request{{IP: "300.1.1.1"}, {Cost: -1}, {Path: strings.Repeat("/a", 4096)}} {
		if _, err := e.Ask(r); err == nil {
			t.Errorf("%.60v is accepted", r)
		}
	}
	if _, err := e.Show("edge"); err == nil {
		t.Error("a demonstration with own rules is accepted")
	}
}

// After going back from own rules to the algorithms, nothing of the rules remains.
func TestFromOwnRulesBackToTheAlgorithms(t *testing.T) {
	e := own(t, twoRules)
	ask(t, e, login)
	_ = e.Pattern("boundary", 0)
	e.Advance(30 * second)
	if err := e.Compare(ten); err != nil {
		t.Fatal(err)
	}
	if f := e.Advance(0); len(f.Lanes) != 6 || f.Lanes[0].Sent != 0 || len(f.Coming) != 0 {
		t.Errorf("%d lanes, %+v", len(f.Lanes), f.Lanes[0].Counts)
	}
}

// A burst around the edge also admits twice the limit of a user's rule with a fixed window.
func TestBoundaryBurstUnderOwnRules(t *testing.T) {
	e := own(t, "rules: [{id: one, algorithm: fixed_window, limit: 3/7s}]")
	ask(t, e, Request{Key: "sk_1"})
	if err := e.Pattern("boundary", 0); err != nil {
		t.Fatal(err)
	}
	if f := e.Advance(13 * second); f.Whole.Admitted != 6 || f.Whole.Refused != 0 {
		t.Errorf("%+v", f.Whole.Counts)
	}
}

// The page freezes while the engine works, so the work for many rules is bounded, by charges and not by requests.
func TestManyOwnRulesDontStopThePage(t *testing.T) {
	var text strings.Builder
	text.WriteString("rules:\n")
	for i := 0; text.Len() < MaxText-100; i++ {
		fmt.Fprintf(&text, "  - {id: r%d, limit: 1/s}\n", i)
	}
	rules := strings.Count(text.String(), "\n") - 1
	e := own(t, text.String())
	if x := ask(t, e, login); len(x.Rules) != maxExplained || len(e.Lanes()) != maxLanes {
		t.Errorf("%d rules are explained, %d lanes shown", len(x.Rules), len(e.Lanes()))
	}
	err := e.Send(1000, 0)
	if want := fmt.Sprintf("%d limits apply to this request, and %d requests are the most", rules, maxCharges/rules); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("%v, want %s", err, want)
	}
	if f := e.Advance(second); f.Whole.Sent != maxCharges/rules || f.Full == "" {
		t.Errorf("%d sent, %q", f.Whole.Sent, f.Full)
	}
	if err := e.Pattern("steady", 1000); err != nil {
		t.Fatal(err)
	}
	if f := e.Advance(10 * second); f.Whole.Sent != maxCharges/rules || f.Full == "" {
		t.Errorf("%d sent, %q", f.Whole.Sent, f.Full)
	}

	// A request to which fewer rules apply finds room again, and so does one after a reset.
	e.Clear()
	if err := e.Send(maxCharges/rules, 0); err != nil {
		t.Error(err)
	}
	e = own(t, twoRules)
	ask(t, e, login)
	if err := e.Pattern("steady", 1000); err != nil {
		t.Fatal(err)
	}
	e.Advance(second)
	e.Stop() // frees the room of scheduled requests
	if want := 2 * len(e.schedule); e.charges != want {
		t.Errorf("%d charges, want %d", e.charges, want)
	}
	_ = e.Pattern("steady", 1000)
	if f := e.Advance(20 * second); f.Whole.Sent != MaxArrivals {
		t.Errorf("%d sent of few rules", f.Whole.Sent)
	}
}

// Invalid rules are refused quickly, with the position of the error, whatever was pasted.
func TestHostileRulesAreRefused(t *testing.T) {
	e := start(t, ten)
	for name, text := range map[string]string{
		"five megabytes":    "rules:\n" + strings.Repeat("  - {id: r, limit: 1/s}\n", 200_000),
		"deep":              strings.Repeat("[", MaxText/2) + strings.Repeat("]", MaxText/2),
		"deep maps":         strings.Repeat("{a: ", MaxText/4),
		"a bomb of aliases": "a: &a [x, x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nrules: [*c, *c]\n",
		"one id":            "rules:\n" + strings.Repeat("  - {id: r, limit: 1/s}\n", 2500),
		"no text":           "\xff\xfe\x00",
		"a huge limit":      "rules: [{id: r, limit: 99999999999999999999/s}]",
	} {
		if r := e.Rules(text, today); len(r.Problems) == 0 || len(r.Problems) > maxProblems {
			t.Errorf("%s: %d problems", name, len(r.Problems))
		}
	}
	// The largest possible limits and costs.
	if r := e.Rules("rules: [{id: r, limit: 1000000000/s, burst: 1000000000, cost: 1000000000}, {id: l, limit: 10000/day, algorithm: sliding_window_log}]", today); len(r.Problems) > 0 {
		t.Fatal(r.Problems)
	}
	ask(t, e, Request{Key: "sk_1", IP: "203.0.113.7", Cost: 1})
	if err := e.Send(1000, 0); err != nil {
		t.Error(err)
	}
	if f := e.Advance(second); f.Whole.Sent != 1000 {
		t.Errorf("%d sent", f.Whole.Sent)
	}
}
