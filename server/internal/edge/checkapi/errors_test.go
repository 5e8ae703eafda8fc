package checkapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

const notJSON = "not valid JSON at byte "

// An invalid request is refused with an error that says what to do.
func TestErrors(t *testing.T) {
	long := strings.Repeat("x", checkapi.MaxText+1)
	many := func(n int, with string) string { return strings.TrimSuffix(strings.Repeat(with+",", n), ",") }
	amounts := func(n int) string {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprintf(`"a%d":1`, i))
		}
		return strings.Join(s, ",")
	}
	const noTime = `reserve: must be a time from 1ms to 24h such as "2m", or that many seconds as a number`
	attributes := ""
	for i := range 65 {
		attributes += `,"a` + strings.Repeat("b", i) + `":"v"`
	}
	for _, c := range []struct{ path, body, want string }{
		{"/v1/check", ``, "the body is empty: send a JSON object"},
		{"/v1/check", " \n\t", "the body is empty: send a JSON object"},
		{"/v1/check", `null`, "body: must be an object, got null"},
		{"/v1/check", `[]`, "body: must be an object, got a list"},
		{"/v1/check", `"k"`, "body: must be an object, got a string"},
		{"/v1/check", `key=k`, notJSON + "1: invalid character 'k' at start of value"},
		{"/v1/check", "\x00", notJSON + `1: invalid character '\x00' at start of value`},
		{"/v1/check", "\ufeff{}", notJSON + `1: invalid character '\ufeff' at start of value`},
		{"/v1/check", `{`, notJSON + "2: the body ends too early"},
		{"/v1/check", `{key: "k"}`, notJSON + "2: invalid character 'k' at start of value"},
		{"/v1/check", `{"key": "k",}`, notJSON + "12: invalid character ',' at start of value"},
		{"/v1/check", `{"key" "k"}`, notJSON + `8: invalid character '"' after object name (expecting ':'), in /key`},
		{"/v1/check", `{"key`, notJSON + "6: the body ends too early"},
		{"/v1/check", `{"key":`, notJSON + "8: the body ends too early"},
		{"/v1/check", `{"key":}`, notJSON + "8: missing value after object name, in /key"},
		{"/v1/check", `{"key":'k'}`, notJSON + `8: invalid character '\'' at start of value, in /key`},
		{"/v1/check", `{"key":"k`, notJSON + "10: the body ends too early"},
		{"/v1/check", `{"key":"k\`, notJSON + "11: the body ends too early"},
		{"/v1/check", `{"key":"k"`, notJSON + "11: the body ends too early"},
		{"/v1/check", `{"key":"k" "ip":"::1"}`, notJSON + `12: invalid character '"' after object value (expecting ',' or '}')`},
		{"/v1/check", `{"key":"k"}}`, notJSON + "12: nothing may follow the object"},
		{"/v1/check", `{"key":"k"} {"key":"k"}`, notJSON + "13: nothing may follow the object"},
		{"/v1/check", "{\"key\":\"a\nb\"}", notJSON + `10: invalid character '\n' in string (expecting non-control character), in /key`},
		{"/v1/check", "{\"key\":\"a\xffb\"}", notJSON + "8: the string that begins here isn't UTF-8, or has half of a surrogate pair"},
		{"/v1/check", "{\"key\":\"\xed\xa0\x80\"}", notJSON + "8: the string that begins here isn't UTF-8, or has half of a surrogate pair"},
		{"/v1/check", "{\"\xff\":1}", notJSON + "2: the string that begins here isn't UTF-8, or has half of a surrogate pair"},
		{"/v1/check", `{"key":"\ud800"}`, notJSON + "8: the string that begins here isn't UTF-8, or has half of a surrogate pair"},
		{"/v1/check", `{"key":"\udc00\ud800"}`, notJSON + "8: the string that begins here isn't UTF-8, or has half of a surrogate pair"},
		{"/v1/check", `{"key":"\ud800\u0041"}`, notJSON + "8: the string that begins here isn't UTF-8, or has half of a surrogate pair"},
		{"/v1/check", `{"key":"\u00g0"}`, notJSON + "9: invalid escape sequence `\\u00g0` in string, in /key"},
		{"/v1/check", `{"key":"\u00`, notJSON + "13: the body ends too early"},
		{"/v1/check", `{"key":"\x41"}`, notJSON + "9: invalid escape sequence `\\x` in string, in /key"},
		{"/v1/check", `{"cost":01}`, notJSON + "10: invalid character '1' after object value (expecting ',' or '}')"},
		{"/v1/check", `{"cost":-}`, notJSON + "10: invalid character '}' in number (expecting digit), in /cost"},
		{"/v1/check", `{"cost":1.}`, notJSON + "11: invalid character '}' in number (expecting digit), in /cost"},
		{"/v1/check", `{"cost":1e}`, notJSON + "11: invalid character '}' in number (expecting digit), in /cost"},
		{"/v1/check", `{"cost":+1}`, notJSON + "9: invalid character '+' at start of value, in /cost"},
		{"/v1/check", `{"cost":NaN}`, notJSON + "9: invalid character 'N' at start of value, in /cost"},
		{"/v1/check", `{"receipt":tru}`, notJSON + "15: invalid character '}' in literal true (expecting 'e'), in /receipt"},
		{"/v1/check", `{"key":nul}`, notJSON + "11: invalid character '}' in literal null (expecting 'l'), in /key"},
		{"/v1/check", `{"receipt":nil}`, notJSON + "13: invalid character 'i' in literal null (expecting 'u'), in /receipt"},

		{"/v1/check", `{"key":7}`, "key: must be a string, got a number"},
		{"/v1/check", `{"key":["k"]}`, "key: must be a string, got a list"},
		{"/v1/check", `{"method":true}`, "method: must be a string, got a boolean"},
		{"/v1/check", `{"path":{}}`, "path: must be a string, got an object"},
		{"/v1/check", `{"attributes":"user"}`, "attributes: must be an object, got a string"},
		{"/v1/check", `{"attributes":{"user":42}}`, "attributes.user: must be a string, got a number"},
		{"/v1/check", `{"attributes":{"region":42}}`, `attributes["region"]: must be a string, got a number`},
		{"/v1/check", `{"cost":"1"}`, "cost: must be a whole number, got a string"},
		{"/v1/check", `{"cost":1.5}`, "cost: must be a whole number, written without fraction and exponent"},
		{"/v1/check", `{"cost":1e3}`, "cost: must be a whole number, written without fraction and exponent"},
		{"/v1/check", `{"cost":-1}`, "cost: must be from 0 to 9000000000"},
		{"/v1/check", `{"cost":9000000001}`, "cost: must be from 0 to 9000000000"},
		{"/v1/check", `{"cost":18446744073709551617}`, "cost: must be from 0 to 9000000000"},
		{"/v1/check", `{"cost":-18446744073709551617}`, "cost: must be from 0 to 9000000000"},
		{"/v1/check", `{"receipt":1}`, "receipt: must be true or false, got a number"},
		{"/v1/check", `{"ip":"203.0.113.7:80"}`, "ip: must be an IPv4 or IPv6 address without a port, such as 203.0.113.7 or 2001:db8::1"},
		{"/v1/check", `{"ip":"203.0.113.0/24"}`, "ip: must be an IPv4 or IPv6 address without a port, such as 203.0.113.7 or 2001:db8::1"},
		{"/v1/check", `{"ip":"localhost"}`, "ip: must be an IPv4 or IPv6 address without a port, such as 203.0.113.7 or 2001:db8::1"},
		{"/v1/check", `{"key":"` + long + `"}`, "key: must be at most 1024 bytes, got 1025"},
		{"/v1/check", `{"attributes":{"org":"` + long + `"}}`, "attributes.org: must be at most 1024 bytes, got 1025"},
		{"/v1/check", `{"attributes":{"region":"` + long + `"}}`, `attributes["region"]: must be at most 1024 bytes, got 1025`},
		{"/v1/check", `{"attributes":{"` + long + `":"v"}}`, "attributes: a name must have from 1 to 256 bytes"},
		{"/v1/check", `{"attributes":{"":"v"}}`, "attributes: a name must have from 1 to 256 bytes"},
		{"/v1/check", `{"attributes":{"user":"u"` + attributes + `}}`, "attributes: there may be at most 64 beside user, org and tier"},

		{"/v1/check", `{"key":"a","key":"b"}`, "key: is given twice"},
		{"/v1/check", `{"key":"a","\u006bey":"b"}`, "key: is given twice"},
		{"/v1/check", `{"cost":null,"cost":5}`, "cost: is given twice"},
		{"/v1/check", `{"receipt":true,"receipt":false}`, "receipt: is given twice"},
		{"/v1/check", `{"attributes":{},"attributes":{}}`, "attributes: is given twice"},
		{"/v1/check", `{"attributes":{"tier":"a","tier":"b"}}`, "attributes.tier: is given twice"},
		{"/v1/check", `{"attributes":{"region":"a","region":"b"}}`, `attributes["region"]: is given twice`},
		{"/v1/check", `{"attributes":{"region":"a","attr:region":"b"}}`, `attributes["attr:region"]: is given twice`},
		{"/v1/check", `{"attributes":{"header:X-A":"a","header:x-a":"b"}}`, `attributes["header:x-a"]: is given twice`},

		{"/v1/check", `{"kee":"k"}`, `there is no field "kee": did you mean "key"?`},
		{"/v1/check", `{"Key":"k"}`, `there is no field "Key": did you mean "key"?`},
		{"/v1/check", `{"api_key":"k"}`, `there is no field "api_key": did you mean "key"?`},
		{"/v1/check", `{"user":"u"}`, `there is no field "user": did you mean "attributes.user"?`},
		{"/v1/check", `{"limit":"1/s"}`, `there is no field "limit": the fields are key, method, path, ip, attributes, cost, receipt, amounts, reserve, id`},
		{"/v1/check", `{"` + long + `":1}`, `there is no field "` + long[:64] + `…": the fields are key, method, path, ip, attributes, cost, receipt, amounts, reserve, id`},
		{"/v1/check", `{"\u0000\"<":1}`, `there is no field "\x00\"<": the fields are key, method, path, ip, attributes, cost, receipt, amounts, reserve, id`},
		{"/v1/check", strings.Repeat(`{"a":`, 10000), `there is no field "a": the fields are key, method, path, ip, attributes, cost, receipt, amounts, reserve, id`},
		{"/v1/check", `{"key":` + strings.Repeat(`[`, 60000), "key: must be a string, got a list"},

		{"/v1/check", `{"amounts":7}`, "amounts: must be an object, got a number"},
		{"/v1/check", `{"amounts":[1]}`, "amounts: must be an object, got a list"},
		{"/v1/check", `{"amounts":{"tokens":"NaN"}}`, "amounts.tokens: must be a number, got a string"},
		{"/v1/check", `{"amounts":{"tokens":"1500"}}`, "amounts.tokens: must be a number, got a string"},
		{"/v1/check", `{"amounts":{"tokens":null}}`, "amounts.tokens: must be a number, got null"},
		{"/v1/check", `{"amounts":{"tokens":{}}}`, "amounts.tokens: must be a number, got an object"},
		{"/v1/check", `{"amounts":{"tokens":NaN}}`, notJSON + "22: invalid character 'N' at start of value, in /amounts/tokens"},
		{"/v1/check", `{"amounts":{"tokens":-1}}`, "amounts.tokens: must be from 0 to 9000000000"},
		{"/v1/check", `{"amounts":{"tokens":-0.000001}}`, "amounts.tokens: must be from 0 to 9000000000"},
		{"/v1/check", `{"amounts":{"tokens":9000000000.000001}}`, "amounts.tokens: must be from 0 to 9000000000"},
		{"/v1/check", `{"amounts":{"tokens":1e400}}`, "amounts.tokens: must be from 0 to 9000000000"},
		{"/v1/check", `{"amounts":{"tokens":99999999999999999999999999}}`, "amounts.tokens: must be from 0 to 9000000000"},
		{"/v1/check", `{"amounts":{"tokens":1,"tokens":1}}`, "amounts.tokens: is given twice"},
		{"/v1/check", `{"amounts":{"tokens":1,"\u0074okens":1}}`, "amounts.tokens: is given twice"},
		{"/v1/check", `{"amounts":{},"amounts":{}}`, "amounts: is given twice"},
		{"/v1/check", `{"amounts":{"Tokens":1}}`, "amounts: a name must have from 1 to 64 of a-z, 0-9 and _, such as tokens"},
		{"/v1/check", `{"amounts":{"":1}}`, "amounts: a name must have from 1 to 64 of a-z, 0-9 and _, such as tokens"},
		{"/v1/check", `{"amounts":{"a b":1}}`, "amounts: a name must have from 1 to 64 of a-z, 0-9 and _, such as tokens"},
		{"/v1/check", `{"amounts":{"` + long[:65] + `":1}}`, "amounts: a name must have from 1 to 64 of a-z, 0-9 and _, such as tokens"},
		{"/v1/check", `{"amounts":{` + amounts(17) + `}}`, "amounts: there may be at most 16"},
		{"/v1/check", `{"reserve":true}`, "reserve: must be a time, got a boolean"},
		{"/v1/check", `{"reserve":{}}`, "reserve: must be a time, got an object"},
		{"/v1/check", `{"reserve":"2"}`, noTime}, {"/v1/check", `{"reserve":""}`, noTime}, {"/v1/check", `{"reserve":"-2m"}`, noTime},
		{"/v1/check", `{"reserve":"24h0m1s"}`, noTime}, {"/v1/check", `{"reserve":"999us"}`, noTime}, {"/v1/check", `{"reserve":"1d"}`, noTime},
		{"/v1/check", `{"reserve":0}`, noTime}, {"/v1/check", `{"reserve":-1}`, noTime}, {"/v1/check", `{"reserve":86401}`, noTime},
		{"/v1/check", `{"reserve":1e300}`, noTime}, {"/v1/check", `{"reserve":"9999999999999h"}`, noTime},
		{"/v1/check", `{"reserve":"\ud800"}`, notJSON + "12: the string that begins here isn't UTF-8, or has half of a surrogate pair"},
		{"/v1/check", `{"id":7}`, "id: must be a string, got a number"},
		{"/v1/check", `{"id":""}`, "id: must have from 1 to 128 bytes, got 0"},
		{"/v1/check", `{"id":"` + long[:129] + `"}`, "id: must have from 1 to 128 bytes, got 129"},
		{"/v1/check", `{"id":"a","id":"b"}`, "id: is given twice"},
		{"/v1/check", `{"tokens":1500}`, `there is no field "tokens": did you mean "amounts.tokens"?`},
		{"/v1/check", `{"amount":{}}`, `there is no field "amount": did you mean "amounts"?`},
		{"/v1/check", `{"model":"gpt"}`, `there is no field "model": did you mean "attributes.model"?`},
		{"/v1/check", `{"request_id":"x"}`, `there is no field "request_id": did you mean "id"?`},
		{"/v1/take", `{"tokens":1}`, `there is no field "tokens": did you mean "cost"?`},
		{"/v1/take", `{"id":"x"}`, `there is no field "id": did you mean "key"?`},
		{"/v1/take", `{"key":"k","limit":"1/s","reserve":"2m"}`, `there is no field "reserve": the fields are key, limit, burst, cost, receipt, algorithm, mode`},

		{"/v1/checks", ``, "the body is empty: send a JSON object"},
		{"/v1/checks", `{}`, `checks: is missing: send {"checks": [{"key": …}, …]}`},
		{"/v1/checks", `[{"key":"k"}]`, "body: must be an object, got a list"},
		{"/v1/checks", `{"checks":{}}`, "checks: must be a list, got an object"},
		{"/v1/checks", `{"checks":null}`, "checks: must be a list, got null"},
		{"/v1/checks", `{"checks":[],"checks":[]}`, "checks: is given twice"},
		{"/v1/checks", `{"check":[]}`, `there is no field "check": did you mean "checks"?`},
		{"/v1/checks", `{"checks":[` + many(1001, `{"key":"k"}`) + `]}`, "checks: there may be at most 1000: send the rest in another call"},
		{"/v1/checks", `{"checks":[{"key":"k"},]}`, notJSON + "23: invalid character ',' at start of value, in /checks"},
		{"/v1/checks", `{"checks":[{"key":"k"} {"key":"k"}]}`, notJSON + "24: invalid character '{' after array element (expecting ',' or ']'), in /checks"},
		{"/v1/checks", `{"checks":[{"key":"k"}`, notJSON + "23: the body ends too early"},
		{"/v1/checks", `{"checks":[{"key":"k"}]`, notJSON + "24: the body ends too early"},
		{"/v1/checks", `{"checks":[{"key":"k"}]}!`, notJSON + "25: nothing may follow the object"},
		{"/v1/checks", `{"checks":[{"key":[1,2}]}`, notJSON + "23: invalid character '}' after array element (expecting ',' or ']'), in /checks/0/key"},
		{"/v1/checks", `{"checks":[{"x":{"y":1]}]}`, notJSON + "23: invalid character ']' after object value (expecting ',' or '}'), in /checks/0"},
		{"/v1/checks", `{"checks":[{"x":1,2}]}`, notJSON + "19: object member name must be a string, in /checks/0"},
		{"/v1/checks", `{"checks":[{"x":01}]}`, notJSON + "18: invalid character '1' after object value (expecting ',' or '}'), in /checks/0"},
		{"/v1/checks", `{"checks":[{"x":"}]}`, notJSON + "21: the body ends too early"},
		{"/v1/checks", `{"checks":[{"x":tru}]}`, notJSON + "20: invalid character '}' in literal true (expecting 'e'), in /checks/0/x"},
		{"/v1/checks", `{"checks":[{"key":` + strings.Repeat(`[`, 1000), notJSON + "1019: the body ends too early"},
		{"/v1/checks", `{"checks":` + strings.Repeat(`[`, 100_000), notJSON + "10010: exceeded max depth, in /checks" + strings.Repeat("/0", 28) + "/…"},

		{"/v1/take", `{}`, "key: is missing: it names the counter"},
		{"/v1/take", `{"key":"","limit":"1/s"}`, "key: is missing: it names the counter"},
		{"/v1/take", `{"key":"k"}`, `limit: is missing: give a count and a window such as "100/minute"`},
		{"/v1/take", `{"key":"k","limit":100}`, "limit: must be a string, got a number"},
		{"/v1/take", `{"key":"k","limit":"sk_secret"}`, `limit: must be a count and a window such as "100/minute", "5/15m" or "20 per second"`},
		{"/v1/take", `{"key":"k","limit":"sk_secret/minute"}`, `limit: must be a count and a window such as "100/minute", "5/15m" or "20 per second"`},
		{"/v1/take", `{"key":"k","limit":"1/sk_secret"}`, `limit: must be a count and a window such as "100/minute", "5/15m" or "20 per second"`},
		{"/v1/take", `{"key":"k","limit":"` + long + `"}`, "limit: must be at most 64 bytes, got 1025"},
		{"/v1/take", `{"key":"k","limit":"0/minute"}`, "limit: must be at least 1, got 0"},
		{"/v1/take", `{"key":"k","limit":"1/500d"}`, "limit: the window must be at most 366d, got 500d"},
		{"/v1/take", `{"key":"k","limit":"1/day","burst":100000}`, "limit: the bucket would take more than ten years to fill"},
		{"/v1/take", `{"key":"k","limit":"1/day","burst":0}`, "burst: must be from 1 to 9000000000"},
		{"/v1/take", `{"key":"k","limit":"1/day","burst":-1}`, "burst: must be from 1 to 9000000000"},
		{"/v1/take", `{"key":"k","limit":"1/day","burst":2,"algorithm":"fixed_window"}`, "burst: fixed_window has no burst: it admits its limit within a window"},
		{"/v1/take", `{"key":"k","limit":"2000000/day","algorithm":"sliding_window_log"}`, "limit: must be at most 1000000 for sliding_window_log, got 2000000"},
		{"/v1/take", `{"key":"k","limit":"1/s","cost":-1}`, "cost: must be from 0 to 9000000000"},
		{"/v1/take", `{"key":"k","limit":"1/s","algorithm":"gcra"}`, "algorithm: must be one of token_bucket, leaky_bucket, leaky_queue, fixed_window, sliding_window_log, sliding_window_counter"},
		{"/v1/take", `{"key":"k","limit":"1/s","algorithm":"fixed"}`, `algorithm: unknown value: did you mean "fixed_window"?`},
		{"/v1/take", `{"key":"k","limit":"1/s","algorithm":"fixed_windw"}`, `algorithm: unknown value: did you mean "fixed_window"?`},
		{"/v1/take", `{"key":"k","limit":"1/s","algorithm":3}`, "algorithm: must be a string, got a number"},
		{"/v1/take", `{"key":"k","limit":"1/s","mode":"queue"}`, `mode: only "algorithm": "leaky_bucket" has one`},
		{"/v1/take", `{"key":"k","limit":"1/s","mode":"meter","algorithm":"leaky_queue"}`, `mode: only "algorithm": "leaky_bucket" has one`},
		{"/v1/take", `{"key":"k","limit":"1/s","mode":"x","algorithm":"leaky_bucket"}`, "mode: must be one of meter, queue"},
		{"/v1/take", `{"key":"k","limit":"1/s","path":"/"}`, `there is no field "path": the fields are key, limit, burst, cost, receipt, algorithm, mode`},
		{"/v1/take", `{"key":"k","rate":"1/s"}`, `there is no field "rate": did you mean "limit"?`},

		{"/v1/refund", `{}`, `receipt: is missing: ask for one with "receipt": true in a check`},
		{"/v1/refund", `{"receipt":true}`, "receipt: must be a string, got a boolean"},
		{"/v1/refund", `{"receipt":null}`, `receipt: is missing: ask for one with "receipt": true in a check`},
		{"/v1/refund", `{"receipt":"x","amounts":{}}`, `there is no field "amounts": the fields are receipt`},

		{"/v1/settle", ``, "the body is empty: send a JSON object"},
		{"/v1/settle", `{"unknown":true}`, `receipt: is missing: ask for one with "receipt": true in a check`},
		{"/v1/settle", `{"receipt":"x"}`, `amounts: is missing: say what was used, as in {"tokens": 812}, or "status": 200, or that it is "unknown": true`},
		{"/v1/settle", `{"receipt":"x","unknown":false}`, `amounts: is missing: say what was used, as in {"tokens": 812}, or "status": 200, or that it is "unknown": true`},
		{"/v1/settle", `{"receipt":"x","amounts":null,"status":null}`, `amounts: is missing: say what was used, as in {"tokens": 812}, or "status": 200, or that it is "unknown": true`},
		{"/v1/settle", `{"receipt":"x","amounts":{}}`, `amounts: has none: say what was used, as in {"tokens": 812}, or leave it out`},
		{"/v1/settle", `{"receipt":"x","amounts":{},"status":200}`, `amounts: has none: say what was used, as in {"tokens": 812}, or leave it out`},
		{"/v1/settle", `{"receipt":"x","amounts":{"tokens":-1}}`, "amounts.tokens: must be from 0 to 9000000000"},
		{"/v1/settle", `{"receipt":"x","amounts":{"tokens":1},"unknown":true}`, "unknown: can't stand beside amounts and status: it says that nothing is known, and keeps the estimate"},
		{"/v1/settle", `{"receipt":"x","status":200,"unknown":true}`, "unknown: can't stand beside amounts and status: it says that nothing is known, and keeps the estimate"},
		{"/v1/settle", `{"receipt":"x","status":"200"}`, "status: must be a whole number, got a string"},
		{"/v1/settle", `{"receipt":"x","status":0}`, "status: must be from 100 to 599"},
		{"/v1/settle", `{"receipt":"x","status":600}`, "status: must be from 100 to 599"},
		{"/v1/settle", `{"receipt":"x","unknown":1}`, "unknown: must be true or false, got a number"},
		{"/v1/settle", `{"receipt":"x","usage":{}}`, `there is no field "usage": did you mean "amounts"?`},
		{"/v1/settle", `{"receipt":"x","receipt":"x","unknown":true}`, "receipt: is given twice"},
		{"/v1/release", `{}`, `receipt: is missing: ask for one with "receipt": true in a check`},
		{"/v1/release", `{"receipts":["x"]}`, `there is no field "receipts": did you mean "receipt"?`},
		{"/v1/renew", `{}`, `receipt: is missing: ask for one with "receipt": true in a check`},
		{"/v1/renew", `{"receipt":"x","receipts":["y"]}`, "receipts: can't stand beside receipt: send one of them"},
		{"/v1/renew", `{"receipts":"x"}`, "receipts: must be a list, got a string"},
		{"/v1/renew", `{"receipts":null}`, "receipts: must be a list, got null"},
		{"/v1/renew", `{"receipts":["x",null]}`, "receipts[1]: must be a string, got null"},
		{"/v1/renew", `{"receipts":["x",["y"]]}`, "receipts[1]: must be a string, got a list"},
		{"/v1/renew", `{"receipts":["\ud800"]}`, notJSON + "14: the string that begins here isn't UTF-8, or has half of a surrogate pair"},
		{"/v1/renew", `{"receipts":[` + many(1001, `"x"`) + `]}`, "receipts: there may be at most 1000: send the rest in another call"},
		{"/v1/refund", `{"reciept":"x"}`, `there is no field "reciept": did you mean "receipt"?`},
	} {
		h := newAPI(t, weir.Rule{ID: "r", Limits: perHour(10)})
		w := post(h, c.path, c.body)
		checkWire(t, w)
		var got checkapi.ErrorResponse
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if w.Code != http.StatusBadRequest || got.Error.Code != jsonerror.BadRequest || got.Error.Message != c.want {
			t.Errorf("%s %.80s\ngot  %d %s\nwant %s", c.path, c.body, w.Code, got.Error.Message, c.want)
		}
		// Whatever was decoded before the error, nothing was charged.
		if w := post(h, "/v1/check", `{"key":"k","cost":0}`); !strings.Contains(w.Body.String(), `"remaining":10`) {
			t.Errorf("%s %.80s was charged: %s", c.path, c.body, w.Body)
		}
	}
}

func TestWrongMethodPathOrMedia(t *testing.T) {
	h := newAPI(t, weir.Rule{ID: "r", Limits: perHour(10)})
	for _, c := range []struct {
		method, path, header, body string
		status                     int
		code                       string
	}{
		{"GET", "/v1/check", "", "", 405, jsonerror.MethodNotAllowed},
		{"PUT", "/v1/checks", "", "{}", 405, jsonerror.MethodNotAllowed},
		{"HEAD", "/v1/take", "", "", 405, jsonerror.MethodNotAllowed},
		{"OPTIONS", "/v1/refund", "", "", 405, jsonerror.MethodNotAllowed},
		{"GET", "/v1/settle", "", "", 405, jsonerror.MethodNotAllowed},
		{"DELETE", "/v1/release", "", "", 405, jsonerror.MethodNotAllowed},
		{"PUT", "/v1/renew", "", "{}", 405, jsonerror.MethodNotAllowed},
		{"POST", "/", "", "{}", 404, jsonerror.NotFound},
		{"GET", "/v1/check/", "", "", 404, jsonerror.NotFound},
		{"POST", "/v1/nothing", "", "{}", 404, jsonerror.NotFound},
		{"POST", "/v1/check", "Content-Type: text/plain", "{}", 415, jsonerror.UnsupportedMediaType},
		{"POST", "/v1/check", "Content-Type: application/x-www-form-urlencoded", "{}", 200, ""}, // curl -d sends this
		{"POST", "/v1/check", "Content-Type: application/x-www-form-urlencoded; a=b", "{}", 415, jsonerror.UnsupportedMediaType},
		{"POST", "/v1/check", "Content-Type: application/json; charset=latin1", "{}", 415, jsonerror.UnsupportedMediaType},
		{"POST", "/v1/check", "Content-Type: ;", "{}", 415, jsonerror.UnsupportedMediaType},
		{"POST", "/v1/check", "Content-Encoding: gzip", "{}", 415, jsonerror.UnsupportedMediaType},
		{"POST", "/v1/check", "Content-Encoding: identity", "{}", 200, ""},
		{"POST", "/v1/check", "Content-Type: application/json; charset=UTF-8", "{}", 200, ""},
		{"POST", "/v1/check", "Content-Type: application/vnd.acme+json", "{}", 200, ""},
		{"POST", "/v1/check", "Content-Type: Application/JSON", "{}", 200, ""},
		{"POST", "/v1/check", "", `{"path":"` + strings.Repeat("x", checkapi.MaxBody) + `"}`, 413, jsonerror.BodyTooLarge},
		{"POST", "/v1/check", "", `{"path":"` + strings.Repeat("x", checkapi.MaxBody-11) + `"}`, 200, ""},
		{"POST", "/v1/take", "", strings.Repeat(" ", checkapi.MaxBody+1), 413, jsonerror.BodyTooLarge},
		{"POST", "/v1/refund", "", strings.Repeat(" ", checkapi.MaxBody+1), 413, jsonerror.BodyTooLarge},
		{"POST", "/v1/settle", "", strings.Repeat(" ", checkapi.MaxBody+1), 413, jsonerror.BodyTooLarge},
		{"POST", "/v1/release", "", strings.Repeat(" ", checkapi.MaxBody+1), 413, jsonerror.BodyTooLarge},
		{"POST", "/v1/renew", "", strings.Repeat(" ", checkapi.MaxBatchBody+1), 413, jsonerror.BodyTooLarge},
		{"POST", "/v1/renew", "", `{"receipts":[]}` + strings.Repeat(" ", checkapi.MaxBatchBody-15), 200, ""},
		{"POST", "/v1/checks", "", strings.Repeat(" ", checkapi.MaxBatchBody+1), 413, jsonerror.BodyTooLarge},
		{"POST", "/v1/checks", "", `{"checks":[]}` + strings.Repeat(" ", checkapi.MaxBatchBody-13), 200, ""},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		if name, value, ok := strings.Cut(c.header, ": "); ok {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var got checkapi.ErrorResponse
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if w.Code != c.status || got.Error.Code != c.code || (c.code != "" && got.Error.Message == "") {
			t.Errorf("%s %s %s: got %d %+v, want %d %s", c.method, c.path, c.header, w.Code, got.Error, c.status, c.code)
		}
		if allow := w.Header().Get("Allow"); (allow == "POST") != (c.status == 405) {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, allow)
		}
		if w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %v", c.method, c.path, w.Header())
		}
	}
}

