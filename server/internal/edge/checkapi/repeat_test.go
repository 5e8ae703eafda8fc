package checkapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// sameChecks has lists of bodies. All bodies in a list are the same check, written in different ways.
var sameChecks = [][]string{
	{`{"key":"k","id":"1"}`, ` { "id" : "\u0031" , "cost" : 1, "key": "\u006b" } `, `{"key":"k","id":"1","receipt":true}`, `{"key":"k","id":"1","amounts":{},"reserve":null,"attributes":{"user":"","region":null}}`},
	{`{"key":"k","id":"1","attributes":{"region":"eu","header:X-A":"x","user":"u"}}`, `{"id":"1","attributes":{"user":"u","header:x-a":"x","attr:region":"eu"},"key":"k"}`},
	{`{"key":"k","id":"1","amounts":{"tokens":1,"usd":0.5},"reserve":"2m"}`, `{"key":"k","id":"1","amounts":{"usd":5e-1,"tokens":1.0},"reserve":120}`},
	{`{"key":"k","id":"1","ip":"203.0.113.7"}`, `{"key":"k","id":"1","ip":"::ffff:203.0.113.7"}`},
}

// otherChecks are bodies of which no two are the same check.
var otherChecks = []string{
	`{"key":"k","id":"1"}`, `{"key":"k","id":"2"}`, `{"key":"j","id":"1"}`, `{"key":"k","id":"1","method":"GET"}`, `{"key":"k","id":"1","path":"/a"}`,
	`{"key":"k","id":"1","ip":"203.0.113.7"}`, `{"key":"k","id":"1","ip":"203.0.113.8"}`, `{"key":"k","id":"1","cost":2}`, `{"key":"k","id":"1","ip":"::"}`,
	`{"key":"k","id":"1","attributes":{"user":"u"}}`, `{"key":"k","id":"1","attributes":{"org":"u"}}`, `{"key":"k","id":"1","attributes":{"tier":"u"}}`,
	`{"key":"k","id":"1","attributes":{"region":"u"}}`, `{"key":"k","id":"1","attributes":{"attr:user":"u"}}`, `{"key":"k","id":"1","attributes":{"header:region":"u"}}`,
	`{"key":"k","id":"1","attributes":{"a":"b","c":"d"}}`, `{"key":"k","id":"1","attributes":{"a":"d","c":"b"}}`, `{"key":"k","id":"1","attributes":{"a":"bc"}}`,
	`{"key":"k","id":"1","amounts":{"tokens":1}}`, `{"key":"k","id":"1","amounts":{"tokens":2}}`, `{"key":"k","id":"1","amounts":{"tokens":0}}`,
	`{"key":"k","id":"1","amounts":{"usd":1}}`, `{"key":"k","id":"1","amounts":{"tokens":1,"usd":1}}`,
	`{"key":"k","id":"1","amounts":{"tokens":1},"reserve":"1m"}`, `{"key":"k","id":"1","amounts":{"tokens":1},"reserve":"2m"}`,
	`{"key":"k1","id":"1"}`, `{"key":"","id":"1k"}`, `{"key":"k","id":"1","method":"/a"}`, `{"id":"k","key":"1"}`, `{"key":"k","id":"1 "}`,
}

func repeatOf(t *testing.T, body string) counter.Once {
	t.Helper()
	req, err := checkapi.DecodeCheck([]byte(body))
	if err != nil || req.Repeat == (counter.Once{}) {
		t.Fatalf("%s: %v %v", body, req.Repeat, err)
	}
	return req.Repeat
}

func TestRepeatNamesOneCheck(t *testing.T) {
	for _, same := range sameChecks {
		for _, body := range same[1:] {
			if repeatOf(t, body) != repeatOf(t, same[0]) {
				t.Errorf("%s isn't taken for %s", body, same[0])
			}
		}
	}
	seen := map[counter.Once]string{}
	for _, body := range otherChecks {
		name := repeatOf(t, body)
		if seen[name] != "" {
			t.Errorf("%s is taken for %s", body, seen[name])
		}
		seen[name] = body
	}
	if req, err := checkapi.DecodeCheck([]byte(`{"key":"k","id":null}`)); err != nil || req.Repeat != (counter.Once{}) {
		t.Error(req.Repeat, err)
	}
	// Nodes of different versions share a store, so the name of a check must not change.
	if got := fmt.Sprintf("%x", repeatOf(t, sameChecks[1][0])); got != "5926a1a3bd32054ca042dc1939b7ccf4" {
		t.Errorf("the name of a check is now %s", got)
	}
}

