package load

import (
	"context"
	"fmt"
	"time"
)

// StoreCPU is the processor time that the store's server used for the checks that were measured.
type StoreCPU struct {
	Seconds    float64 `json:"seconds"`
	PerMillion float64 `json:"seconds_per_million_checks"`
	// Unknown is why it isn't known; "" if it is.
	Unknown string `json:"unknown,omitempty"`
}

func (c *StoreCPU) String() string {
	if c.Unknown != "" {
		return c.Unknown
	}
	return fmt.Sprintf("%.3g s per million checks, in the store's server", c.PerMillion)
}

// storeReading is what a store's server had used at a moment; nil if there is none to ask.
type storeReading struct {
	used time.Duration
	err  error
}

// readStore asks the store's server, also when ctx is done: an interrupted run is reported, too.
func (p *Plan) readStore(ctx context.Context) *storeReading {
	if p.StoreCPU == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var r storeReading
	r.used, r.err = p.StoreCPU(ctx)
	return &r
}

// until is what was used from one reading to another, for so many checks.
func (r *storeReading) until(end *storeReading, checks int64) *StoreCPU {
	if r == nil {
		return nil
	}
	for _, err := range []error{r.err, end.err} {
		if err != nil {
			return &StoreCPU{Unknown: err.Error()}
		}
	}
	c := &StoreCPU{Seconds: (end.used - r.used).Seconds()}
	if checks > 0 {
		c.PerMillion = c.Seconds / float64(checks) * 1e6
	}
	return c
}
