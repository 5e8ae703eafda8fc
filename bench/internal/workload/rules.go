package workload

import (
	"fmt"

	"github.com/weirhq/weir"
)

// RulesPath is a path whose GET matches exactly one of [HundredRules].
const RulesPath = "/v1/resource12/8431"

// HundredRules limits four endpoints of each of 25 resources, by API key.
func HundredRules(l weir.Limit) []weir.Rule {
	var rules []weir.Rule
	for i := range 25 {
		for _, pattern := range []string{"GET /v1/resource%d", "POST /v1/resource%d", "GET /v1/resource%d/{id}", "DELETE /v1/resource%d/{id}"} {
			rules = append(rules, weir.Rule{
				ID:     fmt.Sprintf("rule-%d", len(rules)),
				Match:  weir.Match{Endpoint: fmt.Sprintf(pattern, i)},
				By:     []string{"api_key"},
				Limits: []weir.Limit{l},
			})
		}
	}
	return rules
}
