package lint

import (
	"slices"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/pattern"
)

// warnOfLayers finds rules that always lose to another rule of their layer, and rules that give a higher limit to a
// client that makes up a matching key.
func (d *document) warnOfLayers() {
	layers, sizes := map[string][]*rule{}, map[string]int{} // the rules of each layer, and their total size
	for _, r := range d.rules {
		if r.Layer != "" {
			layers[r.Layer] = append(layers[r.Layer], r)
			sizes[r.Layer] += r.size()
		}
	}
	ranks := map[*rule]int{} // within a layer, the rule with the lower rank is tried first
	for _, layer := range layers {
		endpoints := make([]*pattern.Endpoint, len(layer))
		for i, r := range layer {
			endpoints[i] = r.endpoint
		}
		for i, rank := range pattern.Ranks(endpoints) {
			ranks[layer[i]] = rank
		}
	}
	for _, r := range d.rules {
		layer := layers[r.Layer]
		if !d.budget.Spend(len(layer)*r.size() + sizes[r.Layer]) {
			return
		}
		if over := slices.IndexFunc(layer, func(o *rule) bool { return ranks[o] < ranks[r] && o.covers(r) }); over >= 0 {
			o := layer[over]
			advice := "move it before that one, narrow that one's `match`, or give them different layers"
			if o.endpoint != nil && r.endpoint != nil && o.endpoint.MoreSpecific(r.endpoint) {
				advice = "narrow that one's `match`, or give them different layers"
			}
			d.warnf(r.path(), "never applies: %q goes before it in the layer %q and matches whatever it matches; %s", o.ID, r.Layer, advice)
			continue
		}
		if strings.Contains(r.Match.APIKeyPattern, "*") {
			d.warnOfPrivilege(r, layer, ranks)
		}
	}
}

// warnOfPrivilege finds rules that let a request with an unverified key escape a lower limit.
func (d *document) warnOfPrivilege(r *rule, layer []*rule, ranks map[*rule]int) {
	unkeyed := *r.Rule
	unkeyed.Match.APIKeyPattern, unkeyed.Tier = "", ""
	without := *r
	without.Rule = &unkeyed
	for _, o := range layer {
		if ranks[o] > ranks[r] && o.Match.APIKeyPattern == "" && o.covers(&without) && len(o.Base) > 0 && len(r.Base) > 0 && o.Amount == r.Amount &&
			(o.Algorithm == weir.Concurrency) == (r.Algorithm == weir.Concurrency) && PerSecond(slowest(o.Base)) < PerSecond(slowest(r.Base)) {
			d.warnf(r.path()+".match.api_key_pattern", "a client that invents such a key gets %s in place of %q's %s, since `match` takes keys that nobody has verified; put the pattern under `keys`, with a tier",
				r.Base[0].Limit, o.ID, o.Base[0].Limit)
			return
		}
	}
}
