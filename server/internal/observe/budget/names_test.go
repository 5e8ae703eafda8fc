package budget_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/observe/budget"
)

// With FullNames, users and organizations are named in full. Keys never are.
func TestFullNames(t *testing.T) {
	rule := daily
	rule.By = []string{"api_key", "user", "org"}
	for full, want := range map[bool]string{false: "", true: "grace.hopper@navy.example acme-corporation-of-america"} {
		n := open(t, memstore.New(memstore.Options{}), budget.Options{FullNames: full}, rule)
		if _, err := n.Check(t.Context(), &weir.Request{APIKey: spendKey, User: "grace.hopper@navy.example", Org: "acme-corporation-of-america", Amounts: usd(9)}); err != nil {
			t.Fatal(err)
		}
		n.watcher.Close(time.Minute)
		log := n.log.String()
		if !strings.Contains(log, "threshold=80") || strings.Contains(log, spendKey) || !strings.Contains(log, want) || strings.Contains(log, "grace.hopper@") != full {
			t.Errorf("with full names %v:\n%s", full, log)
		}
	}
}

// A key that is also sent as the user or the organization stays masked.
func TestKeysAsNames(t *testing.T) {
	rule := daily
	rule.By = []string{"user", "org"}
	for _, r := range []weir.Request{{User: spendKey, Org: "acme"}, {User: "ada", Org: spendKey}} {
		r.APIKey, r.Amounts = spendKey, usd(9)
		n := open(t, memstore.New(memstore.Options{}), budget.Options{FullNames: true}, rule)
		if _, err := n.Check(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
		n.watcher.Close(time.Minute)
		if log := n.log.String(); !strings.Contains(log, "threshold=80") || strings.Contains(log, spendKey) {
			t.Errorf("user %s, org %s:\n%s", r.User, r.Org, log)
		}
	}
}
