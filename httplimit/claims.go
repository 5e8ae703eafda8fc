package httplimit

import (
	"encoding/json"
	"fmt"
)

// TokenVerifier verifies bearer tokens. Package github.com/weirhq/weir/jwt implements it for JSON
// Web Tokens.
//
// Verify runs while a request waits, in many goroutines at a time. It must be safe for concurrent
// use, and must not block: while the key of a token is still being loaded, the token counts as
// unverified.
type TokenVerifier interface {
	// Verify returns the claims of a valid token. They are not nil, even if the token has no
	// claims. For any other token Verify returns nil and the reason, which observers and the
	// decision log show, so it must not repeat any part of the token. Verify is never called with
	// an empty token.
	Verify(token string) (claims Claims, why string)
}

// Claims holds the claims of a verified token. It is nil if there is no verified token.
type Claims map[string]any

// Text returns a claim as text if it is a string, a [json.Number] or a bool, and "" otherwise.
func (c Claims) Text(name string) string {
	switch v := c[name].(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case bool:
		return fmt.Sprint(v)
	}
	return ""
}
