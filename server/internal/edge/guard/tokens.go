package guard

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirhq/weir/internal/node/watch"
)

// Role says what the holder of a token may do.
type Role uint8

const (
	// Anybody is the role of callers without a token.
	Anybody Role = iota
	// Read may read everything.
	Read
	// Operate may also change everything.
	Operate
)

var roleNames = []string{"anybody", "read", "operate"} // indexed by role

func (r Role) String() string { return roleNames[r] }

// Tokens are the tokens that a port accepts. If there are none, every client that can reach the port may use it.
type Tokens []token

type token struct {
	name string
	role Role
	sum  [sha256.Size]byte
}

// OneToken returns a single token with the role Operate. The name is shown in logs. The token must not be blank.
func OneToken(name, secret string) (Tokens, error) {
	if secret = strings.TrimSpace(secret); secret == "" {
		return nil, errors.New("the token is blank")
	}
	return Tokens{{name, Operate, sha256.Sum256([]byte(secret))}}, nil
}

// LoadTokens returns the token all, unless it is "", and the tokens in a file, if there is one. The token all has the
// role Operate. The file has one line for each token, with a name, a role and the token's SHA-256 in hex.
func LoadTokens(all, file string) (Tokens, error) {
	var ts Tokens
	var err error
	if all != "" {
		ts, err = OneToken("admin", all)
	}
	if file == "" || err != nil {
		return ts, err
	}
	text, err := watch.ReadSmall(file)
	if err != nil {
		return nil, err
	}
	line := 0
	for text := range strings.Lines(string(text)) {
		line++
		fields := strings.Fields(text)
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		t, err := parseToken(fields)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, line, err)
		}
		ts = append(ts, t)
	}
	if len(ts) == 0 {
		return nil, fmt.Errorf("%s: holds no token: write a line such as: ada operate $(printf %%s \"$TOKEN\" | sha256sum)", file)
	}
	return ts, nil
}

// parseToken parses the fields of a line. It also accepts the dash that sha256sum prints after a hash.
func parseToken(fields []string) (t token, err error) {
	if len(fields) == 4 && fields[3] == "-" {
		fields = fields[:3]
	}
	if len(fields) != 3 {
		return t, fmt.Errorf("must be a name, a role and the SHA-256 of the token")
	}
	t.name, t.role = fields[0], Role(max(0, slices.Index(roleNames, fields[1])))
	if t.role == Anybody {
		return t, fmt.Errorf("the role must be read or operate, got %q", fields[1])
	}
	sum, err := hex.DecodeString(fields[2])
	if err != nil || len(sum) != len(t.sum) {
		return t, fmt.Errorf("the token of %s must be its SHA-256 in hex, as in: printf %%s \"$TOKEN\" | sha256sum", t.name)
	}
	if copy(t.sum[:], sum); t.sum == sha256.Sum256(nil) {
		return t, fmt.Errorf("the token of %s is empty: was $TOKEN set?", t.name)
	}
	return t, nil
}

// Digest returns a digest of the tokens with the role Operate. Nodes with the same tokens have the same digest,
// whatever the order and the names of the tokens are. The digest is as secret as the tokens. It is nil if there are
// none.
func (ts Tokens) Digest() []byte {
	var sums []string
	for i := range ts {
		if ts[i].role == Operate {
			sums = append(sums, string(ts[i].sum[:]))
		}
	}
	if len(sums) == 0 {
		return nil
	}
	slices.Sort(sums)
	all := sha256.Sum256([]byte(strings.Join(slices.Compact(sums), "")))
	return all[:]
}

// find compares the hash with all tokens, so that the time it takes doesn't reveal which token matches.
func (ts Tokens) find(sum *[sha256.Size]byte) *token {
	var found *token
	for i := range ts {
		if subtle.ConstantTimeCompare(sum[:], ts[i].sum[:]) == 1 {
			found = &ts[i]
		}
	}
	return found
}
