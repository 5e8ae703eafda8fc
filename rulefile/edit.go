package rulefile

import (
	"errors"
	"time"
)

// ErrNotFound is what errors of edits are when the tier, the rule or the override isn't there.
var ErrNotFound = errors.New("not found")

// Numbers are what a tier, or an override, is set to.
type Numbers struct {
	// Limit is "500/minute", or "500", which leaves the window as it is. "" leaves it alone.
	Limit string
	// Capacity is the burst. 0 leaves it alone.
	Capacity int64
	// Expires is when an override ends. Zero means never. Tiers don't expire.
	Expires time.Time
}

// List is one of a document's two lists of keys and addresses.
type List string

// The lists, as documents call them.
const (
	Allowlist List = "whitelist"
	Denylist  List = "blacklist"
)

var errUnwritten = errors.New("rule documents can't be edited yet: write the whole document")

// SetTier changes the numbers of a tier: where it is listed, and in every rule
// that is for the tier and has numbers of its own.
func SetTier(text []byte, tier string, n Numbers) ([]byte, error) { return nil, errUnwritten }

// PutRule replaces the rule that has this id, or appends one. The rule is a map
// of fields in YAML or JSON; its id may be left out, and may not be another one.
func PutRule(text []byte, id string, rule []byte) ([]byte, error) { return nil, errUnwritten }

// DeleteRule removes a rule.
func DeleteRule(text []byte, id string) ([]byte, error) { return nil, errUnwritten }

// SetOverride gives one key numbers of its own in a rule.
func SetOverride(text []byte, rule, key string, n Numbers) ([]byte, error) { return nil, errUnwritten }

// DeleteOverride removes a key's own numbers from a rule.
func DeleteOverride(text []byte, rule, key string) ([]byte, error) { return nil, errUnwritten }

// SetList replaces the entries of one of the lists.
func SetList(text []byte, list List, entries []string) ([]byte, error) { return nil, errUnwritten }
