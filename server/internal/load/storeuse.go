package load

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// StoreCPU is the processor time that the store's server used for the checks that were measured.
type StoreCPU struct {
	Seconds    float64 `json:"seconds"`
	PerMillion float64 `json:"seconds_per_million_checks"`
	// Unknown says why it isn't known; "" if it is.
	Unknown string `json:"unknown,omitempty"`
}

func (c *StoreCPU) String() string {
	if c.Unknown != "" {
		return c.Unknown
	}
	return fmt.Sprintf("%.3g s per million checks, in the store's server", c.PerMillion)
}

// StoreCalls is how many calls nodes made to the store's server for the checks that were measured, including those that
// gave tokens back.
type StoreCalls struct {
	Calls    int64   `json:"calls"`
	PerCheck float64 `json:"per_check"`
}

func (c *StoreCalls) String() string { return fmt.Sprintf("%.3g per check", c.PerCheck) }

// Leases is how the charges of the checks that were measured were decided.
type Leases struct {
	// Local charges were decided by the nodes themselves.
	Local      int64   `json:"local"`
	LocalShare float64 `json:"local_share"`
	// Asked is for how many the store was asked.
	Asked         int64   `json:"asked"`
	AskedPerCheck float64 `json:"asked_per_check"`
}

func (l *Leases) String() string {
	share := "none"
	if l.Local > 0 {
		share = percent(l.Local, l.Local+l.Asked)
	}
	return fmt.Sprintf("%s of charges decided without the store; %.3g charges per check sent to it", share, l.AskedPerCheck)
}

// storeReading is what a store's server and the nodes in front of it had done at one moment.
type storeReading struct {
	cpu                 time.Duration
	cpuErr              error
	calls, local, asked uint64
}

// storePatience bounds how long the server may take to say what it has used, which takes long under load.
const storePatience = 10 * time.Second

// readStore reads what the store and the nodes have done, even when ctx is done: an interrupted run has a report, too.
func (p *Plan) readStore(ctx context.Context) *storeReading {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storePatience)
	defer cancel()
	r := new(storeReading)
	if p.Mark != nil {
		p.Mark()
	}
	if p.Leases != nil {
		r.local, r.asked = p.Leases()
	}
	if p.StoreCalls != nil {
		r.calls = p.StoreCalls()
	}
	if p.StoreCPU != nil {
		r.cpu, r.cpuErr = p.StoreCPU(ctx)
	}
	return r
}

// reportStore adds to a report what was done between two readings. The first is nil if nothing was measured.
func (p *Plan) reportStore(begin, end *storeReading, r *Report) {
	if begin == nil {
		return
	}
	per := func(x float64) float64 { return x / float64(max(r.Checks, 1)) }
	if p.Leases != nil {
		l := &Leases{Local: int64(end.local - begin.local), Asked: int64(end.asked - begin.asked)}
		l.LocalShare = float64(l.Local) / float64(max(l.Local+l.Asked, 1))
		l.AskedPerCheck = per(float64(l.Asked))
		r.Leases = l
	}
	if p.StoreCalls != nil {
		calls := int64(end.calls - begin.calls)
		r.StoreCalls = &StoreCalls{Calls: calls, PerCheck: per(float64(calls))}
	}
	if p.StoreCPU != nil {
		c := &StoreCPU{}
		if err := cmp.Or(begin.cpuErr, end.cpuErr); err != nil {
			c.Unknown = err.Error()
		} else {
			c.Seconds = (end.cpu - begin.cpu).Seconds()
			c.PerMillion = per(c.Seconds * 1e6)
		}
		r.StoreCPU = c
	}
}
