package region

import (
	"errors"
	"fmt"

	"github.com/weirhq/weir"
)

// message is what one region says to another: acts for the home, or none, as a heartbeat.
type message struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Epoch int64  `json:"epoch"`
	Rules string `json:"rules"` // the fingerprint of the global rules
	Acts  []act  `json:"acts,omitempty"`
}

// answer is what the other says to it.
type answer struct {
	From  string   `json:"from"`
	Epoch int64    `json:"epoch"`
	Rules string   `json:"rules"`
	Done  []result `json:"done,omitempty"`
}

// act is one call of a store: charges, returns, or a reset of counters.
type act struct {
	Charges []charge  `json:"charges,omitempty"`
	Returns []charge  `json:"returns,omitempty"`
	Once    weir.Once `json:"once,omitzero"`
	Keep    int64     `json:"keep,omitempty"` // µs
	Resets  []charge  `json:"resets,omitempty"`
}

// charge is a weir.Charge, a weir.Return or a weir.Counter.
type charge struct {
	ID        uint64     `json:"id"`
	Name      string     `json:"name"`
	Limit     weir.Limit `json:"limit"`
	GivesBack bool       `json:"gives_back,omitempty"`
	Shadow    bool       `json:"shadow,omitempty"`
	Subject   []byte     `json:"subject"`
	N         int64      `json:"n,omitempty"`
	Peek      bool       `json:"peek,omitempty"`
	Slot      int64      `json:"slot,omitempty"`
	Hold      *weir.Hold `json:"hold,omitempty"`
	Used      int64      `json:"used,omitempty"`
}

// result is what became of an act.
type result struct {
	Results []weir.Result `json:"results,omitempty"`
	Used    bool          `json:"used,omitempty"` // weir.ErrUsed
	Failed  string        `json:"failed,omitempty"`
}

// The most that a message may hold. A check has a handful of limits.
const (
	maxActs    = 256
	maxCharges = 64
	maxMessage = 4 << 20
)

func wireCounter(p *weir.Policy, subject []byte) charge {
	return charge{ID: p.ID, Name: p.Name, Limit: p.Limit, GivesBack: p.GivesBack, Shadow: p.Shadow, Subject: subject}
}

// counter is what a charge is for, by the numbers that it came with.
func (c *charge) counter() (weir.Counter, error) {
	p, err := weir.NewPolicy(c.Name, c.Limit)
	if err != nil {
		return weir.Counter{}, fmt.Errorf("%s: %w", c.Name, err)
	}
	p.ID, p.Strict, p.GivesBack, p.Shadow = c.ID, true, c.GivesBack, c.Shadow
	return weir.Counter{Policy: p, Subject: c.Subject}, nil
}

func wireCharge(of *weir.Charge) charge {
	c := wireCounter(of.Policy, of.Subject)
	c.N, c.Peek, c.Hold = of.N, of.Peek, of.Hold
	return c
}

func wireReturn(of *weir.Return) charge {
	c := wireCounter(of.Policy, of.Subject)
	c.N, c.Slot, c.Hold, c.Used = of.N, of.Slot, of.Hold, of.Used
	return c
}

var errTooMany = errors.New("too many charges in one act")

// counters are those of a list, bounded.
func countersOf(list []charge) ([]weir.Counter, error) {
	if len(list) > maxCharges {
		return nil, errTooMany
	}
	out := make([]weir.Counter, len(list))
	for i := range list {
		c, err := list[i].counter()
		if err != nil {
			return nil, err
		}
		out[i] = c
	}
	return out, nil
}
