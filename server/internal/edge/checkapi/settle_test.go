package checkapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// chat returns rules with a limit on requests, one on tokens, and one on failed logins.
func chat(give bool) weir.Rules {
	return weir.Rules{Rules: []weir.Rule{
		{ID: "requests", Limits: perHour(10)},
		{ID: "tokens", Amount: "tokens", GiveBackUnsettled: give, Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 1000, Window: time.Hour}}},
		{ID: "logins", Statuses: []int{4}, Limits: perHour(5)},
	}}
}

// left returns what is left of a limit, according to a peek.
func left(t *testing.T, h http.Handler, rule string) float64 {
	t.Helper()
	for _, l := range decision(t, post(h, "/v1/check", `{"key":"k","cost":0}`)).Limits {
		if l.Rule == rule {
			return l.Remaining
		}
	}
	t.Fatalf("there is no %s", rule)
	return 0
}

func reserve(t *testing.T, h http.Handler, tokens string) (receipt string) {
	t.Helper()
	d := decision(t, post(h, "/v1/check", `{"key":"k","amounts":{"tokens":`+tokens+`},"reserve":"2m"}`))
	if !d.Allowed || d.Receipt == "" {
		t.Fatalf("%+v", d)
	}
	return d.Receipt
}

func settle(t *testing.T, h http.Handler, receipt, what string) checkapi.SettleResponse {
	t.Helper()
	w := post(h, "/v1/settle", `{"receipt":"`+receipt+`",`+what+`}`)
	checkWire(t, w)
	var got checkapi.SettleResponse
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
		t.Fatal(dump(w), err)
	}
	return got
}

// Two nodes share a store. A check's reservation on one can be settled on the other, once, with the actual amounts.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		what           string
		tokens, logins float64
	}{
		{`"amounts":{"tokens":100}`, 900, 4},
		{`"amounts":{"tokens":0}`, 1000, 4},
		{`"amounts":{"tokens":400.000001}`, 599.999999, 4},
		{`"amounts":{"tokens":999}`, 1, 4},
		{`"amounts":{"tokens":5000}`, 0, 4},
		{`"amounts":{"other":7}`, 600, 4},                  // doesn't say how many tokens were used
		{`"status":200`, 600, 5},                           // logins count only failures
		{`"status":403`, 600, 4},                           //
		{`"amounts":{"tokens":1},"status":204`, 999, 5},    //
		{`"amounts":{"tokens":1},"unknown":false`, 999, 4}, //
		{`"unknown":true`, 600, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			a := checkapi.New(newLimiter(t, store, chat(false)), nil, checkapi.Options{})
			b := checkapi.New(newLimiter(t, store, chat(false)), nil, checkapi.Options{})
			receipt := reserve(t, a, "400")
			if n := left(t, b, "tokens"); n != 600 {
				t.Fatalf("%v left of a reservation", n)
			}
			if got := settle(t, b, receipt, c.what); !got.Settled || got.Already {
				t.Errorf("%s: %+v", c.what, got)
			}
			for _, h := range []http.Handler{a, b} {
				if got := settle(t, h, receipt, `"amounts":{"tokens":77}`); got.Settled || !got.Already {
					t.Errorf("%s, again: %+v", c.what, got)
				}
			}
			wantError(t, refund(a, receipt), http.StatusConflict, jsonerror.ReceiptUsed)
			if tokens, logins := left(t, a, "tokens"), left(t, a, "logins"); tokens != c.tokens || logins != c.logins || left(t, a, "requests") != 9 {
				t.Errorf("%s: %v tokens and %v logins left, want %v and %v", c.what, tokens, logins, c.tokens, c.logins)
			}
		})
	}
}

// If many callers settle a receipt at the same time, only one of them succeeds.
func TestSettledOnce(t *testing.T) {
	h := checkapi.New(newLimiter(t, newStore(), chat(false)), nil, checkapi.Options{})
	receipt := reserve(t, h, "400")
	var wg sync.WaitGroup
	var booked atomic.Int64
	for range 50 {
		wg.Go(func() {
			if settle(t, h, receipt, `"amounts":{"tokens":150}`).Settled {
				booked.Add(1)
			}
		})
	}
	wg.Wait()
	if n := left(t, h, "tokens"); booked.Load() != 1 || n != 850 {
		t.Errorf("%d booked, %v left", booked.Load(), n)
	}
}

