package serve

import (
	"fmt"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/observe/budget"
)

// validateBudget doesn't quote the URL: it may hold a secret.
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

// openBudget begins to watch budgets. The store is open by then.
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

// counting returns the store that all nodes share.
func (n *node) counting() interface {
	counter.Store
	admin.Slots
} {
	if n.redis != nil {
		return n.redis
	}
	return n.counters
}
