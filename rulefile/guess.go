package rulefile

import (
	"fmt"
	"strings"
)

// didYouMean is a hint at the candidate that is closest to what was written, or "" if none is close.
func didYouMean(written string, candidates []string) string {
	if best := closest(written, candidates); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return ""
}

// maxCandidates bounds the time that a guess may take.
const maxCandidates = 1000

// closest is the candidate with the fewest typing mistakes between it and what
// was written, or "". More than one mistake in three letters is another word,
// unless something was left out: "que" for queue, "sliding_log" for sliding_window_log.
func closest(written string, candidates []string) string {
	if len(written) > 64 {
		return ""
	}
	written = strings.ToLower(written)
	best, fewest := "", 64
	for i, c := range candidates {
		if i == maxCandidates {
			break
		}
		if len(c) > 64 {
			continue
		}
		lower := strings.ToLower(c)
		n := mistakes(written, lower)
		if n < fewest && (n <= max(1, len(written)/3) || leavesOut(written, lower)) {
			best, fewest = c, n
		}
	}
	return best
}

// leavesOut: the written text is the beginning of a candidate, or some of its words in their order.
func leavesOut(written, candidate string) bool {
	if len(written) < 3 {
		return false
	}
	if strings.HasPrefix(candidate, written) {
		return true
	}
	words := strings.Split(written, "_")
	for w := range strings.SplitSeq(candidate, "_") {
		if len(words) > 0 && w == words[0] {
			words = words[1:]
		}
	}
	return len(words) == 0
}

// mistakes counts the letters that have to be added, dropped, replaced or
// swapped with their neighbour to turn a into b.
func mistakes(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(replace, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
