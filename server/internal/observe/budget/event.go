package budget

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/shown"
)

// Event says that a client has used some percentage of a budget. It contains no secrets.
type Event struct {
	// ID identifies the event. If the event is sent again, it has the same ID.
	ID        string    `json:"id"`
	Time      time.Time `json:"time"`
	Node      string    `json:"node"`
	Rule      string    `json:"rule"`
	Policy    string    `json:"policy"`    // the limit's name: the rule's id or, if the rule has several limits, a name such as id-month
	Threshold int       `json:"threshold"` // the percentage that was reached; for a refusal below 100%, the last threshold that was reached, or 0
	// Subject is the client that the rule counts, or "" if the rule counts all clients together. It is masked, but with
	// FullNames, users and organizations aren't. Fingerprint identifies the client in other tools. It is set if the
	// rule counts by a single dimension.
	Subject     string         `json:"subject"`
	Fingerprint string         `json:"fingerprint,omitempty"`
	Amount      string         `json:"amount,omitempty"` // the amount that the budget counts; "" means requests
	Used        counter.Amount `json:"used"`
	Limit       counter.Amount `json:"limit"`
	WindowStart time.Time      `json:"window_start"`
	WindowEnd   time.Time      `json:"window_end"`
	// RunsOutAt is when the budget will be used up if use continues at the same rate. It is nil if the budget lasts
	// until the end of the window, or is used up.
	RunsOutAt *time.Time `json:"runs_out_at,omitempty"`
	// Refused means that the budget refused a request.
	Refused bool `json:"refused"`
	// Shadow means that the limit is in shadow: it counts but doesn't refuse.
	Shadow bool `json:"shadow"`
	// Unconfirmed means that the store couldn't be asked whether another node has sent this event, so the event may be
	// sent twice.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// crossing says that a budget has reached thresholds for which this node hasn't sent events.
type crossing struct {
	counter  counter.Counter // with its own copy of the subject
	at       time.Time
	use      Use
	from, to int  // the thresholds are Thresholds[from:to]
	refused  bool // a request was refused
	below    bool // the event is about a refusal although the budget isn't used up
	keyed    bool // the user or the organization is the same as the API key, so its name is masked
}

func (w *Watcher) event(c *crossing, threshold int) *Event {
	p := c.counter.Policy
	e := &Event{
		ID: newID(), Time: c.at.UTC().Truncate(time.Millisecond), Node: w.opts.Node, Rule: p.Rule, Policy: p.Name, Threshold: threshold, Amount: p.Amount,
		Used: c.use.Used, Limit: c.use.Limit, WindowStart: c.use.Start, WindowEnd: c.use.End, Refused: c.refused, Shadow: p.Shadow,
	}
	values := c.counter.Values()
	e.Subject = subject(&c.counter, values, w.opts.FullNames && !c.keyed)
	if w.opts.Fingerprint != nil {
		e.Fingerprint = w.opts.Fingerprint(values)
	}
	if at, ok := c.use.RunsOut(c.at); ok {
		at = at.UTC().Truncate(time.Second)
		e.RunsOutAt = &at
	}
	return e
}

// mostName is the maximum number of characters of a user or organization in an event.
const mostName = 256

// subject returns the client of a counter. It masks the client, except that users and organizations aren't masked if
// full is true.
func subject(c *counter.Counter, values [][2]string, full bool) string {
	if values == nil && len(c.Subject) > 0 { // no rule says which dimensions the subject consists of
		return shown.Key(string(c.Subject))
	}
	var texts []string
	for _, v := range values {
		text := shown.Value(v[0], v[1])
		if full && (v[0] == "user" || v[0] == "org") {
			text = shown.Printable(shown.Clip(v[1], mostName))
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

// once returns an ID for a kind of event that is the same on all nodes, so that only one node sends the event.
func once(c *crossing, kind int) (id counter.Once) {
	b := binary.BigEndian.AppendUint64([]byte("weir budget 1 "), c.counter.Policy.ID)
	b = binary.BigEndian.AppendUint64(b, uint64(c.use.End.Round(time.Second).Unix()))
	b = append(binary.BigEndian.AppendUint16(b, uint16(kind)), c.counter.Subject...)
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	return id
}

func newID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // can't fail
	return hex.EncodeToString(b[:])
}

// log writes the event to the log, as one line.
func (e *Event) log(to *slog.Logger) {
	args := []slog.Attr{
		slog.String("rule", e.Rule), slog.Int("threshold", e.Threshold), slog.String("subject", e.Subject),
		slog.String("used", e.Used.String()), slog.String("limit", e.Limit.String()), slog.Time("window_end", e.WindowEnd),
	}
	some := func(given bool, name string, value any) {
		if given {
			args = append(args, slog.Any(name, value))
		}
	}
	some(e.Policy != e.Rule, "policy", e.Policy)
	some(e.Fingerprint != "", "fingerprint", e.Fingerprint)
	some(e.Amount != "", "amount", e.Amount)
	if e.RunsOutAt != nil {
		some(true, "runs_out_at", *e.RunsOutAt)
	}
	some(e.Refused, "refused", true)
	some(e.Shadow, "shadow", true)
	some(e.Unconfirmed, "unconfirmed", true)
	to.LogAttrs(context.Background(), slog.LevelInfo, "budget", args...)
}
