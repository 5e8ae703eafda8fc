package main

import (
	"math"
	"time"

	"github.com/weirhq/weir/server/bench/internal/report"
)

// figure is one of the numbers of a sample.
type figure func(*sample) float64

func perSecond(s *sample) float64 { return float64(s.checks) / s.wall.Seconds() }

// In milliseconds.
func p50(s *sample) float64 { return 1e3 * s.p50.Seconds() }
func p99(s *sample) float64 { return 1e3 * s.p99.Seconds() }

// In seconds per million checks.
func redisCPU(s *sample) float64  { return perMillion(s.redis, s.checks) }
func clientCPU(s *sample) float64 { return perMillion(s.client, s.checks) }

func perMillion(used time.Duration, checks int) float64 {
	if used == 0 {
		return math.NaN() // unknown
	}
	return 1e6 * used.Seconds() / float64(checks)
}

// spread is a figure over the rounds that are fit to use.
func (r *row) spread(f figure) report.Spread {
	return overRounds(func(i int) float64 { return f(&r.samples[i]) }, r)
}

// ratio is how many times base's figure r's is, computed within each round: the
// rounds differ by what else the machine was doing.
func (r *row) ratio(base *row, f figure) report.Spread {
	if r == nil || base == nil {
		return report.MiddleOf(nil)
	}
	return overRounds(func(i int) float64 { return f(&r.samples[i]) / f(&base.samples[i]) }, r, base)
}

// overRounds leaves out rounds in which checks of any row failed. It leaves out those
// that others disturbed, too, unless there is nothing else.
func overRounds(value func(round int) float64, rows ...*row) report.Spread {
	rounds := len(rows[0].samples)
	for _, r := range rows {
		rounds = min(rounds, len(r.samples))
	}
	var all, calm []float64
	for i := range rounds {
		sound, still := true, true
		for _, r := range rows {
			sound = sound && r.samples[i].failed == 0
			still = still && r.samples[i].calm()
		}
		if !sound {
			continue
		}
		all = append(all, value(i))
		if still {
			calm = append(calm, value(i))
		}
	}
	if calm == nil {
		calm = all
	}
	return report.MiddleOf(calm)
}
