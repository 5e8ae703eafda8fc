package checkapi

import (
	"strconv"
	"strings"
)

// What each body may hold.
var (
	checkFields  = []string{"key", "method", "path", "ip", "attributes", "cost", "receipt"}
	batchFields  = []string{"checks"}
	takeFields   = []string{"key", "limit", "burst", "cost", "receipt", "algorithm", "mode"}
	refundFields = []string{"receipt"}
)

// elsewhere are names that people try, and how the thing is called here.
var elsewhere = map[string]string{
	"api_key": "key", "apikey": "key", "id": "key",
	"url": "path", "uri": "path", "endpoint": "path",
	"address": "ip", "client_ip": "ip", "remote_addr": "ip",
	"tokens": "cost", "quantity": "cost", "hits": "cost", "n": "cost", "amount": "cost", "weight": "cost",
	"user": "attributes.user", "org": "attributes.org", "tier": "attributes.tier",
	"rate": "limit", "capacity": "burst", "requests": "checks", "items": "checks",
}

// unknownField names a field that doesn't exist and, if there is a guess, the one that was meant.
func unknownField(name []byte, known []string) error {
	written := string(name)
	shown := strconv.Quote(clip(written))
	if meant := guess(written, known); meant != "" {
		return badRequest("there is no field %s: did you mean %q?", shown, meant)
	}
	return badRequest("there is no field %s: the fields are %s", shown, strings.Join(known, ", "))
}

// clip keeps a name from filling the answer.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// guess is what was probably meant, or "".
func guess(written string, known []string) string {
	if len(written) > 32 {
		return ""
	}
	written = strings.ToLower(written)
	best, fewest := "", max(1, len(written)/3)+1
	for _, k := range known {
		if n := mistakes(written, k); n < fewest {
			best, fewest = k, n
		}
	}
	if best != "" {
		return best
	}
	meant := elsewhere[written]
	root, _, _ := strings.Cut(meant, ".")
	for _, k := range known {
		if k == root {
			return meant
		}
	}
	return ""
}

// mistakes counts the letters to add, drop, replace or swap with their neighbour to turn a into b.
func mistakes(a, b string) int {
	var rows [3][33]int // a is at most 32 letters long, b a name from above
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
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