// In a batch, an id belongs to its own check.
func TestRepeatInABatch(t *testing.T) {
	h := newAPI(t, weir.Rule{ID: "r", By: []string{"api_key", "attr:region"}, Limits: perHour(10)})
	one, two := `{"key":"k","id":"1","attributes":{"region":"eu"}}`, `{"key":"k","id":"1","attributes":{"region":"us"}}`
	for i, r := range results(t, post(h, "/v1/checks", batchOf(one, two, one, `{"key":"k","attributes":{"region":"eu"}}`, two))) {
		if want := []int64{9, 9, 9, 8, 9}[i]; r.Remaining != want {
			t.Errorf("%d: %d left, want %d", i, r.Remaining, want)
		}
	}
}

// A repeated check is charged once to every limit, whichever node it reaches. After a minute, it counts as a new check.
func TestRepeatedChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		rules := chat(false)
		rules.Rules = append(rules.Rules, weir.Rule{ID: "slots", Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 5}}})
		a := checkapi.New(newLimiter(t, store, rules), nil, checkapi.Options{})
		b := checkapi.New(newLimiter(t, store, rules), nil, checkapi.Options{})
		const body = `{"key":"k","id":"0198c2f4","cost":2,"amounts":{"tokens":300},"reserve":"10m"}`
		var receipts []string
		for i, h := range []http.Handler{a, b, a} {
			d := decision(t, post(h, "/v1/check", body))
			if !d.Allowed || left(t, h, "requests") != 8 || left(t, h, "tokens") != 700 || left(t, h, "slots") != 3 {
				t.Fatalf("%d: %+v", i, d)
			}
			receipts = append(receipts, d.Receipt)
		}
		if d := decision(t, post(a, "/v1/check", strings.Replace(body, `"cost":2`, `"cost":1`, 1))); !d.Allowed || left(t, a, "requests") != 7 || left(t, a, "tokens") != 400 {
			t.Errorf("another check under the same id: %+v", d)
		}
		// Whichever receipts the caller uses, the check is settled or refunded only once.
		for range 2 {
			settle(t, b, receipts[1], `"amounts":{"tokens":100}`)
		}
		if n := left(t, a, "tokens"); n != 600 {
			t.Errorf("%v tokens left", n)
		}
		refund(a, receipts[0])
		if n := left(t, a, "tokens"); n != 600 {
			t.Errorf("%v tokens left after another receipt of the same check", n)
		}
		time.Sleep(time.Minute + time.Second)
		before := left(t, a, "requests")
		if post(a, "/v1/check", body); left(t, a, "requests") != before-2 {
			t.Errorf("%v left of %v after a minute", left(t, a, "requests"), before)
		}
	})
}

// A refused check has taken nothing, so a repeat of it is decided again.
func TestRepeatOfARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newAPI(t, weir.Rule{ID: "r", Limits: []weir.Limit{{Count: 60, Window: time.Minute, Burst: 1}}})
		post(h, "/v1/check", `{"key":"k"}`)
		const body = `{"key":"k","id":"1"}`
		if w := post(h, "/v1/check", body); w.Code != 429 {
			t.Fatal(dump(w))
		}
		time.Sleep(time.Second)
		for range 3 {
			if w := post(h, "/v1/check", body); w.Code != 200 {
				t.Error(dump(w))
			}
		}
		if w := post(h, "/v1/check", `{"key":"k","id":"2"}`); w.Code != 429 {
			t.Error(dump(w))
		}
	})
}

// A check with an id can be refunded for as long as any other: within a minute through the record of the check, and
// later through the receipt's own contents.
func TestRefundsOfRepeatedChecks(t *testing.T) {
	for _, after := range []time.Duration{0, 59 * time.Second, 61 * time.Second, 30 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			h := newAPI(t, weir.Rule{ID: "r", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 10, Window: 24 * time.Hour}}})
			const body = `{"key":"k","id":"1","cost":4,"receipt":true}`
			first := decision(t, post(h, "/v1/check", body))
			second := decision(t, post(h, "/v1/check", body))
			time.Sleep(after)
			for i, receipt := range []string{first.Receipt, second.Receipt, first.Receipt} {
				if w := refund(h, receipt); (w.Code == 200) != (i == 0) {
					t.Error(i, dump(w))
				}
			}
			if n := left(t, h, "r"); n != 10 {
				t.Errorf("%v left after a refund %s later", n, after)
			}
			if d := decision(t, post(h, "/v1/check", body)); !d.Allowed || left(t, h, "r") != 6 {
				t.Errorf("after a refund %s later its name is charged anew: %+v", after, d)
			}
		})
	}
}
