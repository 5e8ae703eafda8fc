package rulefile

import (
	"fmt"

	"github.com/weirhq/weir/internal/guess"
)

// didYouMean is a hint at the candidate that is closest to what was written, or "" if none is close.
func didYouMean(written string, candidates []string) string {
	if best := guess.Closest(written, candidates); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return ""
}
