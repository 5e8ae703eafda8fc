package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

// One client with very short or very long responses doesn't change how much is reserved for the calls of others.
func TestOneClientCantSkewTheEstimate(t *testing.T) {
	for _, length := range []int64{1, 1_000_000} {
		var l Learned
		for i := range uint64(100) {
			l.learn("m", i%20, 1000)
		}
		for range 1000 {
			l.learn("m", 99, length)
		}
		if got, known := l.estimate("m"); !known || got != 1000 {
			t.Errorf("after answers of %d: %d, %v, want 1000", length, got, known)
		}
	}
}

// A client's newest responses replace its oldest ones.
func TestLearnedFromOneClient(t *testing.T) {
	var l Learned
	for i := range int64(100) {
		l.learn("m", 1, 100-i)
	}
	if got, known := l.estimate("m"); !known || got != maxOfOne {
		t.Errorf("%d, %v, want the longest of the last %d", got, known, maxOfOne)
	}
	for i := range uint64(1000) {
		l.learn("m", 2+i, 1)
	}
	if n := len(l.models["m"].last); n != maxAnswers {
		t.Errorf("%d answers are remembered, want %d", n, maxAnswers)
	}
	if got, _ := l.estimate("m"); got != 1 {
		t.Errorf("%d, want 1: the first client's answers are the oldest", got)
	}
}

// A client that makes up API keys still counts as one client.
func TestMadeUpKeysLearnAsOne(t *testing.T) {
	l := limiterOf(t, weir.Options{}, daily("tokens", 1_000_000))
	d, _ := metering(t, jsonAnswer(`{"usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}}`), setup{limiter: l})
	for i := range 2 * maxOfOne {
		req := d.request(t, http.MethodPost, "/v1/chat/completions", strings.NewReader(`{"model": "m"}`))
		req.Header.Set("X-API-Key", fmt.Sprint("made up ", i))
		d.doWhole(t, req)
	}
	if n := len(d.gateway.opts.Learned.models["m"].last); n != maxOfOne {
		t.Errorf("%d answers are remembered, want %d", n, maxOfOne)
	}
	here, there := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	for _, c := range []struct {
		a, b httplimit.Client
		same bool
	}{
		{httplimit.Client{Address: here, ID: "a"}, httplimit.Client{Address: here, ID: "b"}, true},
		{httplimit.Client{Address: here, ID: "a"}, httplimit.Client{Address: there, ID: "a"}, false},
		{httplimit.Client{Address: here, ID: "a", Verified: true}, httplimit.Client{Address: here, ID: "b", Verified: true}, false},
		{httplimit.Client{Address: here, ID: "a", Verified: true}, httplimit.Client{Address: there, ID: "a", Verified: true}, true},
	} {
		if same := learner(&c.a) == learner(&c.b); same != c.same {
			t.Errorf("%v and %v are one: %t", c.a, c.b, same)
		}
	}
}
