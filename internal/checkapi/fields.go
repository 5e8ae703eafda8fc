package checkapi

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/internal/jsonerror"
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
	if meant := meantBy(written, known); meant != "" {
		return jsonerror.Bad("there is no field %s: did you mean %q?", shown, meant)
	}
	return jsonerror.Bad("there is no field %s: the fields are %s", shown, strings.Join(known, ", "))
}

// clip keeps a name from filling the answer.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// meantBy is what was probably meant, or "".
func meantBy(written string, known []string) string {
	if best := guess.Closest(written, known); best != "" {
		return best
	}
	meant := elsewhere[strings.ToLower(written)]
	if root, _, _ := strings.Cut(meant, "."); slices.Contains(known, root) {
		return meant
	}
	return ""
}
