package guess

import (
	"strings"
	"testing"
)

func TestClosest(t *testing.T) {
	algorithms := []string{"token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter"}
	for _, tt := range []struct{ written, want string }{
		{"token_buket", "token_bucket"},
		{"TokenBucket", "token_bucket"},
		{"toekn_bucket", "token_bucket"},
		{"sliding_log", "sliding_window_log"},
		{"sliding_window", "sliding_window_log"},
		{"window_counter", "sliding_window_counter"},
		{"fixed", "fixed_window"},
		{"gcra", ""},
		{"x", ""},
		{"", ""},
		{"\xff\xff\xff", ""},
		{strings.Repeat("token_bucket", 9), ""},
	} {
		if got := Closest(tt.written, algorithms); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.written, got, tt.want)
		}
	}
}

// Candidates come from files and may be any text, but the cost of a guess is bounded.
func TestOddCandidates(t *testing.T) {
	odd := strings.Repeat("\xff", maxLength) // three times as long in lower case
	many := make([]string, maxCandidates, maxCandidates+1)
	for written, candidates := range map[string][]string{
		odd: {odd}, "pro": append(many, "pro"), "İstanbul": {strings.Repeat("İ", maxLength/2)},
	} {
		if got := Closest(written, candidates); got != "" {
			t.Errorf("%q: got %q", written, got)
		}
	}
	if got := Closest("POR", []string{"Free", "Pro"}); got != "Pro" {
		t.Errorf("as it is spelled: %q", got)
	}
}
