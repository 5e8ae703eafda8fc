package budget_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/observe/budget"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines is a log with concurrent writers.
type lines struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// told returns the thresholds of all lines so far, in order.
func (l *lines) told() (all []string) {
	for line := range strings.Lines(l.String()) {
		_, rest, ok := strings.Cut(line, "msg=budget ")
		if _, rest, ok2 := strings.Cut(rest, "threshold="); ok && ok2 {
			threshold, _, _ := strings.Cut(rest, " ")
			all = append(all, threshold)
		}
	}
	return all
}

// node is a limiter whose budgets are watched.
type node struct {
	*weir.Limiter
	t       *testing.T
	watcher *budget.Watcher
	log     *lines
}

const spendKey = "sk_prod_0123456789abcdefghijklmnop"

var daily = weir.Rule{ID: "spend", Amount: "usd", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 10, Window: 24 * time.Hour}}}

func open(t *testing.T, store counter.Store, o budget.Options, rules ...weir.Rule) *node {
	t.Helper()
	rs, err := weir.Compile(weir.Rules{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, log: &lines{}}
	if o.Store == nil {
		o.Store = store
	}
	o.Node, o.Logger = "n1", slog.New(slog.NewTextHandler(n.log, nil))
	n.watcher = budget.New(o)
	n.Limiter = weir.NewLimiter(store, rs, weir.Options{Observe: n.watcher.Observe})
	return n
}

func (n *node) take(key string, amounts map[string]counter.Amount) weir.Decision {
	n.t.Helper()
	d, err := n.Check(n.t.Context(), &weir.Request{APIKey: key, Amounts: amounts})
	if err != nil {
		n.t.Fatal(err)
	}
	return d
}

func usd(n float64) map[string]counter.Amount {
	return map[string]counter.Amount{"usd": counter.Amount(n * 1e6)}
}

func (n *node) expect(when string, want ...string) {
	n.t.Helper()
	if got := n.log.told(); strings.Join(got, " ") != strings.Join(want, " ") {
		n.t.Errorf("%s: told %v, want %v\n%s", when, got, want, n.log)
	}
}

func TestEachThresholdIsReportedOnceAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := open(t, memstore.New(memstore.Options{}), budget.Options{}, daily)
		defer n.watcher.Close(time.Second)
		spend := func(times int, each float64) {
			for range times {
				n.take(spendKey, usd(each))
				time.Sleep(time.Second)
			}
		}
		spend(49, 0.1)
		n.expect("at 49 %")
		spend(1, 0.1)
		n.expect("at 50 %", "50")
		spend(29, 0.1)
		n.expect("at 79 %", "50")
		spend(1, 0.1)
		n.expect("at 80 %", "50", "80")
		spend(20, 0.1)
		n.expect("used up", "50", "80", "100")
		spend(50, 0.1) // refused
		n.expect("beyond", "50", "80", "100")
		for hours := range 23 { // nothing is reported again during the whole window
			time.Sleep(time.Hour)
			spend(1, 0.1)
			n.expect(fmt.Sprint("after more hours: ", hours), "50", "80", "100")
		}
		n.take("sk_other", usd(9))
		time.Sleep(time.Second)
		n.expect("another client, late and at once", "50", "80", "100", "50", "80")
		time.Sleep(2 * time.Hour)
		spend(5, 1)
		n.expect("in the next window", "50", "80", "100", "50", "80", "50")
		n.take("sk_other", usd(5))
		time.Sleep(time.Second)
		n.expect("the other one in the next window", "50", "80", "100", "50", "80", "50", "50")
	})
}

// The in-process store remembers reported thresholds for the whole window, even if the watcher has forgotten them.
func TestForgottenThresholdsAreNotReportedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		n := open(t, store, budget.Options{}, daily)
		n.take(spendKey, usd(6))
		time.Sleep(time.Second)
		n.expect("at first", "50")
		n.watcher.Close(time.Second)
		for range 20 { // each is a new watcher
			time.Sleep(time.Hour)
			m := open(t, store, budget.Options{}, daily)
			m.take(spendKey, usd(0.01))
			time.Sleep(time.Second)
			m.expect("later")
			m.watcher.Close(time.Second)
		}
	})
}

