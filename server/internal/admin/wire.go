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

// The types of requests and answers, for the API and its callers.

// Changed is the response to a change of the rules.
type Changed struct {
	Version    int64              `json:"version"`
	DryRun     bool               `json:"dry_run"`
	Warnings   []rulefile.Problem `json:"warnings"`
	NeedsForce bool               `json:"needs_force"`
	Diff       string             `json:"diff"`
	Expires    time.Time          `json:"expires,omitzero"` // when the override ends that was set
	// Emergency is "added" or "removed" if the emergency list was changed.
	Emergency string `json:"emergency,omitempty"`

	before int64  // the version that was changed
	did    string // what the change did, in words
}

// Session is the response to GET and POST /v1/session: who the caller is, and what the console
// needs to know first.
type Session struct {
	Name    string    `json:"name"`
	Role    string    `json:"role"`    // "read" or "operate"
	Session bool      `json:"session"` // the caller has a session cookie instead of a token
	Tokens  bool      `json:"tokens"`  // the node requires tokens
	Expires time.Time `json:"expires,omitzero"`
	// Proof is set only in the response to a login. Requests with the cookie must send it in the
	// header X-Weir-Session.
	Proof string `json:"proof,omitempty"`
	// RulesInFile is the file in which the rules must be changed; if "", the API can change them.
	RulesInFile string `json:"rules_in_file"`
	Node        string `json:"node"`
	Version     string `json:"version"`
}

// Rejection has the details of an error about a document.
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
	// Limit is text such as "500/minute", or a number, which leaves the window unchanged.
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
	// ExpiresIn is a duration such as "1h", or "never". If it is "", an existing override keeps its
	// end.
	ExpiresIn string `json:"expires_in,omitempty"`
}

// List is the allow list or the deny list.
type List struct {
	Entries []string `json:"entries"`
	// Emergency are the blocks on the emergency list. They are shown with the deny list, and PUT
	// ignores them.
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
	Key    string `json:"key,omitempty"`    // or a pattern, or an IP range
	Client string `json:"client,omitempty"` // a fingerprint, in place of the key
	Remove bool   `json:"remove,omitempty"`
}

// Rollback is the body of POST /v1/rules/rollback.
type Rollback struct {
	Version int64  `json:"version"`
	Hash    string `json:"hash,omitempty"`
	Message string `json:"message,omitempty"`
}

// Version is a version of the rules. It has a text only if a single version was requested.
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

// Node is a node that uses the same store, as it describes itself.
type Node struct {
	Name         string    `json:"name"`
	Region       string    `json:"region,omitempty"`
	Self         bool      `json:"self"`
	Version      string    `json:"version"`
	RulesVersion int64     `json:"rules_version"`
	RulesHash    string    `json:"rules_hash"`
	RulesText    string    `json:"rules_text_hash"`   // the same hash as in weir_rules_info
	Store        string    `json:"store"`             // "up", "degraded", or "unknown" if the node hasn't been heard from for too long
	Since        time.Time `json:"since,omitzero"`    // when its store was lost; zero if it is up
	Lost         []string  `json:"lost,omitempty"`    // servers of the store that it can't reach
	Warning      string    `json:"warning,omitempty"` // blocks of rules that are no longer applied
	SeenMSAgo    int64     `json:"seen_ms_ago"`
}

// Regions is the response to GET /v1/regions.
type Regions struct {
	Name string `json:"name,omitempty"` // the region of this node
	// Home is the home of global limits that don't name one.
	Home string `json:"home,omitempty"`
	// Epoch grows with each change that an operator makes to the regions.
	Epoch int64 `json:"epoch,omitempty"`
	// State is "drained" or "forgotten", or "" for neither. Grace means that the region has just
	// become the home, and still owns only its floor.
	State string          `json:"state,omitempty"`
	Grace bool            `json:"grace,omitempty"`
	Peers []region.Status `json:"peers"`
}

// RegionChange is the body of POST /v1/regions.
type RegionChange struct {
	Do     string `json:"do"` // "move", "drain", "forget" or "restore"
	Region string `json:"region"`
	To     string `json:"to,omitempty"` // the new home
	Force  bool   `json:"force,omitempty"`
}

