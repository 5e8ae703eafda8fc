package compare

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
