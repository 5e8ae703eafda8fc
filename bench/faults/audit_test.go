package faults

import (
	"fmt"
	"time"

	"github.com/weirhq/weir/server/internal/load"
)

// report records what the load saw.
func (t *experiment) report(load *load.Report) {
	r, c := t.result, t.traffic
	c.mu.Lock()
	defer c.mu.Unlock()
	r.answers, r.slowest, r.statuses, r.degraded, r.wrong = load.Checks, load.Latency.Max, load.Statuses, load.Degraded, c.wrong
	r.most = c.most - t.config.workers
	if !c.first.IsZero() {
		r.noticed = c.first.Sub(c.fault)
	}
	again := t.again
	if c.last.After(again) {
		again = c.last
	}
	r.exact = max(0, again.Sub(t.from))
}

// audit compares what the clients of keys were told with what Redis counted, and with the limits: no request is counted twice,
// no counted request is forgotten, and no fault raises a limit.
func (t *experiment) audit() error {
	wrong := t.result.wrong
	lost := int64(0)
	if err := t.exact(); err != nil {
		wrong["at the end: "+err.Error()]++
	}
	for i := range t.traffic.keys {
		k := &t.traffic.keys[i]
		most := int64(tight)
		if t.forgets {
			most *= 2
		}
		switch k.rule {
		case "tight":
			if k.counted > most {
				wrong[fmt.Sprintf("tight: Redis allowed a key %d", k.counted)]++
			}
		case "local":
			if k.counted > most || k.local > tight {
				wrong[fmt.Sprintf("local: Redis allowed a key %d, and the node %d", k.counted, k.local)]++
			}
		case "allow":
			a, err := t.client.check(k.rule, k.name, 0)
			if err != nil {
				return err
			}
			left, err := a.left()
			if err != nil {
				return err
			}
			if a.degraded {
				wrong["at the end: a degraded answer"]++
				continue
			}
			used := plenty - left
			lost += max(0, k.counted-used)
			if used > k.sent || used < k.counted && !t.forgets {
				wrong[fmt.Sprintf("allow: of %d requests of a key %d were answered as counted, and %d were counted", k.sent, k.counted, used)]++
			}
		}
	}
	t.result.lost = time.Duration(float64(lost) / t.config.rate * float64(len(ruleNames)) * float64(time.Second))
	return nil
}
