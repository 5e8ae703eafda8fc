package admin

import (
	"net/http"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
)

// Now answers GET /v1/now: how one node is, and what it has done lately.
type Now struct {
	Node        string    `json:"node"`
	Version     string    `json:"version"`
	Started     time.Time `json:"started"`
	At          time.Time `json:"at"` // when all this was so
	SlotSeconds int       `json:"slot_seconds"`
	Series      Series    `json:"series"`
	Totals      Rates     `json:"totals"`
	Latency     Latency   `json:"latency"`
	Lease       *Lease    `json:"lease"` // nil without leases
	Store       NowStore  `json:"store"`
	Memory      Memory    `json:"memory"`
	// InFlight is how many requests are being decided on the listener that has the most, of the MaxInFlight that each may have.
	InFlight     int           `json:"in_flight"`
	MaxInFlight  int           `json:"max_in_flight"`
	RulesVersion int64         `json:"rules_version"`
	RulesSince   *time.Time    `json:"rules_since"` // nil while there are none
	Trouble      []Trouble     `json:"trouble"`
	FailureModes []FailureMode `json:"failure_modes"`
	// FailureTotals counts all rules, those that FailureModes has no room for among them.
	FailureTotals []FailureTotal `json:"failure_totals"`
}

// Series are figures of the last seconds, newest last. Times are of decisions that were measured, one in 64; nil if none was.
type Series struct {
	Decisions []uint64   `json:"decisions"`
	Refused   []uint64   `json:"refused"`
	Degraded  []uint64   `json:"degraded"`
	P50       []*float64 `json:"p50_us"`
	P99       []*float64 `json:"p99_us"`
}

// Rates are decisions a second over the last seconds.
type Rates struct {
	Over      float64             `json:"over_seconds"`
	Decisions float64             `json:"decisions_per_second"`
	Refused   float64             `json:"refused_per_second"`
	Degraded  float64             `json:"degraded_per_second"`
	ByReason  map[string]float64  `json:"by_reason"`
	ByEdge    map[string]EdgeRate `json:"by_edge"`
}

// EdgeRate is what came in at one edge.
type EdgeRate struct {
	Decisions float64 `json:"decisions_per_second"`
	Refused   float64 `json:"refused_per_second"`
}

// Latency is how long decisions took over the last seconds, of those that were measured.
type Latency struct {
	Over     float64  `json:"over_seconds"`
	Measured uint64   `json:"measured"`
	P50      *float64 `json:"p50_us"`
	P99      *float64 `json:"p99_us"`
}

// Lease is what leases spare the store.
type Lease struct {
	LocalShare *float64 `json:"local_share"` // of charges over the last seconds; nil if there were none
	Tokens     int64    `json:"tokens"`
	Counters   int64    `json:"counters"`
}

// Memory is the counters in the node's own process.
type Memory struct {
	Counters  int    `json:"counters"`
	Bytes     int64  `json:"bytes"`
	Cap       int64  `json:"cap"`
	Evictions uint64 `json:"evictions"`
}

// NowStore is how the store is, with how long calls took over the last seconds.
type NowStore struct {
	URL    string     `json:"url"`
	Status string     `json:"status"`
	Since  *time.Time `json:"since,omitempty"`
	Nodes  int        `json:"nodes,omitempty"`
	Shards []NowShard `json:"shards"`
}

// NowShard is one server of the store.
type NowShard struct {
	Name    string     `json:"name"`
	Up      bool       `json:"up"`
	Since   *time.Time `json:"since,omitempty"`
	Error   string     `json:"error,omitempty"`
	Keys    int64      `json:"keys,omitempty"`
	Breaker string     `json:"breaker"` // closed, open, or probing: its last call failed, or none has succeeded yet
	P50     *float64   `json:"p50_us"`
	P99     *float64   `json:"p99_us"`
}

// Trouble is something that an operator should know of, and what it means for clients.
type Trouble struct {
	What  string    `json:"what"`
	Since time.Time `json:"since"`
	Text  string    `json:"text"`
}

// FailureMode is what a rule does while the store can't be reached.
type FailureMode struct {
	Rule string `json:"rule"`
	Mode string `json:"mode"` // allow, refuse or local
	Text string `json:"text"`
}

// FailureTotal is how many rules do the same while the store can't be reached.
type FailureTotal struct {
	Mode  string `json:"mode"`
	Text  string `json:"text"`
	Rules int    `json:"rules"`
}

func (a *API) now(w http.ResponseWriter, _ *http.Request) *jsonerror.Error {
	WriteJSON(w, http.StatusOK, a.Now())
	return nil
}