// Nodes is the response to GET /v1/nodes.
type Nodes struct {
	Nodes []Node `json:"nodes"`
	// AsOf is when this node last read the list of the other nodes, and AgeSeconds how long ago
	// that was. Both are nil if it never did.
	AsOf       *time.Time `json:"as_of,omitempty"`
	AgeSeconds *float64   `json:"age_seconds,omitempty"`
	Stale      bool       `json:"stale"` // this node should have read a newer list since
	Store      Store      `json:"store"` // the store of this node, as in GET /v1/version
}

// Counter is the state of a client's counter.
type Counter struct {
	Rule      string `json:"rule"`
	Policy    string `json:"policy"` // the limit's name: the rule's id, or something like id-1s if the rule has several limits
	Algorithm string `json:"algorithm"`
	Shadow    bool   `json:"shadow"`  // the limit refuses no requests
	Refuses   bool   `json:"refuses"` // the request is refused by this limit, or would be if it weren't in shadow
	// SharedAddress means that the limit counts by address and the request has none. All such
	// requests share the counter.
	SharedAddress bool   `json:"shared_address"`
	Amount        string `json:"amount,omitempty"` // the amount that the limit counts; "" means the request's cost
	Limit         string `json:"limit"`
	// Max and Remaining are decimals if the limit counts an amount.
	Max       counter.Amount `json:"max"`
	Remaining counter.Amount `json:"remaining"`
	// InFlight is how many slots of a concurrency limit are taken.
	InFlight *int64 `json:"in_flight,omitempty"`
	// Slots are the requests that hold slots, oldest first, at most 100.
	Slots []Slot `json:"slots,omitempty"`
	// Stake is this region's share of a limit that regions share. If it is set, Remaining is what
	// is left in this region.
	Stake *Stake `json:"stake,omitempty"`
	// WindowEnd is when the window of a fixed window ends. RunsOutAt is when a budget is used up at
	// its pace so far; nil if it lasts to the end, or is used up already.
	WindowEnd *time.Time `json:"window_end,omitempty"`
	RunsOutAt *time.Time `json:"runs_out_at,omitempty"`
	// Used is the share of Max that is used, from 0 to 1; nil if the store can't be reached.
	Used *float64 `json:"used"`
	// FullAt is when the counter will be full again if nothing more is taken. It is nil if the
	// counter is full, or if the time is unknown, as with requests in flight.
	FullAt       *time.Time `json:"full_at"`
	ResetAfterMS int64      `json:"reset_after_ms"` // until the counter is full; 0 if it is
	RetryAfterMS int64      `json:"retry_after_ms"` // -1 if waiting doesn't help
	Degraded     bool       `json:"degraded"`
	// MissingHome is the home region that couldn't be reached, if that is why the counter is
	// degraded.
	MissingHome string `json:"missing_home,omitempty"`
}

// Stake is a region's share of a limit that regions share.
type Stake struct {
	Home     string         `json:"home"`
	Own      counter.Amount `json:"own"` // part of Max
	Borrowed counter.Amount `json:"borrowed"`
	Lent     counter.Amount `json:"lent"`
	// BorrowedUntil is when the borrowed part ends unless it is renewed; nil if it lasts to the end
	// of its window.
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

// Counters is the response to POST /v1/counters: whether the request would be allowed now, and the
// state of its counters.
type Counters struct {
	Allowed  bool      `json:"allowed"`
	Binding  string    `json:"binding"` // the rule that decides, or ""
	Reason   string    `json:"reason"`
	Counters []Counter `json:"counters"`          // the counter that decides comes first
	At       time.Time `json:"at"`                // the time of these figures, by the clock that nodes share
	Warning  string    `json:"warning,omitempty"` // why a real check may be decided differently
}

// Reset is the response to POST /v1/counters/reset.
type Reset struct {
	Reset int `json:"reset"`
}

// Explanation is the response to POST /v1/explain.
type Explanation struct {
	weir.Explanation        // Paths are set if servers may read the path in several ways
	Reason           string `json:"reason"`
	// Emergency means that an entry of the emergency list decides.
	Emergency bool   `json:"emergency,omitempty"`
	Path      string `json:"path,omitempty"` // the first of the readings of the path
	// KeyVerified says whether the request's key counted as verified; nil if it has none.
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
	Calendar  string `json:"calendar,omitempty"` // where the windows start, in words
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

// OverrideOf is an override for a client.
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
