package httplimit

import (
	"encoding/json"
	"fmt"
)

// TokenVerifier verifies bearer tokens. Package github.com/weirhq/weir/jwt implements it for JSON Web Tokens.
//
// Verify runs while a request waits, and in many goroutines at the same time. So it must be safe for concurrent use, and it must not
// block: as long as the key of a token hasn't been loaded, the token isn't verified.
type TokenVerifier interface {
	// Verify returns the claims of a token that is genuine and in force. They are not nil, even if the token has no claims. For
	// any other token, Verify returns nil and says why. Observers and the decision log show why as it is, so it must not repeat
	// any part of the token. Verify is never called with an empty token.
	Verify(token string) (claims Claims, why string)
}

// Claims are what a verified token says about its bearer. They are nil if there is no verified token.
type Claims map[string]any

// Text returns the value of a claim as text if the value is a string, a [json.Number] or a bool, and "" otherwise.
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
