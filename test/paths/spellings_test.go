package paths

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// plain has paths as ordinary clients send them.
var plain = []string{"/login", "/search/shoes", "/v1/x/y", "/v1/login", "/search/a.b"}

// pieces are inserted into spellings, beside single characters.
var pieces = []string{
	"/", "//", "\\", ".", "..", "./", "../", "/.", "/..", "x/../", "/x/..", "x/y/../../", "login", "search/", "v1/", "shoes",
	";", ";a=b", "..;/", "..;x/", ".;/", "/;/", "/;x/..", ";/../", "%", "%25", "%2525", "25", "2e", "2f",
	"%2e", "%2E%2e/", "%2e%2e", ".%2e/", "%2f", "%2F", "%5c", "%3b", "%3B", "%3f", "%23", "%00", "%20", "%09", "%0a", "%0d%0a", "+",
	"%252e", "%252e%252e/", "%252f", "%255c", "%253b", "%25252e", "?", "?a=/../", "#", "#/../", "http://h", "//h", "http:", "*", "@", ":80",
	"%c0%af", "%c0%ae", "%ef%bc%8f", "%e2%84%aa", "\u212a", "%u002f", "%%32%65", "|", "{", "~", "^", "\xff",
}

// slashes are replacements for a slash.
var slashes = []string{"//", "\\", "%2f", "%5c", "%252f", "/./", "/x/../", "/;/", ";/", "/%2e/", "/%252e/", "/..;/", "///", "%2f/", "/%2f"}

// spell makes a target from a recipe: the first byte chooses a plain target, and each two further bytes change it.
// Every recipe is valid.
func spell(recipe []byte) string {
	next := func() int {
		if len(recipe) == 0 {
			return 0
		}
		n := recipe[0]
		recipe = recipe[1:]
		return int(n)
	}
	s := plain[next()%len(plain)]
	for len(recipe) > 0 && len(s) < 300 {
		do, n := next(), next()
		at := n % (len(s) + 1)
		char := n % max(1, len(s))
		switch do % 8 {
		case 0, 1: // insert a piece anywhere
			s = s[:at] + pieces[(do/8*2+do%2)%len(pieces)] + s[at:]
		case 2: // insert a piece at the start of a segment
			cuts := indexes(s, '/')
			if len(cuts) > 0 {
				at = cuts[n%len(cuts)] + 1
			}
			s = s[:at] + pieces[(do/8+n/8*7)%len(pieces)] + s[at:]
		case 3: // insert a piece at the end or the start
			if piece := pieces[n%len(pieces)]; do/8%4 == 0 {
				s = piece + s
			} else {
				s += piece
			}
		case 4: // replace a slash
			if cuts := indexes(s, '/'); len(cuts) > 0 {
				at = cuts[n%len(cuts)]
				s = s[:at] + slashes[do/8%len(slashes)] + s[at+1:]
			}
		case 5: // encode a character
			if s != "" {
				hex := strconv.FormatUint(0x100|uint64(s[char]), 16)[1:]
				if do&8 != 0 {
					hex = strings.ToUpper(hex)
				}
				s = s[:char] + "%" + hex + s[char+1:]
			}
		case 6: // encode one % again, or all of them
			cuts := indexes(s, '%')
			switch {
			case len(cuts) == 0:
			case do&8 != 0:
				s = strings.ReplaceAll(s, "%", "%25")
			default:
				at = cuts[n%len(cuts)]
				s = s[:at] + "%25" + s[at+1:]
			}
		case 7: // remove a character, repeat a segment, or change a character to upper case
			switch {
			case s == "":
			case do&24 == 0:
				s = s[:char] + s[char+1:]
			case do&24 == 8:
				segs := strings.Split(s, "/")
				i := n % len(segs)
				s = strings.Join(slices.Insert(segs, i, segs[i]), "/")
			default:
				s = s[:char] + strings.ToUpper(s[char:char+1]) + s[char+1:]
			}
		}
	}
	return s
}

// recipe returns a random recipe that changes a target at most the given number of times.
func recipe(random *rand.Rand, most int) []byte {
	r := make([]byte, 1+2*random.IntN(most+1))
	for i := range r {
		r[i] = byte(random.Uint32())
	}
	return r
}

// indexes returns the positions of a byte in s.
func indexes(s string, c byte) (at []int) {
	for i := range len(s) {
		if s[i] == c {
			at = append(at, i)
		}
	}
	return at
}

// known are spellings that used to get past a limit.
var known = []string{
	"/x%252fy/../login", "/login/;/..", "/login/%252e/..", "/search/;shoes", "/search/..;shoes", "/search/%252e%252e%252fshoes",
	"/v1/x/..;/..;/y", "/v1/x/%252e%252e/%252e%252e/y", "/login//..", "//h/login", `/\h/login`, "/search/..", "/search/a%2fb", "/../base/login", "/login#x", "/login%0a",
}

// TestSpellings sends a few thousand targets to every server. FuzzSpellings tries more.
func TestSpellings(t *testing.T) {
	doors, err := open()
	if err != nil {
		t.Fatal(err)
	}
	targets := slices.Concat(plain, known)
	random := rand.New(rand.NewPCG(15, 3))
	for range 2000 {
		targets = append(targets, spell(recipe(random, 6)))
	}
	tryAll(t, doors, targets...)
	for _, d := range doors {
		t.Logf("%-30s reached %v, refused %d", d.name, d.reached, d.refused)
		for _, route := range routes {
			if d.reached[route] < 20 {
				t.Errorf("%s: %d of the targets got to %s: the test tells little", d.name, d.reached[route], route)
			}
		}
	}
}

// FuzzSpellings runs as long as make fuzz-paths tells it.
func FuzzSpellings(f *testing.F) {
	random := rand.New(rand.NewPCG(22, 7))
	for range 100 {
		f.Add(recipe(random, 8))
	}
	f.Fuzz(func(t *testing.T, recipe []byte) {
		doors, err := open()
		if err != nil {
			t.Fatal(err)
		}
		tryAll(t, doors, spell(recipe))
	})
}
