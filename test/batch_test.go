package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// The checks of a batch share calls to Redis, whether they are leased or not. With a round trip for each check, a batch
// of a thousand would take a tenth of a second.
func TestBatchesTravelTogether(t *testing.T) {
	t.Parallel()
	const checks, most = checkapi.MaxChecks, 100
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), `
rules:
  - {id: leased, match: {endpoint: /leased}, limit: 100/minute}
  - {id: strict, match: {endpoint: /strict}, limit: 100/minute, strict: true}
  - {id: minute, match: {endpoint: /layers}, limit: 100/minute}
  - {id: hour, match: {endpoint: /layers}, limit: 1000/hour, algorithm: sliding_window_counter}
`)
	r := redistest.New(t, redistest.Options{})
	n := serve(t, append(patient, "--rules", rules, "--store", "redis://"+r.Addr)...)
	reached(t, n)
	for _, path := range []string{"/leased", "/strict", "/layers"} {
		var batch struct {
			Checks []checkapi.CheckRequest `json:"checks"`
		}
		for i := range checks {
			batch.Checks = append(batch.Checks, checkapi.CheckRequest{Key: fmt.Sprint("k", i), Path: path})
		}
		body, err := json.Marshal(batch)
		if err != nil {
			t.Fatal(err)
		}
		for _, round := range []string{"first", "again"} { // in the second round, a key may be leased
			before := scripts(t, r)
			status, text := post(t, http.DefaultClient, n.HTTP+"/v1/checks", string(body))
			var got struct {
				Results []struct {
					Status   int
					Degraded bool
				}
			}
			if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 || len(got.Results) != checks {
				t.Fatalf("%s: %d, %v, %d results", path, status, err, len(got.Results))
			}
			for i, c := range got.Results {
				if c.Status != 200 || c.Degraded {
					t.Fatalf("%s: check %d: %+v", path, i, c)
				}
			}
			calls := scripts(t, r) - before
			t.Logf("%s, %s: %d script calls for %d checks", path, round, calls, checks)
			if calls > most {
				t.Errorf("%s, %s: %d script calls for %d checks, which may take %d", path, round, calls, checks, most)
			}
		}
	}
}

var scriptCalls = regexp.MustCompile(`^calls=(\d+),`)

// scripts returns how many script calls a server has run.
func scripts(t *testing.T, r *redistest.Server) (calls int) {
	t.Helper()
	info, err := r.Info(context.Background(), "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"eval", "evalsha", "fcall"} {
		if m := scriptCalls.FindStringSubmatch(info["cmdstat_"+command]); m != nil {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			calls += n
		}
	}
	return calls
}
