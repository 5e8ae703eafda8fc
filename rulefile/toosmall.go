package rulefile

import (
	"slices"

	"github.com/weirhq/weir"
)

// TooSmall returns the global rules that some regions can't share, since a limit of theirs has fewer tokens than least, beside those that
// [Parse] warns of: it knows no regions. The file comes from [Parse].
func TooSmall(f *File, regions int, least int64) []Problem {
	list := &problems{file: f.Name, ids: f.reading.ids}
	small := func(l weir.Limit) bool { return l.Max() < least }
	for i := range f.Rules.Rules {
		r, path := &f.Rules.Rules[i], index("rules", i)+".scope"
		warned := func(p Problem) bool { return p.Path == path }
		if r.Global && slices.ContainsFunc(r.Limits, small) && !slices.ContainsFunc(f.Warnings, warned) {
			list.add(f.reading.find(path), path, "it is too small to be shared by %d regions, which takes %d tokens: in other regions every check waits for its home", regions, least)
		}
	}
	return list.sorted(f.reading.src)
}
