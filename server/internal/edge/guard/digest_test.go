package guard

import (
	"bytes"
	"testing"
)

// TestDigest checks that two sets of tokens have the same digest if and only if their operating tokens are the same.
func TestDigest(t *testing.T) {
	sum := func(n byte) (sum [32]byte) { sum[0] = n; return sum }
	of := func(ts ...token) []byte { return Tokens(ts).Digest() }
	want := of(token{"a", Operate, sum(1)}, token{"b", Operate, sum(2)})
	for name, c := range map[string]struct {
		got  []byte
		same bool
	}{
		"other order and names": {of(token{"x", Operate, sum(2)}, token{"y", Operate, sum(1)}), true},
		"one twice":             {of(token{"a", Operate, sum(1)}, token{"b", Operate, sum(2)}, token{"c", Operate, sum(2)}), true},
		"one that reads":        {of(token{"a", Operate, sum(1)}, token{"b", Operate, sum(2)}, token{"c", Read, sum(3)}), true},
		"one more":              {of(token{"a", Operate, sum(1)}, token{"b", Operate, sum(2)}, token{"c", Operate, sum(3)}), false},
		"one less":              {of(token{"a", Operate, sum(1)}), false},
		"another":               {of(token{"a", Operate, sum(1)}, token{"b", Operate, sum(3)}), false},
	} {
		if bytes.Equal(c.got, want) != c.same || len(c.got) != 32 {
			t.Errorf("%s: %x and %x", name, c.got, want)
		}
	}
	if got := of(token{"c", Read, sum(3)}); got != nil || of() != nil {
		t.Errorf("without operating tokens, the digest is %x", got)
	}
}
