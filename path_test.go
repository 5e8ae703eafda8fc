package weir

import (
	"strings"
	"testing"
)

// A path that needs no work must be one that normalizing leaves alone.
func FuzzSplit(f *testing.F) {
	for _, path := range []string{
		"", "/", "//", "/a", "/a/", "/a/b", "/a//b", "/.", "/..", "/a/..", "/a/.b", "/a/b.c", "a/b", "/A", "/a%62", "/a;x", `/a\b`, "/a?b", "/a#b",
		"/v1/resource12/8431", "/abcdefgh/ijklmno/p", "/abcdefg/", "/ab-cd_ef~gh!ij", "/é", "/a/b/c/d/e/f/g/h/i/j/k", "/12345678/", "/1234567/.", "/{|}~\x7f",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		segments, normal := splitNormal(path, nil)
		clean := string(AppendPath(nil, path))
		if normal && clean != path {
			t.Fatalf("%q passes for normal, but its normal form is %q", path, clean)
		}
		if normal && "/"+strings.Join(segments, "/") != path {
			t.Fatalf("%q has segments %q", path, segments)
		}
		if got := "/" + strings.Join(split(clean, nil), "/"); got != clean {
			t.Fatalf("the normal path %q is split as %q", clean, got)
		}
	})
}