// An unsettled reservation is kept or given back when it expires, depending on the rule. A late settlement is booked in
// either case.
func TestLateSettlement(t *testing.T) {
	for _, give := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := checkapi.New(newLimiter(t, newStore(), chat(give)), nil, checkapi.Options{})
			receipt := reserve(t, h, "400")
			time.Sleep(2*time.Minute + time.Second)
			want := 600.0
			if give {
				want = 1000
			}
			if n := left(t, h, "tokens"); n != want {
				t.Errorf("give back %v: %v left of an unsettled one, want %v", give, n, want)
			}
			settle(t, h, receipt, `"amounts":{"tokens":300}`)
			if n := left(t, h, "tokens"); n != 700 {
				t.Errorf("give back %v: %v left after it was settled late", give, n)
			}
			time.Sleep(25 * time.Hour)
			wantError(t, post(h, "/v1/settle", `{"receipt":"`+receipt+`","unknown":true}`), http.StatusGone, jsonerror.ReceiptExpired)
		})
	}
}

// All endpoints give the same errors for receipts that can't be used.
func TestUnusableReceipts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &brokenStore{Store: newStore()}
		l := newLimiter(t, store, goldenRules())
		var told []error
		h := checkapi.New(l, nil, checkapi.Options{OnError: func(_ *http.Request, err error) { told = append(told, err) }})
		receipt := decision(t, post(h, "/v1/check", `{"key":"k","path":"/stream"}`)).Receipt
		foreign := weir.NewLimiter(store, mustCompile(t, goldenRules()), weir.Options{Secret: []byte("of others")})
		other := checkapi.New(foreign, nil, checkapi.Options{})
		flipped := strings.Map(func(r rune) rune {
			if r == 'A' {
				return 'B'
			}
			return r
		}, receipt[:20]) + receipt[20:]
		ask := func(h http.Handler, path, receipt string) *httptest.ResponseRecorder {
			more := ""
			if path == "/v1/settle" {
				more = `,"status":200`
			}
			return post(h, path, `{"receipt":"`+receipt+`"`+more+`}`)
		}
		for _, path := range []string{"/v1/settle", "/v1/release", "/v1/renew"} {
			for _, forged := range []string{"x", receipt[1:], receipt + "A", "AB" + receipt[2:], flipped + "x", strings.Repeat("A", 60000), "é"} {
				wantError(t, ask(h, path, forged), http.StatusBadRequest, jsonerror.ReceiptInvalid)
			}
			wantError(t, ask(other, path, receipt), http.StatusBadRequest, jsonerror.ReceiptInvalid)
			store.receipts, store.rules, told = true, []string{"streams"}, nil
			w := ask(h, path, receipt)
			wantError(t, w, http.StatusServiceUnavailable, jsonerror.LimiterUnavailable)
			if strings.Contains(dump(w), "shard") || w.Header().Get("Retry-After") != "1" || len(told) != 1 {
				t.Errorf("%s: %s, told %v", path, dump(w), told)
			}
			store.receipts, store.rules = false, nil
		}
		if w := ask(h, "/v1/settle", receipt); w.Code != 200 {
			t.Errorf("once the store is back: %s", dump(w))
		}
		time.Sleep(24*time.Hour + time.Second)
		for _, path := range []string{"/v1/settle", "/v1/release", "/v1/renew"} {
			wantError(t, ask(h, path, receipt), http.StatusGone, jsonerror.ReceiptExpired)
		}
	})
}

func renewals(t *testing.T, h http.Handler, receipts ...string) []checkapi.Renewal {
	t.Helper()
	body, err := json.Marshal(checkapi.RenewRequest{Receipts: receipts})
	if err != nil {
		t.Fatal(err)
	}
	w := post(h, "/v1/renew", string(body))
	checkWire(t, w)
	var got checkapi.RenewResponse
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || len(got.Results) != len(receipts) {
		t.Fatal(dump(w), err)
	}
	return got.Results
}

