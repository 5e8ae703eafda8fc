package rulefile

import (
	"slices"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/guess"
)

// InRegions returns warnings about global rules that depend on a node's regions. It warns if a rule's home isn't one of them,
// so that nobody counts the rule, and if a limit has fewer than least tokens per region, so that it is too small to be shared.
// Rules that [Parse] has warned of aren't repeated. Without regions there are no warnings. The file must come from [Parse].
func InRegions(f *File, regions []string, least int64) []Problem {
	if len(regions) == 0 {
		return nil
	}
	d := f.report()
	regions = slices.Sorted(slices.Values(regions))
	least *= int64(len(regions))
	small := func(l weir.Limit) bool { return l.Max() < least }
	for i := range f.Rules.Rules {
		r := &f.Rules.Rules[i]
		home, scope := index("rules", i)+".home", index("rules", i)+".scope"
		if r.Home != "" && !slices.Contains(regions, r.Home) {
			d.failAt(home, "no region is named %q: the regions that this node knows are %s", r.Home, strings.Join(regions, ", ")).Hint = guess.Hint(r.Home, regions)
		}
		warned := func(p Problem) bool { return p.Path == scope }
		if r.Global && r.OnPartition != weir.FailRefuse && slices.ContainsFunc(r.Limits, small) && !slices.ContainsFunc(f.Warnings, warned) {
			d.failAt(scope, "it is too small to be shared by %d regions, which takes %d tokens: in other regions every check waits for its home; if that is what you want, write on_partition: refuse", len(regions), least)
		}
	}
	return d.sorted(d.src)
}
