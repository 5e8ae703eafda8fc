package admin

import "github.com/weirhq/weir"

// Explanation is weir.Explanation on the wire.
type Explanation struct {
	Reason  string            `json:"reason"`
	Pattern string            `json:"pattern,omitempty"`
	Path    string            `json:"path,omitempty"`
	Paths   []string          `json:"paths,omitempty"` // if servers may read it in several ways; Path is the first
	Tier    string            `json:"tier,omitempty"`
	TierWhy string            `json:"tier_why,omitempty"`
	Ignored []string          `json:"ignored,omitempty"`
	Rules   []RuleExplanation `json:"rules"`
}

// RuleExplanation is weir.RuleExplanation on the wire.
type RuleExplanation struct {
	ID      string           `json:"rule"`
	Applies bool             `json:"applies"`
	Why     string           `json:"why"`
	By      []string         `json:"by,omitempty"`
	Cost    int64            `json:"cost,omitempty"`
	From    string           `json:"numbers_from,omitempty"`
	Limits  []ExplainedLimit `json:"limits,omitempty"`
}

// ExplainedLimit is one of the limits of a rule that applies.
type ExplainedLimit struct {
	Policy    string `json:"policy"`
	Algorithm string `json:"algorithm"`
	Limit     string `json:"limit"`
	Burst     int64  `json:"burst,omitempty"`
	Shadow    bool   `json:"shadow,omitempty"`
}

// Explain holds a request against rules.
func Explain(rules *weir.RuleSet, req *weir.Request) Explanation {
	x := rules.Explain(req)
	out := Explanation{
		Reason: x.Reason.String(), Pattern: x.Pattern,
		Tier: x.Tier, TierWhy: x.TierWhy, Ignored: x.Ignored, Rules: []RuleExplanation{},
	}
	if len(x.Paths) > 0 {
		out.Path = x.Paths[0]
	}
	if len(x.Paths) > 1 {
		out.Paths = x.Paths
	}
	for _, r := range x.Rules {
		e := RuleExplanation{ID: r.ID, Applies: r.Applies, Why: r.Why, By: r.By, Cost: r.Cost, From: r.From}
		for _, p := range r.Limits {
			e.Limits = append(e.Limits, ExplainedLimit{
				Policy: p.Name, Algorithm: p.Limit.Algorithm.String(), Limit: p.Limit.String(), Burst: p.Limit.Burst, Shadow: p.Shadow,
			})
		}
		out.Rules = append(out.Rules, e)
	}
	return out
}