// A slot lasts as long as it is renewed with its receipt, even for hours, and no longer.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		h := checkapi.New(newLimiter(t, store, goldenRules()), nil, checkapi.Options{})
		other := checkapi.New(newLimiter(t, store, goldenRules()), nil, checkapi.Options{Parallel: true})
		const stream = `{"key":"k","path":"/stream"}`
		a, b := decision(t, post(h, "/v1/check", stream)), decision(t, post(other, "/v1/check", stream))
		if a.Receipt == "" || a.SlotTTLMS != 10_000 || b.Receipt == "" || b.Remaining != 0 {
			t.Fatalf("%+v\n%+v", a, b)
		}
		for range 4000 { // 11 hours
			time.Sleep(9900 * time.Millisecond)
			if w := post(other, "/v1/renew", `{"receipt":"`+a.Receipt+`"}`); w.Code != 200 || w.Body.String() != "{\"renewed\":true}\n" {
				t.Fatal(dump(w))
			}
		}
		c := decision(t, post(h, "/v1/check", stream)) // b's slot expired long ago
		if !c.Allowed || c.Remaining != 0 || decision(t, post(h, "/v1/check", stream)).Allowed {
			t.Errorf("%+v", c)
		}
		wantError(t, post(h, "/v1/renew", `{"receipt":"`+b.Receipt+`"}`), http.StatusConflict, jsonerror.SlotLost)
		for _, node := range []http.Handler{h, other} {
			got := renewals(t, node, a.Receipt, b.Receipt, "none", c.Receipt)
			if fmt.Sprint(got) != "[{true } {false slot_lost} {false receipt_invalid} {true }]" {
				t.Errorf("%v", got)
			}
		}
		if w := post(h, "/v1/release", `{"receipt":"`+a.Receipt+`"}`); w.Code != 200 {
			t.Error(dump(w))
		}
		if d := decision(t, post(h, "/v1/check", stream)); !d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}

// A slot's receipt frees the slot and refunds nothing else, whether or not the check asked for a receipt.
func TestReceiptsOfSlots(t *testing.T) {
	h := newAPI(t, weir.Rule{ID: "slots", Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 5}}}, weir.Rule{ID: "requests", Limits: perHour(10)})
	for _, c := range []struct {
		body     string
		requests float64
	}{{`{"key":"k"}`, 9}, {`{"key":"k","receipt":true}`, 9}} {
		d := decision(t, post(h, "/v1/check", c.body))
		if w := refund(h, d.Receipt); w.Code != 200 {
			t.Fatal(dump(w))
		}
		if slots, requests := left(t, h, "slots"), left(t, h, "requests"); slots != 5 || requests != c.requests {
			t.Errorf("%s: %v slots and %v requests left, want 5 and %v", c.body, slots, requests, c.requests)
		}
	}
	d := decision(t, post(h, "/v1/check", `{"key":"k"}`))
	if settle(t, h, d.Receipt, `"unknown":true`); left(t, h, "slots") != 5 {
		t.Error("the slot of a settled request isn't free")
	}
	if d := decision(t, post(h, "/v1/check", `{"key":"k","cost":0}`)); d.Receipt != "" || d.SlotTTLMS != 0 {
		t.Errorf("a peek takes no slot: %+v", d)
	}
}

// If the store fails, a node counts slots by itself. No other node could release such a slot, so the response has no
// receipt.
func TestSlotsWithoutTheStore(t *testing.T) {
	store := &brokenStore{Store: newStore(), rules: []string{"slots"}}
	rules := weir.Rules{Rules: []weir.Rule{
		{ID: "slots", OnStoreFailure: weir.FailLocal, Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 1}}},
		{ID: "requests", Limits: perHour(10)},
	}}
	l := weir.NewLimiter(store, mustCompile(t, rules), weir.Options{Local: newStore()})
	h := checkapi.New(l, nil, checkapi.Options{})
	if d := decision(t, post(h, "/v1/check", `{"key":"k"}`)); !d.Allowed || !d.Degraded || d.Receipt != "" || d.SlotTTLMS != 0 {
		t.Errorf("%+v", d)
	}
	if d := decision(t, post(h, "/v1/check", `{"key":"k"}`)); d.Allowed || !d.RetryIsAGuess {
		t.Errorf("%+v", d)
	}
}

