package main

import (
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// stage is a set of workloads that are measured one after the other on the same
// store, filled beforehand, for each entry in turn.
type stage struct {
	workloads []string
	rounds    int
	limit     limit
	refuses   bool          // every check is over its limit, or else none is
	shorter   time.Duration // measurements are shorter than usual by this factor
	entries   []entry
}

// entry is a contender in a stage.
type entry struct {
	contender
	label string // in the table
	keys  int
	seqs  []workload.Sequence // one for each workload
}

// table is what came of one workload.
type table struct {
	workload string
	rows     []row
	warnings []string
}

// row is what came of one entry, by round.
type row struct {
	label   string
	kind    kind
	samples []sample
}

// run measures a stage. Every round begins with another contender.
func (s *stage) run(c *config, k workload.Keys, p *report.Progress) ([]table, error) {
	tables := make([]table, len(s.workloads))
	for i, name := range s.workloads {
		tables[i] = table{workload: name}
		for _, e := range s.entries {
			tables[i].rows = append(tables[i].rows, row{e.label, e.kind, nil})
		}
	}
	for round := range s.rounds {
		for i := range s.entries {
			n := (i + round) % len(s.entries)
			e := &s.entries[n]
			p.Step("round %d of %d: %s: %s", round+1, s.rounds, strings.Join(s.workloads, ", "), e.label)
			if err := s.turn(c, k, e, n, tables); err != nil {
				return nil, fmt.Errorf("%s: %w", e.label, err)
			}
			// The next one finds the memory as this one did.
			debug.FreeOSMemory()
		}
	}
	return tables, nil
}

// turn measures one contender in one round, on a store of its own.
func (s *stage) turn(c *config, k workload.Keys, e *entry, n int, tables []table) error {
	in, err := e.open(s.limit, e.keys)
	if err != nil {
		return err
	}
	defer in.close()
	fill(in, k, e.keys, c.clone)
	for i := range tables {
		ws := newWorkers(in, e.seqs[i])
		// Fills leave garbage, and the next contender would pay for collecting it.
		debug.FreeOSMemory()
		measure(ws, k, c.warmup/s.shorter, "workload", s.workloads[i], "contender", e.label, "phase", "warmup")
		m := measureCalm(ws, k, c.time/s.shorter, c.again, "workload", s.workloads[i], "contender", e.label, "phase", "measure")
		t := &tables[i]
		t.rows[n].samples = append(t.rows[n].samples, m)
		if s.refuses && m.refused != m.checks || !s.refuses && m.refused != 0 {
			t.warn("%s: %d of %d checks were refused", e.label, m.refused, m.checks)
		}
	}
	if in.stats != nil {
		if st := in.stats(); st.Counters != e.keys || st.Evicted > 0 {
			tables[0].warn("%s: keeps %d of %d counters", e.label, st.Counters, e.keys)
		}
	}
	return nil
}

func (t *table) warn(format string, args ...any) {
	t.warnings = append(t.warnings, fmt.Sprintf(format, args...))
}
