package workload

import "testing"

func TestKeys(t *testing.T) {
	k := MakeKeys(1000)
	seen := map[string]bool{}
	for i := range uint32(1000) {
		seen[k.At(i)] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d different keys, want 1000", len(seen))
	}
	if got, want := k.At(0), "sk_prod_e220a8397b1dcdaf"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSequences(t *testing.T) {
	for name, s := range map[string]Sequence{"uniform": Uniform(1000), "zipf": Zipf(1000, 1.1)} {
		if n := len(s); n&(n-1) != 0 {
			t.Errorf("%s: length %d is no power of two", name, n)
		}
		for _, i := range s {
			if i >= 1000 {
				t.Fatalf("%s: key %d of 1000", name, i)
			}
		}
	}
}
