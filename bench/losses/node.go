package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// node is a weir that serves.
type node struct {
	url string
	cmd *exec.Cmd
}

// startNodes starts as many as the loads need, and waits until they have their store.
func startNodes(ctx context.Context, weir, dir, redis string) (all []*node, err error) {
	for i := range nodes {
		n := &node{}
		n.cmd = exec.CommandContext(ctx, weir, "serve", "--http", "127.0.0.1:0", "--grpc", "", "--admin", "",
			"--store", "redis://"+redis, "--store-timeout", "10s", // what is late must not be let pass
			"--rules", filepath.Join(dir, "rules.yaml"), "--data", filepath.Join(dir, fmt.Sprint("node", i)), "--log-format", "json")
		stderr, err := n.cmd.StderrPipe()
		if err != nil {
			return all, err
		}
		if err := n.cmd.Start(); err != nil {
			return all, err
		}
		all = append(all, n)
		lines := bufio.NewScanner(stderr)
		for n.url == "" && lines.Scan() {
			var line struct{ Msg, HTTP string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
				n.url = line.HTTP
			}
		}
		if n.url == "" {
			return all, errors.New("a node ended before it served")
		}
		go func() { _, _ = io.Copy(io.Discard, stderr) }()
	}
	ready, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return all, redistest.Until(ready, func(ctx context.Context) error {
		for _, n := range all {
			if err := n.reached(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// reached: the node has its store.
func (n *node) reached(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.url+"/readyz", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var r struct{ Store struct{ Status string } }
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil {
		return err
	}
	if r.Store.Status != "up" {
		return fmt.Errorf("a node's store is %q", r.Store.Status)
	}
	return nil
}

// stop drains a node, and returns the processor time that it used.
func (n *node) stop() time.Duration {
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	_ = n.cmd.Wait() // it may have ended by itself
	return n.cmd.ProcessState.UserTime() + n.cmd.ProcessState.SystemTime()
}

// ask has a node decide requests by the rule of an arm, and notes what it answered.
func (n *node) ask(ctx context.Context, client *http.Client, a arm, batch []*request, begun time.Time) error {
	var body checkapi.BatchRequest
	for _, r := range batch {
		body.Checks = append(body.Checks, checkapi.CheckRequest{Key: fmt.Sprint("k", r.key), Path: "/" + a.String(), Cost: &r.cost})
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"/v1/checks", bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answers checkapi.BatchResponse
	if err := json.NewDecoder(res.Body).Decode(&answers); err != nil || len(answers.Results) != len(batch) {
		return fmt.Errorf("%s: %d answers to %d checks: %w", res.Status, len(answers.Results), len(batch), err)
	}
	at := time.Since(begun)
	for i, r := range answers.Results {
		if r.CheckResponse == nil || r.Degraded || r.Rule != a.String() {
			said, _ := json.Marshal(r) // it was JSON
			return fmt.Errorf("not decided by the store, by the rule %s: %s", a, said)
		}
		batch[i].answers[a] = answer{at: at, admitted: r.Allowed}
	}
	return nil
}

func writeRules(dir string, l *load) error {
	text := "rules:\n"
	for a := range arms {
		text += fmt.Sprintf("  - {id: %s, match: {endpoint: /%s}, limit: %d/minute, strict: %v}\n", a, a, l.perMinute, a == strict)
	}
	return os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(text), 0o600)
}
