package serve

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/watch"
	"github.com/weirhq/weir/server/internal/observe/budget"
)

// validateBudget never quotes the URL: there may be a secret in it.
func (c *Config) validateBudget() error {
	switch {
	case c.BudgetWebhook == "" && c.BudgetWebhookTokenFile != "":
		return fmt.Errorf("--budget-webhook-token-file: needs --budget-webhook, which says where the token is sent")
	case c.BudgetWebhook == "":
		return nil
	}
	if err := budget.CheckURL(c.BudgetWebhook); err != nil {
		return fmt.Errorf("--budget-webhook: %w", err)
	}
	return nil
}

// budgetToken is the one that the webhook is sent, or "".
func (c *Config) budgetToken() (string, error) {
	if c.BudgetWebhookTokenFile == "" {
		return "", nil
	}
	text, err := watch.ReadSmall(c.BudgetWebhookTokenFile)
	if err != nil {
		return "", fmt.Errorf("--budget-webhook-token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("--budget-webhook-token-file: %s must hold one token and nothing else: letters, digits and signs, without spaces between them", c.BudgetWebhookTokenFile)
	}
	return token, nil
}

// openBudget begins to watch budgets. The store is open.
func (n *node) openBudget() error {
	token, err := n.config.budgetToken()
	if err != nil {
		return err
	}
	o := budget.Options{Now: n.limiter.Now, Node: n.self.Name, Fingerprint: n.top.FingerprintOf, FullNames: n.config.BudgetFullNames, Logger: n.log, Store: n.counting()}
	if n.config.BudgetWebhook != "" {
		o.Webhook = budget.NewWebhook(n.config.BudgetWebhook, token, n.log)
		n.registry.MustRegister(webhookMetrics(o.Webhook)...)
	}
	n.budget = budget.New(o)
	n.registry.MustRegister(budgetMetrics(n.budget)...)
	return nil
}

// counting is the store that all nodes share.
func (n *node) counting() counter.Store {
	if n.redis != nil {
		return n.redis
	}
	return n.counters
}

func counterOf(name, help string, value func() uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
}

func budgetMetrics(w *budget.Watcher) []prometheus.Collector {
	return []prometheus.Collector{
		counterOf("weir_budget_events_total", "Events of budgets that this node has told.", func() uint64 { return w.Stats().Events }),
		counterOf("weir_budget_events_dropped_total", "Decisions that crossed a threshold of a budget while too many events waited.", func() uint64 { return w.Stats().Dropped }),
	}
}

func webhookMetrics(h *budget.Webhook) []prometheus.Collector {
	return []prometheus.Collector{
		counterOf("weir_budget_webhook_sent_total", "Events that the webhook has taken.", func() uint64 { return h.Stats().Sent }),
		counterOf("weir_budget_webhook_failed_total", "Events that the webhook didn't take, or that it was too slow for.", func() uint64 { s := h.Stats(); return s.Failed + s.Dropped }),
	}
}
