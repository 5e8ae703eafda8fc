package envoy_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// TestSpentQuotasAreObserved checks that if all quotas refuse a request, observers see a refusal by the quota with the
// longest window, and the request's other limits get their tokens back.
func TestSpentQuotasAreObserved(t *testing.T) {
	var told []string
	l := weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{Observe: func(o *weir.Observation) {
		d := o.Decision
		told = append(told, fmt.Sprint(d.Allowed, " ", d.Reason, " ", d.Rule))
	}})
	s := envoy.New(l, envoy.Options{Configured: true})
	config, _, err := envoy.Parse([]envoy.File{{Name: "q.yaml", Text: []byte(`
domain: q
descriptors:
  - {key: short, quota_mode: true, rate_limit: {unit: month, requests_per_unit: 1}}
  - {key: long, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: hard, rate_limit: {unit: year, requests_per_unit: 4}}
`)}}, envoy.Modes{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetConfig(config)
	var answers []string
	for range 5 {
		got, err := s.ShouldRateLimit(t.Context(), request("q", "short=x", "long=x", "hard=x"))
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, fmt.Sprint(got.OverallCode, " ", got.Statuses[2].LimitRemaining))
	}
	if want := []string{"OK 3", "OK 2", "OVER_LIMIT 1", "OVER_LIMIT 1", "OVER_LIMIT 1"}; !slices.Equal(answers, want) {
		t.Errorf("answers %q, want %q", answers, want)
	}
	if want := []string{"true within q.hard", "true within q.hard", "false limited q.long", "false limited q.long", "false limited q.long"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
