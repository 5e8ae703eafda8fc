// Package guess finds the name that a misspelled one probably stands for.
package guess

import (
	"fmt"
	"strings"
)

const (
	// maxLength is the length, in bytes, up to which words are compared. A longer word isn't a typing mistake.
	maxLength = 64
	// maxCandidates bounds the time that a suggestion may take. Candidates beyond it are ignored.
	maxCandidates = 1000
)

// Closest returns the candidate with the fewest typing mistakes, or "" if none is close. It accepts one mistake in
// three letters. It also accepts candidates from which something was left out: "que" for queue, "sliding_log" for
// sliding_window_log.
func Closest(written string, candidates []string) string {
	written = strings.ToLower(written)
	best, fewest := "", maxLength
	for _, c := range candidates[:min(len(candidates), maxCandidates)] {
		lower := strings.ToLower(c)
		n := Mistakes(written, lower)
		if n < fewest && (n <= max(1, len(written)/3) || leavesOut(written, lower)) {
			best, fewest = c, n
		}
	}
	return best
}

// Hint returns a question such as "did you mean …?" with the closest candidate, or "" if none is close.
func Hint(written string, candidates []string) string {
	if best := Closest(written, candidates); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return ""
}

// leavesOut reports whether the written text is the beginning of the candidate, or consists of some
// of its words in order.
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

// Mistakes counts the letters to add, drop, replace or swap with their neighbor to turn a into b. For
// long texts it returns a high number.
func Mistakes(a, b string) int {
	if len(a) > maxLength || len(b) > maxLength {
		return maxLength
	}
	var n [maxLength + 1][maxLength + 1]int // mistakes between the first i bytes of a and the first j of b
	for i := range len(a) + 1 {
		for j := range len(b) + 1 {
			switch {
			case i == 0 || j == 0:
				n[i][j] = i + j
			case a[i-1] == b[j-1]:
				n[i][j] = n[i-1][j-1]
			case i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1]:
				n[i][j] = 1 + min(n[i-2][j-2], n[i-1][j], n[i][j-1])
			default:
				n[i][j] = 1 + min(n[i-1][j-1], n[i-1][j], n[i][j-1])
			}
		}
	}
	return n[len(a)][len(b)]
}
