package region

import (
	"errors"
	"fmt"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

// message is what one region sends to another: operations to carry out. A heartbeat has none.
type message struct {
	From     string      `json:"from"`
	To       string      `json:"to"`
	Topology *Topology   `json:"topology"`
	Rules    string      `json:"rules"` // the fingerprint of the sender's global rules
	Acts     []operation `json:"acts,omitempty"`
}

type answer struct {
	From     string    `json:"from"`
	Topology *Topology `json:"topology"`
	Rules    string    `json:"rules"`
	Done     []result  `json:"done,omitempty"`
}

// operation is a call of a method of another region's store, or a message about a stake.
type operation struct {
	Charges []charge     `json:"charges,omitempty"`
	Returns []charge     `json:"returns,omitempty"`
	Once    counter.Once `json:"once,omitzero"`
	Keep    int64        `json:"keep,omitempty"` // how long to remember Once, in µs
	Resets  []charge     `json:"resets,omitempty"`
	// Talk is a message about a counter that regions share.
	Talk *stakeMessage `json:"talk,omitempty"`
}

// stakeMessage is one region's message about its stake in a counter.
type stakeMessage struct {
	Counter charge `json:"counter"`
	stake.Message
}

// charge carries a counter.Charge, a counter.Return or a counter.Counter.
type charge struct {
	Policy  policy        `json:"policy"`
	Subject []byte        `json:"subject"`
	N       int64         `json:"n,omitempty"`
	Peek    bool          `json:"peek,omitempty"`
	Guest   bool          `json:"guest,omitempty"`
	Slot    int64         `json:"slot,omitempty"`
	Hold    *counter.Hold `json:"hold,omitempty"`
	Used    int64         `json:"used,omitempty"`
	// Recorded means that the charge is given back only if the hold's record exists: see [counter.Return].
	Recorded bool `json:"recorded,omitempty"`
}

// policy contains the parts of a counter.Policy that a store needs.
type policy struct {
	ID           uint64        `json:"id"`
	Name         string        `json:"name"`
	Limit        counter.Limit `json:"limit"`
	Shadow       bool          `json:"shadow,omitempty"`
	GivesBack    bool          `json:"gives_back,omitempty"`
	Book         bool          `json:"book,omitempty"`
	CountRefused bool          `json:"count_refused,omitempty"`
	Travels      bool          `json:"travels,omitempty"`
	Home         string        `json:"home,omitempty"`
	Floor        int           `json:"floor,omitempty"`
}

// result is the outcome of an operation.
type result struct {
	Results []counter.Result `json:"results,omitempty"`
	Used    bool             `json:"used,omitempty"` // counter.ErrUsed
	Failed  string           `json:"failed,omitempty"`
	NoRoom  []int            `json:"no_room,omitempty"` // indices of charges with counter.ErrNoRoom
	// Said is the reply to a Talk.
	Said *stake.Message `json:"said,omitempty"`
}

// Bounds of a message. They are far above what checks need, which have a handful of limits each.
const (
	maxActs    = 256
	maxCharges = 64
	maxMessage = 4 << 20
)

func wireCounter(c *counter.Counter) charge {
	p := c.Policy
	return charge{Policy: policy{p.ID, p.Name, p.Limit, p.Shadow, p.GivesBack, p.Book, p.CountRefused, p.Travels, p.Home, p.Floor}, Subject: c.Subject}
}

// counter makes a counter with the policy that was sent.
func (c *charge) counter() (counter.Counter, error) {
	of := &c.Policy
	p, err := counter.Define(counter.Definition{
		Name: of.Name, Limit: of.Limit, ID: of.ID, Strict: true, Shadow: of.Shadow, GivesBack: of.GivesBack, Book: of.Book, CountRefused: of.CountRefused,
		Global: true, Travels: of.Travels, Home: of.Home, Floor: of.Floor,
	})
	if err != nil {
		return counter.Counter{}, fmt.Errorf("%s: %w", of.Name, err)
	}
	return counter.Counter{Policy: p, Subject: c.Subject}, nil
}

func countersOf(list []charge) (out []counter.Counter, err error) {
	if len(list) > maxCharges {
		return nil, errors.New("too many charges in one operation")
	}
	for i := range list {
		c, err := list[i].counter()
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}
