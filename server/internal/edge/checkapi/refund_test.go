package checkapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

func decision(t *testing.T, w *httptest.ResponseRecorder) checkapi.CheckResponse {
	t.Helper()
	checkWire(t, w)
	var got checkapi.CheckResponse
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func refund(h http.Handler, receipt string) *httptest.ResponseRecorder {
	return post(h, "/v1/refund", `{"receipt":"`+receipt+`"}`)
}

func wantError(t *testing.T, w *httptest.ResponseRecorder, status int, code string) {
	t.Helper()
	checkWire(t, w)
	var got checkapi.ErrorResponse
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if w.Code != status || got.Error.Code != code || got.Error.Message == "" {
		t.Errorf("got %s, want %d %s", dump(w), status, code)
	}
}

// Two nodes with the same store and secret accept each other's receipts, each receipt once.
func TestReceiptsOnTwoNodes(t *testing.T) {
	store := newStore()
	rules := weir.Rules{Rules: []weir.Rule{
		{ID: "key", Limits: perHour(10)},
		{ID: "org", By: []string{"org"}, Missing: weir.MissingSkip, Limits: perHour(100)},
	}}
	a := checkapi.New(newLimiter(t, store, rules), nil, checkapi.Options{})
	b := checkapi.New(newLimiter(t, store, rules), nil, checkapi.Options{})
	const check = `{"key":"k","attributes":{"org":"acme"},"cost":4,"receipt":true}`
	first := decision(t, post(a, "/v1/check", check))
	second := decision(t, post(b, "/v1/check", check))
	if first.Remaining != 6 || second.Remaining != 2 || first.Receipt == second.Receipt {
		t.Fatalf("%+v %+v", first, second)
	}
	w := refund(b, first.Receipt)
	if checkWire(t, w); dump(w) != "200\nContent-Type: application/json\n{\"refunded\":true}\n" {
		t.Error(dump(w))
	}
	for _, h := range []http.Handler{a, b} {
		wantError(t, refund(h, first.Receipt), http.StatusConflict, jsonerror.ReceiptUsed)
	}
	now := decision(t, post(a, "/v1/check", `{"key":"k","attributes":{"org":"acme"},"cost":0}`))
	if now.Remaining != 6 || now.Limits[1].Remaining != 96 {
		t.Errorf("not exactly the first check's tokens are back: %+v", now)
	}
}

// If many nodes use a receipt at the same time, only one of them refunds it.
func TestReceiptIsGoodOnce(t *testing.T) {
	h := newAPI(t, weir.Rule{ID: "r", Limits: perHour(100)})
	receipt := decision(t, post(h, "/v1/check", `{"key":"k","cost":10,"receipt":true}`)).Receipt
	var wg sync.WaitGroup
	codes := make([]int, 50)
	for i := range codes {
		wg.Go(func() { codes[i] = refund(h, receipt).Code })
	}
	wg.Wait()
	count := map[int]int{}
	for _, c := range codes {
		count[c]++
	}
	if count[200] != 1 || count[409] != 49 {
		t.Error(count)
	}
}

func TestReceiptsOfTakeAndBatch(t *testing.T) {
	h := newAPI(t, weir.Rule{ID: "r", Limits: perHour(100)})
	take := decision(t, post(h, "/v1/take", `{"key":"job","limit":"10/hour","cost":7,"receipt":true}`))
	batch := results(t, post(h, "/v1/checks", batchOf(`{"key":"k","cost":30,"receipt":true}`, `{"key":"k","cost":30}`)))
	if batch[1].Receipt != "" {
		t.Error("a receipt that wasn't asked for")
	}
	for _, receipt := range []string{take.Receipt, batch[0].Receipt} {
		if w := refund(h, receipt); w.Code != 200 {
			t.Error(dump(w))
		}
	}
	if d := decision(t, post(h, "/v1/take", `{"key":"job","limit":"10/hour","cost":0}`)); d.Remaining != 10 {
		t.Errorf("%+v", d)
	}
	if d := decision(t, post(h, "/v1/check", `{"key":"k","cost":0}`)); d.Remaining != 70 {
		t.Errorf("%+v", d)
	}
}

func TestBadReceipts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &brokenStore{Store: newStore()}
		rules := weir.Rules{Rules: []weir.Rule{{ID: "r", Limits: []weir.Limit{weir.PerMinute(10)}}}}
		h := checkapi.New(newLimiter(t, store, rules), nil, checkapi.Options{})
		fresh := func() string { return decision(t, post(h, "/v1/check", `{"key":"k","receipt":true}`)).Receipt }

		receipt := fresh()
		flip := func(i int) string {
			c := byte('A')
			if receipt[i] == c {
				c = 'B'
			}
			return receipt[:i] + string(c) + receipt[i+1:]
		}
		for _, forged := range []string{"x", "", receipt[1:], receipt + "A", flip(0), flip(len(receipt) / 2), strings.Repeat("A", 60000), "\u00e9"} {
			if w := refund(h, forged); w.Code != http.StatusBadRequest {
				t.Errorf("forged: %s", dump(w))
			}
		}
		wantError(t, refund(h, flip(5)), http.StatusBadRequest, jsonerror.ReceiptInvalid)
		other := weir.NewLimiter(store, mustCompile(t, rules), weir.Options{Secret: []byte("of others")})
		wantError(t, refund(checkapi.New(other, nil, checkapi.Options{}), receipt), http.StatusBadRequest, jsonerror.ReceiptInvalid)

		// The store can't be reached, so it isn't known to have refunded anything, and the caller may retry.
		store.receipts = true
		w := refund(h, receipt)
		wantError(t, w, http.StatusServiceUnavailable, jsonerror.LimiterUnavailable)
		if w.Header().Get("Retry-After") != "1" || strings.Contains(w.Body.String(), "shard") {
			t.Error(dump(w))
		}
		store.receipts = false
		if w := refund(h, receipt); w.Code != 200 {
			t.Error(dump(w))
		}

		receipt = fresh()
		time.Sleep(time.Minute + time.Microsecond)
		wantError(t, refund(h, receipt), http.StatusGone, jsonerror.ReceiptExpired)
	})
}

func mustCompile(t *testing.T, rules weir.Rules) *weir.RuleSet {
	t.Helper()
	set, err := weir.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return set
}
