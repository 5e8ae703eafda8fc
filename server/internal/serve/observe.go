package serve

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/observe/budget"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// observe passes every decision to each part of the node that observes decisions. It runs in every check, so none of
// them may block. The calls are written out because a loop over a list of functions would cost as much as one of them.
func (n *node) observe(o *weir.Observation) {
	n.metrics.Observe(o)
	n.top.Observe(o)
	if o.Err != nil && n.live.failed.Load() == nil { // one failure a second is enough to explain degraded decisions
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

// closing is how long the node may take to write the last lines of the decision log.
const closing = 2 * time.Second

func (n *node) closeDecisionLog() {
	if err := n.decided.Close(closing); err != nil {
		n.log.Error(err.Error())
	}
}

// newTop makes the part that counts clients for /v1/top.
func (n *node) newTop() *top.Top {
	return top.New(top.Options{
		Totals: n.metrics.Totals,
		Rules:  func() *weir.RuleSet { return n.limiter.Rules() },
		Secret: func() []byte {
			if n.redis == nil {
				return nil
			}
			return n.redis.Secret()
		},
		Now: func() time.Time { return private.Now(n.limiter) },
	})
}

// noAddress remembers for which rules a check came without the client's address.
type noAddress struct {
	seen atomic.Pointer[weir.RuleSet] // the rules in force at the last such check
	said sync.Once
}

// warnOfNoAddress logs one warning if a check has no address and a rule counts by address: all such checks share one
// counter.
func (n *node) warnOfNoAddress() {
	rules := n.limiter.Rules()
	if n.noAddr.seen.Load() == rules || n.noAddr.seen.Swap(rules) == rules {
		return // returns here for almost all checks
	}
	for _, r := range rules.Rules().Rules {
		if slices.Contains(r.By, "ip") {
			n.noAddr.said.Do(func() {
				n.log.Warn(`a check came without "ip", and a rule counts by it: all such checks share one counter; send the address of the client`, "rule", r.ID)
			})
		}
	}
}

// validateBudget checks the budget settings. Its errors don't quote the URL, which may hold a secret.
func (c *Config) validateBudget() error {
	if c.BudgetWebhook == "" {
		return when(c.BudgetWebhookTokenFile != "", "--budget-webhook-token-file: needs --budget-webhook, which says where the token is sent")
	}
	return in("--budget-webhook", budget.CheckURL(c.BudgetWebhook))
}

// budgetToken returns the token to send to the webhook, or "".
func (c *Config) budgetToken() (string, error) {
	text, err := readSecret("--budget-webhook-token-file", c.BudgetWebhookTokenFile)
	if text == nil || err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("--budget-webhook-token-file: %s must hold one token and nothing else: letters, digits and signs, without spaces between them", c.BudgetWebhookTokenFile)
	}
	return token, nil
}

// openBudget starts watching budgets. It needs the store to be open.
func (n *node) openBudget() error {
	token, err := n.config.budgetToken()
	if err != nil {
		return err
	}
	o := budget.Options{Now: func() time.Time { return private.Now(n.limiter) }, Node: n.self.Name, Fingerprint: n.top.FingerprintOf, FullNames: n.config.BudgetFullNames, Logger: n.log, Store: n.counting()}
	if n.config.BudgetWebhook != "" {
		o.Webhook = budget.NewWebhook(n.config.BudgetWebhook, token, n.log)
	}
	n.budget = budget.New(o)
	n.watchBudget(o.Webhook)
	return nil
}

// counting returns the store that all nodes share, or the in-process store without Redis.
func (n *node) counting() interface {
	counter.Store
	admin.Slots
} {
	if n.redis != nil {
		return n.redis
	}
	return n.counters
}
