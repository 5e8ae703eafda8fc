package checkapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// hostileKeys are different keys that look alike, or that look like something other than a key.
var hostileKeys = []string{
	"a", "A", "a ", " a", "a\x00", "\x00a", "a\r\nX-Injected: 1", "a\n", "a\t", "a:b", "a", "{a}", "a}", "\"a\"", `\a`, `a\u0000`,
	"é", "é", "ａ", "а", "\ufeffa", "\ufffd", "\u2028", "👩‍👩‍👧", "\U0010ffff", "a\u200b", "null", "*", "sk_*", strings.Repeat("a", 1024),
}

// Every key has its own counter, however it is written in JSON.
func TestHostileKeysAreThemselves(t *testing.T) {
	seen := map[string]bool{}
	for _, rule := range []weir.Rule{{ID: "key", Limits: perHour(2)}, {ID: "pair", By: []string{"user", "org"}, Limits: perHour(2)}} {
		h := newAPI(t, rule)
		for i, key := range hostileKeys {
			if seen[fmt.Sprint(rule.ID, key)] {
				continue
			}
			seen[fmt.Sprint(rule.ID, key)] = true
			escaped := ""
			for _, r := range key {
				if r < 0x10000 {
					escaped += fmt.Sprintf(`\u%04X`, r)
				} else {
					r -= 0x10000
					escaped += fmt.Sprintf(`\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
				}
			}
			plain, err := json.Marshal(key)
			if err != nil {
				t.Fatal(err)
			}
			for n, spelled := range []string{string(plain), `"` + escaped + `"`} {
				body := fmt.Sprintf(`{"key":%s,"attributes":{"user":%s,"org":"o"}}`, spelled, spelled)
				if d := decision(t, post(h, "/v1/check", body)); !d.Allowed || d.Remaining != int64(1-n) {
					t.Errorf("%s: key %d %.40q spelled %.40s: %+v", rule.ID, i, key, spelled, d)
				}
			}
		}
	}
}

// Two subjects with different parts are different, even if the joined parts are the same.
func TestNoCollisionOfParts(t *testing.T) {
	h := newAPI(t, weir.Rule{ID: "pair", By: []string{"user", "org"}, Limits: perHour(1)})
	for _, pair := range [][2]string{{"a:b", "c"}, {"a", "b:c"}, {"ab", "c"}, {"a", "bc"}, {"a\x01", "c"}} {
		body, err := json.Marshal(checkapi.CheckRequest{Attributes: map[string]string{"user": pair[0], "org": pair[1]}})
		if err != nil {
			t.Fatal(err)
		}
		if w := post(h, "/v1/check", string(body)); w.Code != 200 {
			t.Errorf("%q shares a counter", pair)
		}
	}
}

// The caller is trusted: key patterns apply as for verified keys, and the tier is accepted.
func TestCallerIsTrusted(t *testing.T) {
	l := newLimiter(t, newStore(), weir.Rules{
		Tiers: []weir.Tier{{Name: "free", Limits: perHour(1)}, {Name: "pro", Limits: perHour(1000)}},
		Keys:  []weir.KeyTier{{Pattern: "sk_pro_*", Tier: "pro"}},
		Rules: []weir.Rule{{ID: "quota"}},
		Allow: []string{"sk_internal_*"},
	})
	h := checkapi.New(l, nil, checkapi.Options{})
	for body, limit := range map[string]int64{
		`{"key":"sk_x"}`:                              1,
		`{"key":"sk_pro_1"}`:                          1000,
		`{"key":"sk_x","attributes":{"tier":"pro"}}`:  1000,
		`{"key":"sk_x","attributes":{"tier":"none"}}`: 1,
		`{"key":"sk_internal_1"}`:                     -1,
	} {
		if d := decision(t, post(h, "/v1/check", body)); d.Limit != limit {
			t.Errorf("%s: limit %d, want %d", body, d.Limit, limit)
		}
	}
}

// The answerer's options decide the headers, but don't change the body.
func TestHeaderDialects(t *testing.T) {
	l := newLimiter(t, newStore(), weir.Rules{Rules: []weir.Rule{{ID: "r", Limits: perHour(1)}}})
	for _, c := range []struct {
		answers httplimit.Answers
		has     []string
		lacks   []string
	}{
		{httplimit.Answers{Dialects: []httplimit.Dialect{}}, nil, []string{"X-RateLimit-Limit", "RateLimit"}},
		{httplimit.Answers{Dialects: []httplimit.Dialect{httplimit.GitHub}}, []string{"X-RateLimit-Used"}, []string{"RateLimit"}},
		{httplimit.Answers{Names: httplimit.HeaderNames{Remaining: "X-Left"}, Expose: true}, []string{"X-Left", "RateLimit", "Access-Control-Expose-Headers"}, nil},
	} {
		a, err := httplimit.NewAnswerer(c.answers)
		if err != nil {
			t.Fatal(err)
		}
		h := checkapi.New(l, a, checkapi.Options{})
		post(h, "/v1/check", `{"key":"k"}`)
		w := post(h, "/v1/check", `{"key":"k"}`)
		for _, name := range append(c.has, "Retry-After", "Cache-Control", "X-RateLimit-Rule") {
			if w.Header().Get(name) == "" {
				t.Errorf("%+v lacks %s: %s", c.answers, name, dump(w))
			}
		}
		for _, name := range c.lacks {
			if w.Header().Get(name) != "" {
				t.Errorf("%+v has %s: %s", c.answers, name, dump(w))
			}
		}
		if d := decision(t, w); w.Code != http.StatusTooManyRequests || d.Code != jsonerror.RateLimitExceeded {
			t.Errorf("%d %+v", w.Code, d)
		}
	}
}

// DecodeCheck, which other packages use, is as strict as the API.
func TestDecodeCheck(t *testing.T) {
	req, err := checkapi.DecodeCheck([]byte(`{"key":"k","ip":"2001:db8::1%eth0","attributes":{"user":"u","region":"eu"},"cost":0}`))
	if err != nil || req.APIKey != "k" || !req.KeyVerified || !req.TierVerified || req.IP.String() != "2001:db8::1" || req.User != "u" ||
		!req.Peek || req.Cost != 1 || req.Attr("attr:region") != "eu" || req.Attr("attr:other") != "" {
		t.Errorf("%+v %v", req, err)
	}
	req, err = checkapi.DecodeCheck([]byte(" {\r\n\t\"key\" : \"\\\"\\\\\\/\\b\\f\\n\\r\\t\" , \"receipt\" : false , \"attributes\" : { } } "))
	if want := "\"\\/\b\f\n\r\t"; err != nil || req.APIKey != want || req.Receipt || req.Attr != nil {
		t.Errorf("%+v %v", req, err)
	}
	_, err = checkapi.DecodeCheck([]byte(`{"kee":"k"}`))
	if e, ok := err.(*jsonerror.Error); !ok || e.Code != jsonerror.BadRequest || e.Error() != `there is no field "kee": did you mean "key"?` {
		t.Errorf("%v", err)
	}
}
