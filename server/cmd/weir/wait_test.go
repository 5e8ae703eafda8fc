package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

const away = `{"error": {"code": "RULES_UNAVAILABLE", "message": "the rule store can't be reached"}}`

// With --wait, a change waits for the rule store, and is applied when the store is back.
func TestChangesWaitForTheRuleStore(t *testing.T) {
	var asked atomic.Int32
	s := newShell(t, answers{"PUT /v1/rules/tier/pro": func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) < 3 {
			text(503, "", away)(w, r)
			return
		}
		text(200, "43", applied)(w, r)
	}})
	args := []string{"rules", "tier", "pro", "--limit", "500"}
	s.run(args...).expect(t, exitUnavailable, "", "the rule store can't be reached; to keep trying, repeat it with --wait 5m")
	d := s.run(append(args, "--wait", "10m")...)
	d.expect(t, 0, "+b", "trying again for ")
	d.expect(t, 0, "+b", "version 43 is in force")
	if asked.Load() != 3 {
		t.Errorf("asked %d times", asked.Load())
	}
	// A command that only reads has no --wait, so the message doesn't offer it.
	s = newShell(t, answers{"GET /v1/rules/versions": text(503, "", away)})
	if d := s.run("rules", "history"); d.code != exitUnavailable || strings.Contains(d.stderr, "--wait") {
		t.Errorf("exit %d, %s", d.code, d.stderr)
	}
	// The CLI doesn't retry a change that the node refuses.
	s = newShell(t, answers{"PUT /v1/rules/tier/pro": text(404, "", `{"error": {"code": "NOT_FOUND", "message": "there is no tier"}}`)})
	if d := s.run(append(args, "--wait", "10m")...); d.code != exitRefused || len(d.asked) != 1 {
		t.Errorf("exit %d, asked %v", d.code, d.lines())
	}
}

// Ctrl-C ends the wait.
func TestAWaitIsInterrupted(t *testing.T) {
	t.Setenv("WEIR_ADMIN_TOKEN", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan struct{})
	var asked atomic.Int32
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 2 {
			close(told) // the command has waited once
		}
		text(503, "", away)(w, r)
	}))
	t.Cleanup(node.Close)
	go func() {
		<-told
		cancel()
	}()
	var stderr bytes.Buffer
	cmd := root()
	cmd.SetOut(&stderr)
	cmd.SetErr(&stderr)
	cmd.SetArgs([]string{"rules", "tier", "pro", "--limit", "500", "--wait", "24h", "--admin", node.URL})
	err := execute(ctx, cmd)
	var e *exit
	if !errors.As(err, &e) || e.code != exitUnavailable || strings.Contains(err.Error(), "weir serve starts one") || !strings.Contains(err.Error(), "stopped while waiting") {
		t.Errorf("it says %v\n%s", err, stderr.String())
	}
}
