package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// TestTheHourAgreesWithAnExactCount compares the last hour over three nodes with exact counts, by rule and by client. A
// client that only one node has seen can be blocked on another node by its fingerprint, because nodes with a token tell
// each other keys.
func TestTheHourAgreesWithAnExactCount(t *testing.T) {
	t.Parallel()
	redis := redistest.New(t, redistest.Options{})
	var nodes []*node
	for range 3 {
		nodes = append(nodes, serve(t, "--store", "redis://"+redis.Addr, "--admin-token", "correct-horse-battery", "--seed-rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"),
			"rules: [{id: orders, limit: 20/hour}, {id: address, by: [ip], limit: 100000/hour}]")))
	}
	const token = "Authorization: Bearer correct-horse-battery"
	until(t, func() error {
		for _, n := range nodes {
			if status, text := admin(t, n, "GET", "/v1/version", "", token); status != 200 || !strings.Contains(text, `"nodes":3`) {
				return fmt.Errorf("%d: %s", status, text)
			}
		}
		return nil
	})
	sent, refused := map[string]uint64{}, uint64(0)
	key := func(i int) string { return fmt.Sprintf("sk%05d_SECRET_of_a_client_of_ours", i) }
	for i := range 300 {
		k := key(i % 7 * (i % 3)) // some keys are frequent, and all reach every node
		status, text := post(t, http.DefaultClient, nodes[i/2%3].HTTP+"/v1/check", fmt.Sprintf(`{"key": %q, "path": "/v1/orders", "ip": "203.0.113.7"}`, k))
		switch status {
		case http.StatusTooManyRequests:
			refused++
		case http.StatusOK:
		default:
			t.Fatalf("%d: %s", status, text)
		}
		sent[k]++
	}
	if status, text := post(t, http.DefaultClient, nodes[2].HTTP+"/v1/check", fmt.Sprintf(`{"key": %q, "ip": "203.0.113.7"}`, key(99))); status != 200 {
		t.Fatalf("%d: %s", status, text)
	}
	sent[key(99)]++
	ask := func(n *node, method, path, body string, into any) {
		t.Helper()
		status, text := admin(t, n, method, path, body, token)
		if status != 200 || json.Unmarshal([]byte(text), into) != nil {
			t.Fatalf("%s %s: %d: %s", method, path, status, text)
		}
		if strings.Contains(text, "SECRET") {
			t.Errorf("%s %s shows a key: %s", method, path, text)
		}
	}
	until(t, func() error {
		var got top.HourOfRule
		ask(nodes[0], "GET", "/v1/rules/usage/orders?k=100", "", &got)
		if len(got.Nodes) != 3 || got.Requests != 301 || got.Refused != refused || got.Coverage != 1 || len(got.Clients) != len(sent) || got.Keys != len(sent) {
			return fmt.Errorf("%d requests, %d of %d refused, %d clients, of %v, without %v: %s", got.Requests, got.Refused, refused, len(got.Clients), got.Nodes, got.NodesMissing, got.Partial)
		}
		for _, c := range got.Clients {
			if want := sent[c.Client[:7]+key(0)[7:]]; c.Requests != want {
				return fmt.Errorf("%s has sent %d, and is said to have sent %d", c.Client, want, c.Requests)
			}
		}
		return nil
	})
	var rules top.HourOfRules
	until(t, func() error {
		ask(nodes[1], "GET", "/v1/rules/usage", "", &rules)
		if len(rules.Nodes) != 3 || len(rules.Rules) != 2 || rules.Rules[0].Requests != 301 || rules.Rules[0].Keys != 1 || rules.Rules[1].Above100 == 0 || rules.Rules[1].Above100 > len(sent) {
			return fmt.Errorf("%+v of %v", rules.Rules, rules.Nodes)
		}
		return nil
	})
	would := uint64(0)
	for _, n := range sent {
		would += max(n, 5) - 5
	}
	until(t, func() error {
		var got top.WhatIf
		ask(nodes[2], "POST", "/v1/rules/whatif", `{"rule": "orders", "limit": "5/day"}`, &got)
		if got.WouldRefuse != would || got.WasRefused != refused || len(got.Nodes) != 3 {
			return fmt.Errorf("%d would be refused, want %d: %+v", got.WouldRefuse, would, got)
		}
		return nil
	})
	// Only node 2 has seen this client.
	var page top.HourOfClient
	ask(nodes[0], "POST", "/v1/clients", fmt.Sprintf(`{"key": %q}`, key(99)), &page)
	client := `{"client": "` + page.Fingerprint + `"}`
	var changed struct{ Diff string }
	ask(nodes[0], "POST", "/v1/denylist/entries?message=leaked", client, &changed)
	if !strings.Contains(changed.Diff, "sk00099…ours") && !strings.Contains(changed.Diff, "sk00099") {
		t.Errorf("the difference is %s", changed.Diff)
	}
	until(t, func() error {
		status, _ := post(t, http.DefaultClient, nodes[1].HTTP+"/v1/check", fmt.Sprintf(`{"key": %q}`, key(99)))
		if status != http.StatusForbidden {
			return fmt.Errorf("%d for one that is blocked", status)
		}
		return nil
	})
	redis.Kill()
	until(t, func() error {
		ask(nodes[1], "GET", "/v1/rules/usage", "", &rules)
		if rules.Partial == "" || len(rules.Nodes) != 1 {
			return errors.New("the response isn't partial")
		}
		return nil
	})
}