// If an amount can't be counted, the response has neither its remainder nor the end of its window.
func TestAmountsWithoutTheStore(t *testing.T) {
	store := &brokenStore{Store: newStore(), rules: []string{"tokens"}}
	h := checkapi.New(newLimiter(t, store, chat(false)), nil, checkapi.Options{})
	d := decision(t, post(h, "/v1/check", `{"key":"k","amounts":{"tokens":1}}`))
	if l := d.Limits[1]; !d.Allowed || l.Amount != "tokens" || l.Limit != 1000 || l.Remaining != -1 || !l.WindowEnd.IsZero() {
		t.Errorf("%+v", d)
	}
}

// meeting is a store whose calls wait until a number of calls are in flight.
type meeting struct {
	counter.Store
	want    int
	mu      sync.Mutex
	waiting int
	met     chan struct{}
}

func (m *meeting) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	m.mu.Lock()
	if m.waiting++; m.waiting == m.want {
		close(m.met)
	}
	m.mu.Unlock()
	if m.want > 0 {
		<-m.met
	}
	m.Store.Take(ctx, charges, results)
}

// The slots in one request are renewed concurrently, so that together they take about one round trip to the store.
func TestRenewalsGoTogether(t *testing.T) {
	const slots = 1000
	synctest.Test(t, func(t *testing.T) { // fails if all goroutines wait forever
		store := &meeting{Store: newStore(), met: make(chan struct{})}
		l := newLimiter(t, store, weir.Rules{Rules: []weir.Rule{{ID: "slots", Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: slots}}}}})
		h := checkapi.New(l, nil, checkapi.Options{Parallel: true})
		var receipts []string
		for _, r := range results(t, post(h, "/v1/checks", batchOf(strings.TrimSuffix(strings.Repeat(`{"key":"k"},`, slots), ",")))) {
			receipts = append(receipts, r.Receipt)
		}
		store.want, store.waiting = slots, 0
		for i, r := range renewals(t, h, receipts...) {
			if !r.Renewed {
				t.Fatalf("%d: %+v", i, r)
			}
		}
	})
}

// Each receipt in a list has its own result, and a failure of the store is reported once.
func TestRenewalsWithoutTheStore(t *testing.T) {
	store := &brokenStore{Store: newStore()}
	var told []error
	h := checkapi.New(newLimiter(t, store, goldenRules()), nil, checkapi.Options{OnError: func(_ *http.Request, err error) { told = append(told, err) }})
	a := decision(t, post(h, "/v1/check", `{"key":"a","path":"/stream"}`)).Receipt
	b := decision(t, post(h, "/v1/check", `{"key":"b","path":"/stream"}`)).Receipt
	store.rules = []string{"streams"}
	if got := fmt.Sprint(renewals(t, h, a, "none", b)); got != "[{false unavailable} {false receipt_invalid} {false unavailable}]" || len(told) != 1 {
		t.Errorf("%s, told %v", got, told)
	}
}

// Amounts that weren't reserved can't be settled: the caller gets an error, and the receipt stays valid.
func TestSettlingWithoutAReservation(t *testing.T) {
	h := checkapi.New(newLimiter(t, newStore(), chat(false)), nil, checkapi.Options{})
	d := decision(t, post(h, "/v1/check", `{"key":"k","amounts":{"tokens":300},"receipt":true}`))
	w := post(h, "/v1/settle", `{"receipt":"`+d.Receipt+`","amounts":{"tokens":100}}`)
	wantError(t, w, 400, "BAD_REQUEST")
	if !strings.Contains(w.Body.String(), `\"reserve\": \"2m\"`) || left(t, h, "tokens") != 700 {
		t.Error(dump(w))
	}
	settle(t, h, d.Receipt, `"status":200`)
	if n := left(t, h, "logins"); n != 5 {
		t.Errorf("%v logins left, want 5: only failures count", n)
	}
}
