package rulefile

import (
	"slices"
	"strings"
)

// Homeless returns the global rules whose home isn't one of the regions that a node knows. Nobody counts them. Without regions there is nothing to
// say. The file comes from [Parse].
func Homeless(f *File, regions []string) []Problem {
	list := &problems{file: f.Name, ids: f.reading.ids}
	regions = slices.Sorted(slices.Values(regions))
	for i := range f.Rules.Rules {
		if home := f.Rules.Rules[i].Home; home != "" && len(regions) > 0 && !slices.Contains(regions, home) {
			path := index("rules", i) + ".home"
			list.add(f.reading.find(path), path, "no region is named %q: the regions that this node knows are %s", home, strings.Join(regions, ", ")).Hint = didYouMean(home, regions)
		}
	}
	return list.sorted(f.reading.src)
}
