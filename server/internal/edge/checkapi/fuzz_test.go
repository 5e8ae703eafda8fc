package checkapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

var endpoints = []string{"/v1/check", "/v1/checks", "/v1/take", "/v1/refund", "/v1/settle", "/v1/release", "/v1/renew"}

// fuzzAPIs returns a function that makes two equal APIs, with a clock that doesn't advance.
func fuzzAPIs(f *testing.F) func() (a, b http.Handler) {
	set, err := weir.Compile(goldenRules())
	if err != nil {
		f.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	one := func() http.Handler {
		store := memstore.New(memstore.Options{MemoryCap: 1 << 20, Now: func() time.Time { return now }})
		return checkapi.New(weir.NewLimiter(store, set, weir.Options{Secret: []byte("of the tests"), Now: func() time.Time { return now }}), nil, checkapi.Options{})
	}
	return func() (http.Handler, http.Handler) { return one(), one() }
}

// FuzzCheck sends arbitrary bytes to every endpoint. The response must be JSON, and not a server error. A body may be
// called invalid JSON only if it is. An accepted body must mean the same to encoding/json: if it is decoded into the
// exported types and encoded again, the response stays the same.
func FuzzCheck(f *testing.F) {
	for _, body := range []string{
		``, `{}`, `null`, `{"key":"k"}`, benchBody, `{"key":"\u0000\ud83d\ude00<>&\u2028","path":"/v1/orders/%2e","cost":0,"receipt":true}`,
		`{"path":"/regional","attributes":{"region":"eu","header:X-Tenant":"t","claim:plan":null}}`, `{"key":"a","key":"b"}`,
		`{"cost":-0}`, `{"cost":9000000000}`, `{"cost":1e3}`, `{"ip":"::1%eth0","method":"POST"}`, `{"attributes":null}`,
		`{"checks":[]}`, `{"checks":[` + benchBody + `,{"kee":1},[[{}]],{"key":"sk_revoked_1"}]}`, `{"checks":[{"key":"k","path":"/tiered","cost":9},{"key":"k","path":"/tiered","cost":9}]}`,
		`{"key":"job:42","limit":"100/minute","burst":20,"cost":1}`, `{"key":"j","limit":"5 per 15m","algorithm":"leaky_bucket","mode":"queue","receipt":true}`,
		`{"key":"j","limit":"9000000000/1ms","cost":9000000000}`, `{"key":"j","limit":"1/366d","burst":3}`, `{"key":"j","limit":"7/1h30m","algorithm":"sliding_window_counter"}`,
		`{"path":"/chat","attributes":{"org":"acme","model":"gpt-1"},"amounts":{"tokens":1500,"input":1e3,"output":0.0000001},"reserve":"2m","id":"x"}`,
		`{"path":"/chat","amounts":{"tokens":1.5E2,"usd":null},"reserve":90}`, `{"path":"/chat","amounts":{"tokens":-1}}`, `{"amounts":{"a":1,"a":2}}`,
		`{"path":"/stream","id":"\u0000","cost":2,"reserve":0.001}`, `{"path":"/stream","reserve":"1e9s"}`, `{"reserve":"24h","amounts":{},"id":null}`,
		`{"checks":[{"path":"/stream"},{"path":"/stream","receipt":true},{"path":"/stream","cost":9},{"path":"/chat","amounts":{"tokens":9000000000}}]}`,
		`{"receipt":"AAAA","amounts":{"tokens":812}}`, `{"receipt":"AAAA","status":200}`, `{"receipt":"AAAA","unknown":true}`, `{"receipt":"A","unknown":true,"status":99}`,
		`{"receipts":["AAAA","",null]}`, `{"receipts":[]}`, `{"receipts":["AAAA","BBBB"]}`, `{"receipt":"A","receipts":["B"]}`,
		`{"receipt":"AAAA"}`, `{"receipt":"6yM6XUNhda_nhT9w8EWbfuBTItyFuX3S99kl2iHGorv2M3dPaEi4w9dlByaUKZTVYR-QhXMqksZomTgnxZg5"}`,
	} {
		for i := range endpoints {
			f.Add(uint8(i), []byte(body))
		}
	}
	pair := fuzzAPIs(f)
	f.Fuzz(func(t *testing.T, endpoint uint8, body []byte) {
		path := endpoints[int(endpoint)%len(endpoints)]
		a, b := pair()
		w := post(a, path, string(body))
		if w.Code >= 500 || !json.Valid(w.Body.Bytes()) || w.Header().Get("Content-Type") != "application/json" {
			t.Fatalf("%s", dump(w))
		}
		checkWire(t, w)
		if w.Code == http.StatusBadRequest && strings.Contains(w.Body.String(), notJSON) && json.Valid(body) && !stricter(w.Body.String()) {
			t.Fatalf("this is JSON: %s", w.Body)
		}
		again, ok := reencode(t, path, body, w)
		if !ok {
			return
		}
		if x := post(b, path, string(again)); unsealed(x) != unsealed(w) {
			t.Fatalf("%s was answered\n%s\nand %s\n%s", body, dump(w), again, dump(x))
		}
	})
}

// stricter reports whether an error is about something that encoding/json accepts.
func stricter(message string) bool {
	return strings.Contains(message, "UTF-8") || strings.Contains(message, "surrogate") || strings.Contains(message, "exceeded max depth")
}

// unsealed returns a response without what varies between calls: receipts, and the time at which a limit is full again.
func unsealed(w *httptest.ResponseRecorder) string {
	return reset.ReplaceAllString(sealed.ReplaceAllString(dump(w), `"receipt":"SEALED"`), "X-Ratelimit-Reset: SOON")
}

var reset = regexp.MustCompile(`X-Ratelimit-Reset: \d+`)

// reencode decodes an accepted body with encoding/json and encodes it again. It reports false if the body wasn't
// accepted, or is too large when encoded again.
func reencode(t *testing.T, path string, body []byte, w *httptest.ResponseRecorder) ([]byte, bool) {
	t.Helper()
	var v any
	most := checkapi.MaxBody
	accepted := bytes.HasPrefix(w.Body.Bytes(), []byte(`{"allowed"`))
	switch path {
	case "/v1/check":
		v = new(checkapi.CheckRequest)
	case "/v1/checks":
		v, most = new(checkapi.BatchRequest), checkapi.MaxBatchBody
		accepted = w.Code == 200 && !bytes.Contains(w.Body.Bytes(), []byte(`"error":`))
	case "/v1/take":
		v = new(checkapi.TakeRequest)
	}
	if !accepted || v == nil {
		return nil, false
	}
	if err := json.Unmarshal(body, v); err != nil {
		t.Fatalf("accepted, though encoding/json says %v: %s", err, body)
	}
	again, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return again, len(again) <= most
}
