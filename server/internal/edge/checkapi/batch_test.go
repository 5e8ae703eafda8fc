package checkapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

func batchOf(checks ...string) string { return `{"checks":[` + strings.Join(checks, ",") + `]}` }

func results(t *testing.T, w *httptest.ResponseRecorder) []checkapi.BatchResult {
	t.Helper()
	checkWire(t, w)
	var got checkapi.BatchResponse
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
		t.Fatal(w.Code, w.Body, err)
	}
	return got.Results
}

// A batch returns the results that its checks would get one by one.
func TestABatchEqualsItsChecks(t *testing.T) {
	var checks []string
	for i := range checkapi.MaxChecks {
		switch i % 7 {
		case 5:
			checks = append(checks, `{"key":"k","cots":1}`)
		case 6:
			checks = append(checks, fmt.Sprintf(`{"key":"key %d","attributes":{"region":"r%d"},"cost":%d}`, i%11, i%2, i%3))
		default:
			checks = append(checks, fmt.Sprintf(`{"key":"key %d"}`, i%11))
		}
	}
	rules := []weir.Rule{
		{ID: "key", Limits: perHour(50)},
		{ID: "region", By: []string{"attr:region"}, Missing: weir.MissingSkip, Limits: perHour(60)},
	}
	one := newAPI(t, rules...)
	got := results(t, post(newAPI(t, rules...), "/v1/checks", batchOf(checks...)))
	if len(got) != len(checks) {
		t.Fatalf("%d results of %d checks", len(got), len(checks))
	}
	statuses := map[int]int{}
	for i, r := range got {
		w := post(one, "/v1/check", checks[i])
		statuses[r.Status]++
		if r.Status != w.Code {
			t.Fatalf("check %d %s: %d alone, %d in a batch", i, checks[i], w.Code, r.Status)
		}
		var alone checkapi.CheckResponse
		if err := json.Unmarshal(w.Body.Bytes(), &alone); err != nil {
			t.Fatal(err)
		}
		switch {
		case r.Status == http.StatusBadRequest:
			if r.CheckResponse != nil || r.Error == nil || !strings.Contains(w.Body.String(), r.Error.Code) {
				t.Fatalf("check %d: %s", i, w.Body)
			}
		case r.Error != nil || r.Allowed != alone.Allowed || r.Remaining != alone.Remaining || r.Rule != alone.Rule || !slices.Equal(r.Limits, alone.Limits):
			t.Fatalf("check %d %s:\n%+v alone,\n%+v in a batch", i, checks[i], alone, *r.CheckResponse)
		}
	}
	if statuses[200] < 100 || statuses[429] < 100 || statuses[400] < 100 {
		t.Errorf("some kinds are missing: %v", statuses)
	}
}

// If a batch is decided by several goroutines, the results keep the order of the checks, and no limit admits more.
func TestParallelBatch(t *testing.T) {
	l := newLimiter(t, newStore(), weir.Rules{Rules: []weir.Rule{
		{ID: "shared", Match: weir.Match{Endpoint: "/shared"}, By: []string{}, Limits: perHour(100)},
		{ID: "own", Match: weir.Match{Endpoint: "/own"}, By: []string{"attr:name"}, Limits: perHour(1_000_000)},
	}})
	h := checkapi.New(l, nil, checkapi.Options{Parallel: true})
	var checks []string
	for i := range 500 {
		checks = append(checks, `{"path":"/shared"}`, fmt.Sprintf(`{"path":"/own","attributes":{"name":"n%d"},"cost":%d}`, i, i+1))
	}
	admitted := 0
	for i, r := range results(t, post(h, "/v1/checks", batchOf(checks...))) {
		switch {
		case i%2 == 1:
			if want := int64(1_000_000 - (i/2 + 1)); r.Remaining != want {
				t.Fatalf("result %d is of another check: %d left, want %d", i, r.Remaining, want)
			}
		case r.Allowed:
			admitted++
		}
	}
	if admitted != 100 {
		t.Errorf("admitted %d of 100", admitted)
	}
}

type panickingStore struct{ counter.Store }

func (panickingStore) Take(context.Context, []counter.Charge, []counter.Result) {
	panic("out of order")
}

