package test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
)

// The decision log has refusals, and only the file's owner can read it. SIGHUP makes the node reopen the file, and the
// node writes waiting lines before it exits.
func TestDecisionLogOfANode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "decisions.log")
	rules := write(t, filepath.Join(dir, "rules.yaml"), "rules:\n  - {id: orders, match: {endpoint: \"POST /orders/{id}\"}, limit: 1/hour}\n")
	n := serve(t, "--rules", rules, "--decision-log", path)
	check := func() {
		post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "sk_prod_0123456789", "method": "POST", "path": "/orders/17", "ip": "203.0.113.7"}`)
	}
	line := regexp.MustCompile(`"outcome":"refused","reason":"limited","rule":"orders","rules_version":1,"policy":"1/hour","key":"sk_p…89",` +
		`"fingerprint":"[0-9a-f]{8}","ip":"203.0.113.7","method":"POST","path":"/orders/{id}","retry_after_ms":`)
	lines := func(name string) int {
		text, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return len(line.FindAll(text, -1))
	}
	check() // this one is admitted
	check()
	until(t, func() error {
		if lines(path) != 1 {
			return errors.New("no line yet")
		}
		return nil
	})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	until(t, func() error {
		_, err := os.Stat(path)
		return err
	})
	check()
	n.stop()
	<-n.exited
	if old, now := lines(path+".1"), lines(path); old != 1 || now != 1 {
		t.Errorf("%d lines before SIGHUP, and %d after", old, now)
	}
}