func TestOneOfManyNodesReports(t *testing.T) {
	redis := redistest.New(t, redistest.Options{})
	var nodes []*node
	for i := range 3 {
		store, err := redisstore.New(redisstore.Options{URL: "redis://" + redis.Addr, Name: fmt.Sprint("n", i), Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if err := store.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		calls := weir.Rule{ID: "calls", Limits: []weir.Limit{{Algorithm: weir.FixedWindow, Count: 100, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}}}, Algorithm: weir.FixedWindow}
		nodes = append(nodes, open(t, store, budget.Options{Now: store.Now}, calls))
	}
	var wg sync.WaitGroup
	for i := range 360 {
		wg.Go(func() { _, _ = nodes[i%3].Check(t.Context(), &weir.Request{APIKey: spendKey}) })
	}
	wg.Wait()
	var all []string
	for _, n := range nodes {
		n.watcher.Close(10 * time.Second)
		all = append(all, n.log.told()...)
	}
	if got := fmt.Sprint(len(all), strings.Count(strings.Join(all, " "), "50"), strings.Count(strings.Join(all, " "), "80")); got != "3 1 1" {
		t.Errorf("all nodes together reported %v", all)
	}
}

// A line contains no key in clear, and everything that an operator needs.
func TestALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := open(t, memstore.New(memstore.Options{}), budget.Options{Fingerprint: func(v [][2]string) string { return fmt.Sprint("fp", len(v)) }}, daily)
		defer n.watcher.Close(time.Second)
		time.Sleep(6 * time.Hour) // virtual time starts at midnight, and so does the window
		n.take(spendKey, usd(5.012))
		time.Sleep(time.Second)
		line := n.log.String()
		for _, want := range []string{
			" level=INFO msg=budget rule=spend threshold=50 ", " used=5.012 limit=10 ", " subject=sk_prod_", " amount=usd", " fingerprint=fp1",
			" window_end=2000-01-02T00:00:00.000Z", " runs_out_at=2000-01-01T11:58:", // at this rate, the budget lasts for half a day
		} {
			if !strings.Contains(line, want) {
				t.Errorf("the line lacks %q: %s", want, line)
			}
		}
		if strings.Contains(line, spendKey) || strings.Contains(line, spendKey[:20]) {
			t.Errorf("the line contains the key: %s", line)
		}
	})
}

// failing is a store whose GiveBack is given by the test.
type failing struct {
	counter.Store
	giveBack func(context.Context) error
}

func (f *failing) GiveBack(ctx context.Context, _ counter.Once, _ time.Duration, _ []counter.Return) error {
	return f.giveBack(ctx)
}

func TestBudgetsAreReportedWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		n := open(t, store, budget.Options{Store: &failing{store, func(context.Context) error { return errors.New("lost") }}}, daily)
		defer n.watcher.Close(time.Second)
		for range 100 {
			n.take(spendKey, usd(0.1))
			time.Sleep(time.Second)
		}
		n.expect("without the store", "50", "80", "100")
		if strings.Count(n.log.String(), "unconfirmed=true") != 3 {
			t.Errorf("the log doesn't say that other nodes may report the budget, too: %s", n.log)
		}
	})
}

// A check never waits, whatever the store does. An event that was dropped is reported with a later decision.
func TestChecksDontWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		goOn := make(chan struct{})
		n := open(t, store, budget.Options{Store: &failing{store, func(ctx context.Context) error {
			select {
			case <-goOn:
			case <-ctx.Done():
			}
			return nil
		}}}, daily)
		begun := time.Now()
		for i := range 3000 {
			n.take(fmt.Sprint("sk_", i), usd(6))
		}
		if took := time.Since(begun); took > 0 {
			t.Errorf("checks waited for %v", took)
		}
		synctest.Wait()
		if s := n.watcher.Stats(); s.Events != 0 || s.Dropped != 3000-1024-1 && s.Dropped != 3000-1024 { // one event is with the store
			t.Errorf("%+v", s)
		}
		close(goOn)
		time.Sleep(time.Minute)
		n.take("sk_2999", usd(0.1)) // its event was dropped
		n.take("sk_0", usd(0.1))    // its event was reported
		time.Sleep(time.Second)
		if s := n.watcher.Stats(); s.Events != 3000-s.Dropped+1 {
			t.Errorf("%+v", s)
		}
		n.watcher.Close(time.Second)
	})
}

