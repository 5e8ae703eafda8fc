package load

import (
	"math"
	"slices"
	"testing"
)

func frequencies(s sequence, keys int) []float64 {
	n := make([]float64, keys)
	for _, k := range s {
		n[k]++
	}
	return n
}

// chiSquare returns how far counts are from the expected ones. For random draws, it is about as large as the number of counts,
// give or take a few times the square root of twice that number.
func chiSquare(got []float64, want func(i int) float64) float64 {
	var sum float64
	for i := range got {
		d := got[i] - want(i)
		sum += d * d / want(i)
	}
	return sum
}

func TestUniformKeysAreEquallyOften(t *testing.T) {
	const keys = 1000
	s := newSequence(Uniform, keys, 0)
	x := chiSquare(frequencies(s, keys), func(int) float64 { return float64(len(s)) / keys })
	if spread := 5 * math.Sqrt(2*keys); math.Abs(x-keys) > spread {
		t.Errorf("chi-square is %.0f, want %d ± %.0f", x, keys, spread)
	}
}

func TestZipfKeysFollowTheirExponent(t *testing.T) {
	const keys, exponent, head = 10_000, 1.1, 20
	s := newSequence(Zipf, keys, exponent)
	n := frequencies(s, keys)
	neighbours := slices.IsSortedFunc(n[:head], func(a, b float64) int { return int(b - a) })
	slices.SortFunc(n, func(a, b float64) int { return int(b - a) })
	var norm float64
	for k := range keys {
		norm += math.Pow(float64(1+k), -exponent)
	}
	// The head's counts are large enough to be in the order of the ranks.
	x := chiSquare(n[:head], func(k int) float64 { return float64(len(s)) * math.Pow(float64(1+k), -exponent) / norm })
	if most := head + 5*math.Sqrt(2*head); x > most {
		t.Errorf("chi-square of the %d most frequent is %.0f, want at most %.0f", head, x, most)
	}
	if neighbours {
		t.Error("the most frequent keys stand side by side")
	}
}

func TestHotIsOneKey(t *testing.T) {
	if s := newSequence(Hot, 1000, 0); len(s) == 0 || slices.Max(s) != 0 {
		t.Errorf("got %v", s)
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		pattern string
		n       int
		at      uint32
		want    string
	}{
		{"key_{n}", 1, 0, "key_0"},
		{"key_{n}", 1000, 7, "key_007"},
		{"key_{n}", 1001, 1000, "key_1000"},
		{"/a/{n}/b/{n}", 11, 10, "/a/10/b/10"},
		{"/a", 1000, 999, "/a"},
		{"", 10, 9, ""},
	} {
		s := newName(c.pattern, c.n)
		s.of(0)
		if got := s.of(c.at); got != c.want {
			t.Errorf("name %d of %q for %d: got %q, want %q", c.at, c.pattern, c.n, got, c.want)
		}
	}
}

func TestClientAddresses(t *testing.T) {
	for n, want := range map[uint32]string{0: "198.18.0.0", 258: "198.18.1.2", 1 << 16: "198.19.0.0", 1<<17 + 1: "198.18.0.1"} {
		if got := clientAddr(n).String(); got != want {
			t.Errorf("client %d has %s, want %s", n, got, want)
		}
	}
}
