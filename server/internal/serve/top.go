package serve

import (
	"context"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/metrics"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// newTop makes what knows which clients are hot.
func (n *node) newTop() *top.Top {
	return top.New(top.Options{
		Totals: func(tell func(string, top.Total)) {
			n.metrics.Totals(func(rule string, t metrics.Total) { tell(rule, top.Total(t)) })
		},
		Rules: func() *weir.RuleSet { return n.limiter.Rules() },
		Secret: func() []byte {
			if n.redis == nil {
				return nil
			}
			return n.redis.Secret()
		},
		Now: func() time.Time { return n.limiter.Now() },
	})
}

// hot answers who is hot: on every node that can be asked.
func (n *node) hot(ctx context.Context, q top.Query) top.Answer {
	if n.sharedTop == nil {
		return top.Merge(q, []top.List{n.top.List(n.self.Name)}, n.limiter.Now())
	}
	out, err := n.sharedTop.Answer(ctx, q)
	if err != nil {
		n.log.Debug("top", "error", err)
	}
	return out
}
