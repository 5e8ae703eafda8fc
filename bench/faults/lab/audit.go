package faults

import (
	"fmt"
	"time"
)

// report writes what was seen.
func (t *traffic) report(r *Result, from, again time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Statuses, r.Wrong, r.Degraded = t.statuses, t.wrong, t.degraded
	if t.degraded > 0 {
		r.Noticed = t.first.Sub(t.fault)
	}
	if t.last.After(again) {
		again = t.last
	}
	r.Exact = max(0, again.Sub(from))
}

// audit compares what keys were told with what Redis counted of them, and with
// their limits: no request counts twice, none that was counted is forgotten, and no fault raises a limit.
func (t *experiment) audit() error {
	wrong := t.result.Wrong
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
	t.result.Lost = time.Duration(float64(lost) / t.config.Rate * float64(len(ruleNames)) * float64(time.Second))
	return nil
}
