// Command memory floods a node with keys and addresses that never come again, over HTTP, and
// prints how much memory the whole process takes. It fails if that is more than the cap allows: see
// docs/operations.md. It reads /proc, so it needs Linux.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const address = "127.0.0.1:18970"

const rules = `rules:
  - {id: quota, limit: 100/hour}
  - {id: address, by: [ip], limit: 10000/hour}
`

// most is what a node takes beyond its cap, in MiB: itself and garbage, and the memory of the last hour.
const most = 64 + 64

func main() {
	weir := flag.String("weir", "bin/weir", "the binary")
	limit := flag.Int("cap", 128, "the node's --memory-cap, in MiB")
	keys := flag.Int("keys", 5_000_000, "how many keys")
	singles := flag.Int("singles", 100_000, "how many of them come one by one, which makes the most garbage")
	flag.Parse()
	if err := run(*weir, *limit, *keys, *singles); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(weir string, limit, keys, singles int) error {
	dir, err := os.MkdirTemp("", "weir-memory")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(dir+"/rules.yaml", []byte(rules), 0o600); err != nil {
		return err
	}
	node := exec.Command(weir, "serve", "--http", address, "--grpc", "", "--admin", "127.0.0.1:0", "--rules", dir+"/rules.yaml", "--data", dir,
		"--memory-cap", fmt.Sprint(limit, "MiB"), "--log-level", "error")
	node.Stderr = os.Stderr
	if err := node.Start(); err != nil {
		return err
	}
	defer node.Wait() //nolint:errcheck // it was told to end
	defer node.Process.Signal(os.Interrupt)
	if err := ready(); err != nil {
		return err
	}
	idle, err := rss(node.Process.Pid)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := flood(0, keys-singles, 1000, 4); err != nil {
		return err
	}
	if err := flood(keys-singles, keys, 1, 64); err != nil {
		return err
	}
	peak, err := rss(node.Process.Pid)
	if err != nil {
		return err
	}
	fmt.Printf("cap %d MiB, %d keys in %.0f s: %d MiB resident at first, %d MiB at most, %+d MiB beyond the cap (at most %d)\n",
		limit, keys, time.Since(begun).Seconds(), idle, peak, peak-limit, most)
	if peak-limit > most {
		return errors.New("the flood took more memory than the node may")
	}
	return nil
}

func ready() error {
	for range 100 {
		if res, err := http.Get("http://" + address + "/readyz"); err == nil {
			res.Body.Close()
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("the node doesn't begin to serve")
}

// flood sends keys from one number to another, so many in a call and so many calls at a time.
func flood(from, to, batch, workers int) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	defer client.CloseIdleConnections()
	var next atomic.Int64
	next.Store(int64(from))
	group, ctx := errgroup.WithContext(context.Background())
	for range workers {
		group.Go(func() error {
			var body bytes.Buffer
			for {
				first := int(next.Add(int64(batch))) - batch
				if first >= to || ctx.Err() != nil {
					return nil
				}
				body.Reset()
				path, comma := "/v1/checks", `{"checks": [`
				if batch == 1 {
					path, comma = "/v1/check", ""
				}
				for k := first; k < first+batch; k++ {
					fmt.Fprintf(&body, `%s{"key": "sk_%d", "path": "/", "ip": "10.%d.%d.%d"}`, comma, k, k>>16&7, k>>8&255, k&255)
					comma = ","
				}
				if batch > 1 {
					body.WriteString("]}")
				}
				res, err := client.Post("http://"+address+path, "application/json", &body)
				if err != nil {
					return err
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode >= 400 && res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusServiceUnavailable {
					return fmt.Errorf("%s: %s", path, res.Status)
				}
			}
		})
	}
	return group.Wait()
}

// rss is the most memory that a process has had so far, in MiB.
func rss(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(after + " -")[0])
	return kib >> 10, err
}
