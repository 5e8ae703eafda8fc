package serve

import (
	"time"

	"github.com/weirhq/weir"
)

// observe is the one function that is told of every decision here. It tells whatever the node has that wants to know. It runs in
// every check, so each of them must be quick and must not wait; and it calls them by name, since a list of functions would
// take as long as one of them does.
func (n *node) observe(o *weir.Observation) {
	n.metrics.Observe(o)
	n.top.Observe(o)
	if o.Err != nil && n.live.failed.Load() == nil { // one a second is enough to say why
		err := o.Err
		n.live.failed.Store(&err)
	}
	if n.budget != nil {
		n.budget.Observe(o)
	}
	if n.tail.Watched() {
		n.tail.Observe(o)
	}
	if n.decided != nil {
		n.decided.Observe(o)
	}
}

// closing is how long the last lines of the decision log may take.
const closing = 2 * time.Second

func (n *node) closeDecisionLog() {
	if err := n.decided.Close(closing); err != nil {
		n.log.Error(err.Error())
	}
}
