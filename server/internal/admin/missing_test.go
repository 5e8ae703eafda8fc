package admin

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/memstore"
)

// cutOff is the store of a region that can't reach the home of global limits.
type cutOff struct{ *memstore.Store }

func (s cutOff) Take(_ context.Context, charges []counter.Charge, results []counter.Result) {
	for i := range charges {
		results[i] = counter.Result{Err: counter.ErrPartition}
	}
}

// TestCountersOfAMissingHome checks that the counters of a global limit name the home that can't be reached, and that
// those of a region's own limit name none.
func TestCountersOfAMissingHome(t *testing.T) {
	a, h := newAPI(t)
	set, err := weir.Compile(weir.Rules{Version: 1, Rules: []weir.Rule{
		{ID: "global", Global: true, Strict: true, Limits: []weir.Limit{weir.PerMinute(10)}}, {ID: "own", Limits: []weir.Limit{weir.PerMinute(10)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	a.Limiter = weir.NewLimiter(cutOff{memstore.New(memstore.Options{})}, set, weir.Options{})
	a.Now = func() Now { return Now{} }
	for _, known := range []bool{true, false} {
		if a.Missing = nil; known {
			a.Missing = func(p *counter.Policy) string { return "home of " + p.Rule }
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://localhost/v1/counters", strings.NewReader(`{"key": "k"}`)))
		var got Counters
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got.Counters) != 2 {
			t.Fatalf("%v: %s", err, w.Body)
		}
		for _, c := range got.Counters {
			want := ""
			if known && c.Rule == "global" {
				want = "home of global"
			}
			if !c.Degraded || c.MissingHome != want {
				t.Errorf("%+v, want %q", c, want)
			}
		}
	}
}

// TestAnAnswerThatIsNoJSON checks that a response that can't be encoded as JSON is an error, not an empty 200.
func TestAnAnswerThatIsNoJSON(t *testing.T) {
	a, h := newAPI(t)
	a.Self = func() rulestore.Node { return rulestore.Node{} }
	a.Now = func() Now { return Now{Totals: Rates{Over: math.Inf(1)}} }
	status, text := ask(t.Context(), h, http.MethodGet, "/v1/now")
	if status != http.StatusInternalServerError || !strings.Contains(text, `"INTERNAL"`) {
		t.Errorf("%d: %s", status, text)
	}
}
