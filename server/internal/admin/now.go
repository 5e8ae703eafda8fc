package admin

import (
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
)

// Now is the response to GET /v1/now: the state of one node, and its history over some minutes.
type Now struct {
	Node        string    `json:"node"`
	Version     string    `json:"version"`
	Started     time.Time `json:"started"`
	At          time.Time `json:"at"` // when the node computed this response
	SlotSeconds int       `json:"slot_seconds"`
	Series      Series    `json:"series"`
	Totals      Rates     `json:"totals"`
	Latency     Latency   `json:"latency"`
	Lease       *Lease    `json:"lease"` // nil if the node has no leases
	Store       NowStore  `json:"store"`
	Memory      Memory    `json:"memory"`
	// InFlight is how many requests the busiest listener is deciding now. MaxInFlight is the maximum for each listener.
	InFlight     int           `json:"in_flight"`
	MaxInFlight  int           `json:"max_in_flight"`
	RulesVersion int64         `json:"rules_version"`
	RulesSince   *time.Time    `json:"rules_since"` // nil while there are no rules
	Trouble      []Trouble     `json:"trouble"`
	FailureModes []FailureMode `json:"failure_modes"`
	// FailureTotals includes all rules, even those that FailureModes leaves out for lack of space.
	FailureTotals []FailureTotal `json:"failure_totals"`
}

// Series are figures for slots of time, the newest last. One in 64 decisions is timed; for slots without a timed
// decision, P50 and P99 are nil.
type Series struct {
	Decisions []uint64   `json:"decisions"`
	Refused   []uint64   `json:"refused"`
	Degraded  []uint64   `json:"degraded"`
	P50       []*float64 `json:"p50_us"`
	P99       []*float64 `json:"p99_us"`
}

// Rates are decisions per second over the last seconds.
type Rates struct {
	Over      float64             `json:"over_seconds"`
	Decisions float64             `json:"decisions_per_second"`
	Refused   float64             `json:"refused_per_second"`
	Degraded  float64             `json:"degraded_per_second"`
	ByReason  map[string]float64  `json:"by_reason"`
	ByEdge    map[string]EdgeRate `json:"by_edge"`
}

// EdgeRate is the rate of decisions at one edge.
type EdgeRate struct {
	Decisions float64 `json:"decisions_per_second"`
	Refused   float64 `json:"refused_per_second"`
}

// Latency is how long the timed decisions of the last seconds took.
type Latency struct {
	Over     float64  `json:"over_seconds"`
	Measured uint64   `json:"measured"`
	P50      *float64 `json:"p50_us"`
	P99      *float64 `json:"p99_us"`
}

// Lease shows how many calls to the store are saved by leases.
type Lease struct {
	LocalShare *float64 `json:"local_share"` // share of charges over the last seconds that were decided in this process; nil if there were no charges
	Tokens     int64    `json:"tokens"`
	Counters   int64    `json:"counters"`
}

// Memory describes the counters in the node's own process.
type Memory struct {
	Counters  int    `json:"counters"`
	Bytes     int64  `json:"bytes"`
	Cap       int64  `json:"cap"`
	Evictions uint64 `json:"evictions"`
}

// Store is the state of the store.
type Store struct {
	URL string `json:"url,omitempty"` // without the password
	// Status is "up" or "degraded". It is "degraded" if a shard can't be reached, so that failure modes decide for the
	// counters there.
	Status string     `json:"status"`
	Since  *time.Time `json:"since,omitempty"` // when the store was lost; nil if it is up
	Nodes  int        `json:"nodes,omitempty"`
	Shards []Shard    `json:"shards,omitempty"`
	// Warning is a problem of a store that can be reached, or "".
	Warning string `json:"warning,omitempty"`
}

// Shard is a server of the store.
type Shard struct {
	Name    string     `json:"name"`
	Up      bool       `json:"up"`
	Since   *time.Time `json:"since,omitempty"`
	Error   string     `json:"error,omitempty"`
	Keys    int64      `json:"keys,omitempty"` // an estimate
	Doubted bool       `json:"-"`              // the last call failed, or none has succeeded yet
}

// NowStore is the state of the store, and the latency of its calls over the last seconds.
type NowStore struct {
	Store
	Shards []NowShard `json:"shards"`
}

// NowShard is a server of the store.
type NowShard struct {
	Shard
	Breaker string   `json:"breaker"` // "closed", "open", or "probing" while the server is in doubt
	P50     *float64 `json:"p50_us"`
	P99     *float64 `json:"p99_us"`
}

// Trouble is a problem that operators should know about, with its consequences for clients.
type Trouble struct {
	What  string    `json:"what"`
	Since time.Time `json:"since"`
	Text  string    `json:"text"`
}

// FailureMode says what a rule does while the store can't be reached.
type FailureMode struct {
	Rule string `json:"rule"`
	Mode string `json:"mode"` // allow, refuse or local
	Text string `json:"text"`
}

// FailureTotal is how many rules do the same thing while the store can't be reached.
type FailureTotal struct {
	Mode  string `json:"mode"`
	Text  string `json:"text"`
	Rules int    `json:"rules"`
}

func (a *API) now(_ *call) (any, *jsonerror.Error) {
	return a.Now(), nil
}
