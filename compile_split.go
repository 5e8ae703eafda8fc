package weir

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weirhq/weir/counter"
)

const maxSplit = 64

func (r *rule) compileSplit(path string, bad *problems) {
	switch {
	case r.Split == 0:
	case r.Split < 2 || r.Split > maxSplit:
		bad.addf(path, "must be from 2 to %d, got %d", maxSplit, r.Split)
	case !r.Strict:
		bad.addf(path, "is for strict rules: busy counters of others are decided on the nodes, and needn't be split; leave it out")
	case r.Algorithm == SlidingLog || r.Algorithm == LeakyQueue:
		bad.addf(path, "%s can't be split: use token_bucket, leaky_bucket, fixed_window or sliding_window_counter", r.Algorithm)
	case r.Book || r.CountRefused:
		bad.addf(path, "can't stand beside past_limit, by which a part would go below zero while others have room: leave one of them out")
	default:
		r.parts = r.Split
	}
}

// warnOfSplits finds limits whose parts are so small that requests will be refused by two parts while others have room.
func (rs *RuleSet) warnOfSplits() {
	for i := range rs.rules {
		r := &rs.rules[i]
		if r.parts == 0 {
			continue
		}
		least := slices.MinFunc(r.policies(), func(a, b *counter.Policy) int { return cmp.Compare(a.Limit.Max(), b.Limit.Max()) })
		if least.Limit.Max()/int64(r.parts)/r.cost >= counter.MinPerPart {
			continue
		}
		advice := "leave it out"
		if most := least.Limit.Max() / r.cost / counter.MinPerPart; most >= 2 {
			advice = fmt.Sprintf("write %d or less", most)
		}
		rs.warnf(rulePath(r)+".split", "a part of %s holds fewer than %d requests: clients will be refused while other parts have room; %s", least.Limit, counter.MinPerPart, advice)
	}
}