// A panic must reach the handler's goroutine, where the server recovers from it. In another goroutine it would end the
// process.
func TestParallelBatchPanicsWhereItIsCaught(t *testing.T) {
	l := newLimiter(t, panickingStore{newStore()}, weir.Rules{Rules: []weir.Rule{{ID: "r", Limits: perHour(1)}}})
	h := checkapi.New(l, nil, checkapi.Options{Parallel: true})
	defer func() {
		if got := recover(); got != "out of order" {
			t.Errorf("recovered %v", got)
		}
	}()
	post(h, "/v1/checks", batchOf(`{"key":"a"}`, `{"key":"b"}`, `{"key":"c"}`))
	t.Error("the panic was lost")
}

// A check in a batch may be as large as a single check.
func TestLargeCheckInBatch(t *testing.T) {
	h := newAPI(t, weir.Rule{ID: "r", Limits: perHour(10)})
	fits := `{"key":"k","path":"` + strings.Repeat("x", checkapi.MaxBody-21) + `"}`
	got := results(t, post(h, "/v1/checks", batchOf(fits, fits[:len(fits)-2]+`x"}`, `{"key":"k"}`)))
	if got[0].Status != 200 || got[1].Status != 413 || got[1].Error.Code != jsonerror.BodyTooLarge || got[2].Status != 200 || got[2].Remaining != 8 {
		t.Errorf("%+v", got)
	}
	if w := post(h, "/v1/check", fits); w.Code != 200 {
		t.Error(w.Code)
	}
}

// An invalid check in a batch doesn't affect the other checks, whatever brackets and quotes it contains.
func TestErrorsStayInTheirCheck(t *testing.T) {
	h := newAPI(t, weir.Rule{ID: "r", Limits: perHour(10)})
	for _, bad := range []string{
		`{"kee":"]}\\"}`, `{"kee":"\"]}"}`, `{"kee":[{"a":[]},{},[[]],-1.5e+3,true,false,null,"\\\""]}`, `[]`, `"]"`, `-0.0`, `null`,
		`{"key":"k","cost":-1}`, "{\"key\":\"\xff\"}", `{"key":"\ud800"}`, `{"key":"a","key":"b"}`, `{"ip":"x"}`,
	} {
		got := results(t, post(h, "/v1/checks", batchOf(`{"key":"k","cost":0}`, bad, ` {"key":"k","cost":0} `)))
		if len(got) != 3 || got[0].Status != 200 || got[1].Status != 400 || got[1].Error == nil || got[2].Status != 200 || got[2].Remaining != 10 {
			t.Errorf("%s: %+v", bad, got)
		}
	}
}

func TestStoreErrorsAreLoggedOnce(t *testing.T) {
	store := &brokenStore{Store: newStore(), rules: []string{"login", "feed", "session", "take"}, receipts: true}
	var told []error
	l := newLimiter(t, store, goldenRules())
	h := checkapi.New(l, nil, checkapi.Options{OnError: func(_ *http.Request, err error) { told = append(told, err) }})
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/v1/check", `{"key":"k","path":"/feed"}`, 200},
		{"/v1/check", `{"key":"k","path":"/login"}`, 503},
		{"/v1/take", `{"key":"k","limit":"1/hour"}`, 200},
		{"/v1/checks", batchOf(`{"key":"k","path":"/feed"}`, `{"key":"k","path":"/v1/orders"}`, `{"key":"k","path":"/login"}`), 200},
	} {
		told = nil
		if w := post(h, c.path, c.body); w.Code != c.status || len(told) != 1 || strings.Contains(dump(w), "shard") {
			t.Errorf("%s %s: %s, told %v", c.path, c.body, dump(w), told)
		}
	}
	told = nil
	if post(h, "/v1/check", `{"key":"k","path":"/v1/orders"}`); told != nil {
		t.Error(told)
	}

	// One limit's store has failed, so it refuses the request. The healthy limit still reports its state.
	var got checkapi.CheckResponse
	w := post(h, "/v1/check", `{"key":"k","path":"/session"}`)
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if w.Code != 503 || got.Code != jsonerror.LimiterUnavailable || got.Remaining != -1 || got.Limits[0].Remaining != -1 || !got.Limits[1].Allowed {
		t.Errorf("%d %+v", w.Code, got)
	}
}
