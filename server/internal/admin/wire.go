package admin

import (
	"encoding/json"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// The types of requests and responses, for the API and its callers.

// Changed is the response to a change of the rules.
type Changed struct {
	Version    int64              `json:"version"`
	DryRun     bool               `json:"dry_run"`
	Warnings   []rulefile.Problem `json:"warnings"`
	NeedsForce bool               `json:"needs_force"`
	Diff       string             `json:"diff"`
	Expires    time.Time          `json:"expires,omitzero"` // when the override that was set ends
	// Emergency is "added" or "removed" if the emergency list was changed.
	Emergency string `json:"emergency,omitempty"`

	before int64  // the version that was changed
	did    string // what the change did, in words
}

// Session is the response to GET and POST /v1/session. It says who the caller is, and what the console needs to know
// first.
type Session struct {
	Name    string    `json:"name"`
	Role    string    `json:"role"`    // "read" or "operate"
	Session bool      `json:"session"` // whether the caller has a session cookie, and no token
	Tokens  bool      `json:"tokens"`  // whether the node requires tokens
	Expires time.Time `json:"expires,omitzero"`
	// Proof is set only in the response to a login. Requests with the cookie must send it in the
	// header X-Weir-Session.
	Proof string `json:"proof,omitempty"`
	// RulesInFile is the path of the file in which the rules must be changed. If "", the API can change them.
	RulesInFile string `json:"rules_in_file"`
	Node        string `json:"node"`
	Version     string `json:"version"`
}

// Rejection has the details of an error about a rule document.
type Rejection struct {
	Problems []rulefile.Problem `json:"problems,omitempty"`
	Warnings []rulefile.Problem `json:"warnings,omitempty"`
}

// Validation is the response to POST /v1/rules/validate.
type Validation struct {
	Valid    bool               `json:"valid"`
	Rules    int                `json:"rules"`
	Problems []rulefile.Problem `json:"problems"`
	Warnings []rulefile.Problem `json:"warnings"`
}

// Numbers is the body of PUT /v1/rules/tier/{tier}.
type Numbers struct {
	// Limit is a text such as "500/minute", or a number, which leaves the window unchanged.
	Limit    json.RawMessage `json:"limit,omitempty"`
	Capacity int64           `json:"capacity,omitempty"`
}

// OverrideName identifies an override. It is the body of DELETE /v1/rules/key.
type OverrideName struct {
	Key    string `json:"key,omitempty"`
	Client string `json:"client,omitempty"` // a fingerprint, instead of the key
	Rule   string `json:"rule"`
}

// Override is the body of PUT /v1/rules/key.
type Override struct {
	OverrideName
	Numbers
	// ExpiresIn is a duration such as "1h", or "never". If it is "" and the override exists, its end doesn't change.
	ExpiresIn string `json:"expires_in,omitempty"`
}

// List is the allow list or the deny list.
type List struct {
	Entries []string `json:"entries"`
	// Emergency are the entries of the emergency list. They are shown with the deny list. PUT ignores them.
	Emergency []Block `json:"emergency,omitempty"`
}

// Block is an entry of the emergency list.
type Block struct {
	Entry   string    `json:"entry"`
	By      string    `json:"by"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
}

// ListEntry is the body of POST /v1/allowlist/entries and /v1/denylist/entries.
type ListEntry struct {
	Key    string `json:"key,omitempty"`    // a key, a pattern or an IP range
	Client string `json:"client,omitempty"` // a fingerprint, which may replace the key
	Remove bool   `json:"remove,omitempty"`
}

// Rollback is the body of POST /v1/rules/rollback.
type Rollback struct {
	Version int64  `json:"version"`
	Hash    string `json:"hash,omitempty"`
	Message string `json:"message,omitempty"`
}

// Version is a version of the rules. Text is set only in responses about a single version.
type Version struct {
	Number     int64     `json:"version"`
	Hash       string    `json:"hash"`
	Parent     int64     `json:"parent"`
	ParentHash string    `json:"parent_hash"`
	Orphan     bool      `json:"orphan"`
	Author     string    `json:"author"`
	Time       time.Time `json:"time"`
	Message    string    `json:"message"`
	Text       string    `json:"text,omitempty"`
}

// Versions is the response to GET /v1/rules/versions.
type Versions struct {
	Versions []Version `json:"versions"`
}

// Difference is the response to GET /v1/rules/diff.
type Difference struct {
	From int64  `json:"from"`
	To   int64  `json:"to"`
	Diff string `json:"diff"`
}

// Node is a node that uses the same store, as the node describes itself.
type Node struct {
	Name         string    `json:"name"`
	Region       string    `json:"region,omitempty"`
	Self         bool      `json:"self"`
	Version      string    `json:"version"`
	RulesVersion int64     `json:"rules_version"`
	RulesHash    string    `json:"rules_hash"`
	RulesText    string    `json:"rules_text_hash"`   // hash of the rules' text, the same as in the metric weir_rules_info
	Store        string    `json:"store"`             // "up", "degraded", or "unknown" if the node has been silent for too long
	Since        time.Time `json:"since,omitzero"`    // when the node's store was lost; zero if the store is up
	Lost         []string  `json:"lost,omitempty"`    // servers of the store that the node can't reach
	Warning      string    `json:"warning,omitempty"` // warns of blocks in rules that are no longer applied
	SeenMSAgo    int64     `json:"seen_ms_ago"`
}

// Regions is the response to GET /v1/regions.
type Regions struct {
	Name string `json:"name,omitempty"` // the region of this node
	// Home is the home of global limits whose rules don't name one.
	Home string `json:"home,omitempty"`
	// Epoch rises with each change of the regions that an operator makes.
	Epoch int64 `json:"epoch,omitempty"`
	// State is "drained" or "forgotten", or "" if the region is neither. Grace means that the region has just become
	// the home, and still owns only its floor.
	State string          `json:"state,omitempty"`
	Grace bool            `json:"grace,omitempty"`
	Peers []region.Status `json:"peers"`
}

// RegionChange is the body of POST /v1/regions.
type RegionChange struct {
	Do     string `json:"do"` // the change: "move", "drain", "forget" or "restore"
	Region string `json:"region"`
	To     string `json:"to,omitempty"` // the new home
	Force  bool   `json:"force,omitempty"`
}

// Nodes is the response to GET /v1/nodes.
type Nodes struct {
	Nodes []Node `json:"nodes"`
	// AsOf is when this node last read the list of the other nodes, and AgeSeconds is how long ago that was. Both are
	// nil if it never read the list.
	AsOf       *time.Time `json:"as_of,omitempty"`
	AgeSeconds *float64   `json:"age_seconds,omitempty"`
	Stale      bool       `json:"stale"` // this node should have read a newer list by now
	Store      Store      `json:"store"` // the store of the responding node, as in GET /v1/version
}

// Counter describes the state of a client's counter.
type Counter struct {
	Rule      string `json:"rule"`
	Policy    string `json:"policy"` // the limit's name: the rule's id or, if the rule has several limits, the id with a suffix, such as id-1s
	Algorithm string `json:"algorithm"`
	Shadow    bool   `json:"shadow"`  // the limit refuses no requests
	Refuses   bool   `json:"refuses"` // the limit refuses the request, or would refuse it if it weren't in shadow
	// SharedAddress means that the limit counts by address but the request has none. All requests without an address
	// share one counter.
	SharedAddress bool   `json:"shared_address"`
	Amount        string `json:"amount,omitempty"` // the amount that the limit counts; "" means the request's cost
	Limit         string `json:"limit"`
	// Max and Remaining are decimals if the limit counts an amount.
	Max       counter.Amount `json:"max"`
	Remaining counter.Amount `json:"remaining"`
	// InFlight is how many slots of a concurrency limit are in use.
	InFlight *int64 `json:"in_flight,omitempty"`
	// Slots are the requests that hold slots, oldest first. At most 100 are listed.
	Slots []Slot `json:"slots,omitempty"`
	// Stake is this region's part of a limit that regions share. If it is set, Remaining is what is left in this
	// region.
	Stake *Stake `json:"stake,omitempty"`
	// WindowEnd is the end of a fixed window. RunsOutAt is when a budget will be used up if use continues at the same
	// rate. It is nil if the budget lasts until the end, or is already used up.
	WindowEnd *time.Time `json:"window_end,omitempty"`
	RunsOutAt *time.Time `json:"runs_out_at,omitempty"`
	// Used is the used share of Max, from 0 to 1. It is nil if the store can't be reached.
	Used *float64 `json:"used"`
	// FullAt is when the counter will be full again if nothing more is taken from it. It is nil if the counter is full,
	// or if the time is unknown, as with requests in flight.
	FullAt       *time.Time `json:"full_at"`
	ResetAfterMS int64      `json:"reset_after_ms"` // until the counter is full; 0 if it is
	RetryAfterMS int64      `json:"retry_after_ms"` // -1 if waiting doesn't help
	Degraded     bool       `json:"degraded"`
	// MissingHome is the name of the home region if the counter is degraded because that region couldn't be reached.
	MissingHome string `json:"missing_home,omitempty"`
}

// Stake is a region's part of a limit that regions share.
type Stake struct {
	Home     string         `json:"home"`
	Own      counter.Amount `json:"own"` // the part of Max that the region owns
	Borrowed counter.Amount `json:"borrowed"`
	Lent     counter.Amount `json:"lent"`
	// BorrowedUntil is when the region loses what it has borrowed, unless it renews the loan. It is nil if the loan
	// lasts until the end of the window.
	BorrowedUntil *time.Time `json:"borrowed_until,omitempty"`
}

// Slot is a request in flight that holds slots.
type Slot struct {
	ID    string    `json:"id"` // 32 hexadecimal digits
	Slots int64     `json:"slots"`
	Since time.Time `json:"since"`
	Ends  time.Time `json:"ends"` // when the slot ends unless the request renews it
}

// Released is the response to POST /v1/counters/release.
type Released struct {
	Released []string `json:"released"` // names of limits
}

// Counters is the response to POST /v1/counters. It says whether the request would be allowed now, and has the state of
// its counters.
type Counters struct {
	Allowed  bool      `json:"allowed"`
	Binding  string    `json:"binding"` // id of the rule that decides, or ""
	Reason   string    `json:"reason"`
	Counters []Counter `json:"counters"`          // the counter that decides comes first
	At       time.Time `json:"at"`                // the time that the figures are for, by the clock that nodes share
	Warning  string    `json:"warning,omitempty"` // why an actual check may be decided differently
}

// Reset is the response to POST /v1/counters/reset.
type Reset struct {
	Reset int `json:"reset"`
}

// Explanation is the response to POST /v1/explain.
type Explanation struct {
	weir.Explanation        // Paths are set if servers may read the path in several ways
	Reason           string `json:"reason"`
	// Emergency means that an entry of the emergency list decides about the request.
	Emergency bool   `json:"emergency,omitempty"`
	Path      string `json:"path,omitempty"` // the first reading of the path
	// KeyVerified says whether the request's key counted as verified. It is nil if the request has no key.
	KeyVerified *bool             `json:"key_verified,omitempty"`
	Rules       []RuleExplanation `json:"rules"`
}

// RuleExplanation says whether a rule applies, and why.
type RuleExplanation struct {
	weir.RuleExplanation
	Request *EndpointRequest `json:"request,omitempty"`
	Limits  []ExplainedLimit `json:"limits,omitempty"`
}

// EndpointRequest is a request that matches a rule's endpoint.
type EndpointRequest struct {
	Method string `json:"method"`
	Path   string `json:"path"`
}

// ExplainedLimit is one of the limits of a rule that applies.
type ExplainedLimit struct {
	Policy    string `json:"policy"`
	Algorithm string `json:"algorithm"`
	Limit     string `json:"limit"`
	Calendar  string `json:"calendar,omitempty"` // when the windows start, in words
	Burst     int64  `json:"burst,omitempty"`
	Shadow    bool   `json:"shadow,omitempty"`
}

// ClientName is the body of POST /v1/clients. Exactly one field is set.
type ClientName struct {
	Client string `json:"client,omitempty"` // a fingerprint
	Key    string `json:"key,omitempty"`
	User   string `json:"user,omitempty"`
	IP     string `json:"ip,omitempty"`
}

// ClientPage is the response to POST /v1/clients.
type ClientPage struct {
	top.HourOfClient
	Blocked   bool         `json:"blocked"`
	Allowed   bool         `json:"allowed"`
	Overrides []OverrideOf `json:"overrides"`
}

// OverrideOf is an override that a client has.
type OverrideOf struct {
	Rule     string    `json:"rule"`
	Limit    string    `json:"limit"`
	Capacity int64     `json:"capacity,omitempty"`
	Expires  time.Time `json:"expires,omitzero"`
}

// WhatIf is the body of POST /v1/rules/whatif: a limit to try instead of the rule's limits.
type WhatIf struct {
	Rule string `json:"rule"`
	Numbers
	Algorithm string `json:"algorithm,omitempty"` // "" means the rule's own algorithm
}

// WhatIfAnswer is the response to POST /v1/rules/whatif.
type WhatIfAnswer struct {
	top.WhatIf
	Notes []string `json:"notes"` // what the answer doesn't consider
}