// Error responses never contain a value from the request, because it may be a key.
func TestErrorsRepeatNoValue(t *testing.T) {
	h := newAPI(t)
	for _, body := range []string{
		`{"key":"sk_hidden"`, `{"key":"sk_hidden" 1}`, `{"key":"sk_hidden","ip":"sk_hidden"}`, `{"key":["sk_hidden"]}`,
		`{"key":"sk_hidden","limit":"sk_hidden"}`, `{"key":"k","limit":"1/s","algorithm":"sk_hidden"}`, `{"receipt":"sk_hidden"}`,
		`{"key":"sk_hidden\x"}`, `{"key":"sk_hidden` + strings.Repeat("x", 1024) + `"}`, `{"attributes":{"user":["sk_hidden"]}}`,
		`{"checks":[{"key":"sk_hidden","cost":-1},{"ip":"sk_hidden"},"sk_hidden"]}`, `{"attributes":{"region":["sk_hidden"]}}`,
		`{"key":"k","limit":"1/s","mode":"sk_hidden"}`, `{"id":"sk_hidden` + strings.Repeat("x", 128) + `"}`, `{"id":["sk_hidden"]}`, `{"id":"sk_hidden","cost":-1}`,
		`{"amounts":{"tokens":"sk_hidden"}}`, `{"amounts":{"SK_hidden":1}}`, `{"amounts":{"sk_1_hidden_key_of_a_client":-1}}`, `{"reserve":"sk_hidden"}`,
		`{"receipt":"sk_hidden","unknown":true}`, `{"receipt":"sk_hidden","amounts":{"tokens":1}}`, `{"receipts":["sk_hidden"]}`, `{"receipts":["sk_hidden",7]}`,
		`{"receipt":"sk_hidden","status":"sk_hidden"}`, `{"receipt":"sk_hidden","receipts":["sk_hidden"]}`,
	} {
		for _, path := range checkapi.Paths {
			if w := post(h, path, body); strings.Contains(dump(w), "hidden") {
				t.Errorf("%s %.60s: %s", path, body, dump(w))
			}
		}
	}
}
