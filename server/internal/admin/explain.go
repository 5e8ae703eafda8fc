package admin

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// Explain says which rules apply to a request, and why.
func Explain(rules *weir.RuleSet, req *weir.Request) Explanation {
	x := rules.Explain(req)
	out := Explanation{Explanation: x, Reason: x.Reason.String(), Rules: []RuleExplanation{}}
	if req.APIKey != "" {
		out.KeyVerified = &req.KeyVerified
	}
	if len(x.Paths) > 0 {
		out.Path = x.Paths[0]
	}
	if len(x.Paths) < 2 {
		out.Paths = nil
	}
	for _, r := range x.Rules {
		e := RuleExplanation{RuleExplanation: r, Request: requestOf(r.Endpoint)}
		for _, p := range r.Limits {
			e.Limits = append(e.Limits, ExplainedLimit{
				Policy: p.Name, Algorithm: p.Limit.Algorithm.String(), Limit: p.Limit.String(), Calendar: beginning(p.Limit.Calendar), Burst: p.Limit.Burst, Shadow: p.Shadow,
			})
		}
		out.Rules = append(out.Rules, e)
	}
	return out
}

// beginning says when the windows of a calendar start. Without a calendar, it returns "".
func beginning(c counter.Calendar) string {
	zone := cmp.Or(c.Zone, "UTC")
	switch {
	case c.Unit == counter.NoUnit:
		return ""
	case c.Unit == counter.Week:
		return "from " + c.Weekday.String() + " in " + zone
	case c.Unit == counter.Month && c.Day > 1:
		return fmt.Sprintf("from day %d in %s", c.Day, zone)
	}
	return "in " + zone
}

// requestOf returns a request that matches an endpoint, or nil. In the path, each wildcard is replaced by its name.
func requestOf(endpoint string) *EndpointRequest {
	at := strings.Index(endpoint, "/")
	if at < 0 {
		return nil
	}
	return &EndpointRequest{cmp.Or(strings.TrimSpace(endpoint[:at]), "GET"), strings.TrimSuffix(endpoint[at:], "{$}")}
}