// Peeks, requests larger than the whole budget, and refusals by other limits cause no events.
func TestDecisionsWithoutAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := weir.Rule{ID: "requests", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 1, Window: time.Hour}}}
		n := open(t, memstore.New(memstore.Options{}), budget.Options{}, daily, requests)
		defer n.watcher.Close(time.Second)
		if d := n.take(spendKey, usd(11)); d.Allowed {
			t.Error("a cost above the budget was allowed")
		}
		if d, err := n.Check(t.Context(), &weir.Request{APIKey: spendKey, Amounts: usd(10), Peek: true}); err != nil || !d.Allowed {
			t.Error(d, err)
		}
		n.take(spendKey, usd(4))
		if d := n.take(spendKey, usd(4)); d.Allowed { // refused by the limit on requests
			t.Error("the second request was allowed")
		}
		if d, err := n.Check(t.Context(), &weir.Request{APIKey: spendKey, Amounts: usd(7), Peek: true}); err != nil || d.Allowed {
			t.Error(d, err)
		}
		time.Sleep(time.Second)
		n.expect("so far")
		time.Sleep(time.Hour)
		n.take(spendKey, usd(7)) // refused by the budget
		time.Sleep(time.Second)
		n.expect("refused", "0")
		if !strings.Contains(n.log.String(), "used=4 ") || !strings.Contains(n.log.String(), "refused=true") {
			t.Errorf("%s", n.log)
		}
	})
}

// A cooldown refuses without asking the counters, so the counters in its decision cause no event.
func TestACooldownIsNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := daily
		rule.Abuse = &counter.Abuse{Refusals: 1, Window: time.Minute, Cooldown: time.Minute, Grow: 1, Most: time.Minute}
		rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{rule}})
		if err != nil {
			t.Fatal(err)
		}
		log, store := &lines{}, memstore.New(memstore.Options{})
		w := budget.New(budget.Options{Store: store, Logger: slog.New(slog.NewTextHandler(log, nil))})
		defer w.Close(time.Second)
		l := weir.NewLimiter(store, rs, weir.Options{Observe: w.Observe, Guard: keepsOut{}})
		for range 10 {
			if d, err := l.Check(t.Context(), &weir.Request{APIKey: spendKey, Amounts: usd(1)}); err != nil || d.Reason != weir.ReasonCooldown {
				t.Fatal(d, err)
			}
		}
		time.Sleep(time.Second)
		if log.String() != "" {
			t.Error(log)
		}
	})
}

// keepsOut is a guard that refuses every client.
type keepsOut struct{}

func (keepsOut) Cooldown(*counter.Charge) time.Duration              { return time.Minute }
func (keepsOut) Decided(*counter.Charge, time.Duration) bool         { return false }
func (keepsOut) Forgive(_ context.Context, _ *counter.Counter) error { return nil }

// A flood of made-up clients causes at most 100 events a second.
func TestAFloodOfClientsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := open(t, memstore.New(memstore.Options{}), budget.Options{}, daily)
		for i := range 40_000 {
			n.take(fmt.Sprint("sk_", i), usd(5))
			if i%4000 == 0 {
				time.Sleep(time.Second)
			}
		}
		if s := n.watcher.Stats(); s.Events > 1010 || s.Events < 900 {
			t.Errorf("in ten seconds: %+v", s)
		}
		n.watcher.Close(time.Second)
	})
}

// A budget is reported as 100 % used only if it is used up. A refusal or a reservation alone doesn't make it so.
func TestOnlyAUsedUpBudgetIsAt100Percent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := open(t, memstore.New(memstore.Options{}), budget.Options{}, daily)
		defer n.watcher.Close(time.Second)
		n.take(spendKey, usd(9.5))
		for range 3 {
			n.take(spendKey, usd(1)) // refused
			time.Sleep(time.Second)
		}
		n.expect("at 95 %, which refuses", "50", "80", "80")
		d, err := n.Check(t.Context(), &weir.Request{APIKey: spendKey, Amounts: usd(0.5), Reserve: time.Minute})
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		time.Sleep(time.Second)
		n.expect("with the rest reserved", "50", "80", "80")
		if err := n.Finish(t.Context(), &d, weir.Outcome{Amounts: usd(0.4)}); err != nil {
			t.Fatal(err)
		}
		n.take(spendKey, usd(0.1))
		time.Sleep(time.Second)
		n.expect("used up", "50", "80", "80", "100")
	})
}
