package serve

import (
	"time"

	"github.com/weirhq/weir"
)

// observer is the one function that is told of every decision here. It tells whatever the node has that wants to know: an
// observer that is off is nil, and costs nothing. It runs in every check, so each must be quick and must not wait.
func (n *node) observer() func(*weir.Observation) {
	var writeDown func(*weir.Observation)
	if n.decided != nil {
		writeDown = n.decided.Observe
	}
	return tell(n.metrics.Observe, n.top.Observe, writeDown)
}

// tell makes one observer of several. Nil ones are left out.
func tell(all ...func(*weir.Observation)) func(*weir.Observation) {
	var some []func(*weir.Observation)
	for _, f := range all {
		if f != nil {
			some = append(some, f)
		}
	}
	switch len(some) {
	case 0:
		return nil // the limiter then doesn't even make an Observation
	case 1:
		return some[0]
	}
	return func(o *weir.Observation) {
		for _, f := range some {
			f(o)
		}
	}
}

// closing is how long the last lines of the decision log may take.
const closing = 2 * time.Second

func (n *node) closeDecisionLog() {
	if err := n.decided.Close(closing); err != nil {
		n.log.Error(err.Error())
	}
}
