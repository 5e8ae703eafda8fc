package test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// Without flags and files, a node serves requests with starter rules that show Weir's features.
func TestServeWithoutFlagsAndFiles(t *testing.T) {
	t.Parallel()
	n := serve(t)
	status, body := post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "sk_123", "method": "GET", "path": "/v1/orders"}`)
	if status != 200 || !strings.Contains(body, `"rule":"quota"`) || !strings.Contains(body, `"remaining":99`) {
		t.Errorf("%d %s", status, body)
	}
	// The starter rules have tiers, a login rule, an IP rule and a blocked key.
	for request, want := range map[string]string{
		`{"key": "sk_free_1", "ip": "203.0.113.1"}`:                                "true quota 100, address 6000",
		`{"key": "sk_prod_1", "ip": "203.0.113.1"}`:                                "true quota 1000",
		`{"key": "sk_free_2", "ip": "203.0.113.1", "attributes": {"tier": "pro"}}`: "true quota 1000",
		`{"ip": "203.0.113.2"}`:                                                    "true quota 100, address 6000",
		`{"key": "sk_free_3", "ip": "203.0.113.1", "method": "POST", "path": "//LOGIN/", "attributes": {"user": "ada"}}`: "true quota 100, login 5, address 6000",
		`{"key": "sk_revoked_1", "ip": "203.0.113.1"}`:                                                                   "false ",
	} {
		_, body := post(t, http.DefaultClient, n.HTTP+"/v1/check", request)
		var d checkapi.CheckResponse
		if err := json.Unmarshal([]byte(body), &d); err != nil {
			t.Fatal(err)
		}
		var limits []string
		for _, l := range d.Limits {
			limits = append(limits, fmt.Sprint(l.Rule, " ", l.Limit))
		}
		if got := fmt.Sprint(d.Allowed, " ", strings.Join(limits, ", ")); got != want {
			t.Errorf("%s: %s, want %s", request, got, want)
		}
	}
	for _, url := range []string{n.HTTP + "/healthz", n.HTTP + "/readyz", n.Admin + "/healthz", n.Admin + "/v1/version", n.Admin + "/v1/rules"} {
		res, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("%s: %s", url, res.Status)
		}
	}
}

// The README's first curl command gets a decision with headers, and a node suggests the same command when it starts.
func TestFirstCurl(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^curl -i 127\.0\.0\.1:8080(/\S+) -d '(.*)'$`).FindSubmatch(readme)
	if command == nil {
		t.Fatal("the README has no curl")
	}
	path, body := string(command[1]), string(command[2])
	addr, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "serve", "--http", addr, "--admin", "127.0.0.1:0")
	cmd.Dir = t.TempDir()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	told := ""
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.Contains(lines.Text(), "Ctrl-C") {
		told += lines.Text() + "\n"
	}
	if want := fmt.Sprintf("  curl -i http://%s%s -d '%s'\n", addr, path, body); !strings.Contains(told, want) || !strings.Contains(told, binary+" check --http") {
		t.Errorf("a node that starts says\n%s", told)
	}
	res, err := http.Post("http://"+addr+path, "application/x-www-form-urlencoded", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 || !strings.HasPrefix(string(text), `{"allowed":true,"rule":"quota","limit":100,"remaining":99,`) ||
		res.Header.Get("X-RateLimit-Remaining") != "99" || !strings.HasPrefix(res.Header.Get("RateLimit"), `"quota";r=99;t=`) {
		t.Errorf("%s %v %s %v", res.Status, res.Header, text, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	for lines.Scan() {
		told += lines.Text() + "\n"
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(told, "msg=drained") {
		t.Errorf("%v\n%s", err, told)
	}
}

// Of 500 concurrent requests to a bucket of 100 that doesn't refill during the test, exactly 100 pass, both through the
// check API and the gateway.
func TestBurst(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer upstream.Close()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules:\n  - {id: burst, limit: 100/day}\n")
	n := serve(t, "--rules", rules, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)
	for name, request := range map[string]func() (*http.Request, error){
		"check API": func() (*http.Request, error) {
			return http.NewRequest("POST", n.HTTP+"/v1/check", strings.NewReader(`{"key": "api"}`))
		},
		"gateway": func() (*http.Request, error) {
			r, err := http.NewRequest("GET", n.Gateway+"/v1/orders", nil)
			if err == nil {
				r.Header.Set("X-API-Key", "gateway")
			}
			return r, err
		},
	} {
		var mu sync.Mutex
		got := map[int]int{}
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for range 500 {
			r, err := request()
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				<-begin
				res, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				mu.Lock()
				got[res.StatusCode]++
				mu.Unlock()
			})
		}
		close(begin)
		wg.Wait()
		if got[200] != 100 || got[429] != 400 {
			t.Errorf("%s: %v", name, got)
		}
	}
	if reached.Load() != 100 {
		t.Errorf("%d requests reached the upstream", reached.Load())
	}
}

// When the rule file is saved, in any way, its rules are applied. If it is invalid, the rules stay, and the error is
// logged with its position.
func TestRulesFollowTheFile(t *testing.T) {
	t.Parallel()
	rules := func(limit int) string { return fmt.Sprintf("rules:\n  - {id: quota, limit: %d/hour}\n", limit) }
	limitOf := func(n *node) string {
		_, body := post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "k", "cost": 0}`)
		_, rest, _ := strings.Cut(body, `"limit":`)
		limit, _, _ := strings.Cut(rest, ",")
		return limit
	}
	version := func(n *node, v float64) {
		t.Helper()
		n.await("rules applied", func(l map[string]any) bool { return l["version"] == v })
	}

	t.Run("saves and renames", func(t *testing.T) {
		file := write(t, filepath.Join(t.TempDir(), "rules.yaml"), rules(10))
		n := serve(t, "--rules", file)
		write(t, file, rules(20))
		version(n, 2)
		if got := limitOf(n); got != "20" {
			t.Errorf("after a save: %s", got)
		}
		next := write(t, file+".new", rules(30))
		if err := os.Rename(next, file); err != nil {
			t.Fatal(err)
		}
		version(n, 3)
		if got := limitOf(n); got != "30" {
			t.Errorf("after a rename: %s", got)
		}
		write(t, file, "rules:\n  - {id: quota, limit: 0/hour}\n")
		n.await("rules rejected: the ones in force stay", func(l map[string]any) bool { return strings.HasSuffix(l["at"].(string), "rules.yaml:2:24") })
		if got := limitOf(n); got != "30" {
			t.Errorf("after a bad save: %s", got)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		n.await("rules can't be read: the ones in force stay", func(map[string]any) bool { return true })
		write(t, file, rules(40))
		version(n, 4)
		if got := limitOf(n); got != "40" {
			t.Errorf("after the file came back: %s", got)
		}
	})

	// A ConfigMap is mounted as a folder of symlinks that lead through ..data, which is replaced as a whole.
	t.Run("a ConfigMap", func(t *testing.T) {
		dir := t.TempDir()
		put := func(stamp, text string) {
			if err := os.Mkdir(filepath.Join(dir, stamp), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, stamp, "rules.yaml"), text)
			if err := os.Symlink(stamp, filepath.Join(dir, "..data_tmp")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
				t.Fatal(err)
			}
		}
		put("..1", rules(10))
		file := filepath.Join(dir, "rules.yaml")
		if err := os.Symlink("..data/rules.yaml", file); err != nil {
			t.Fatal(err)
		}
		n := serve(t, "--rules", file)
		put("..2", rules(20))
		version(n, 2)
		if got := limitOf(n); got != "20" {
			t.Errorf("after the swap: %s", got)
		}
	})
}

// The rule file is saved hundreds of times under load, and half of the saves are invalid. No request fails or sees a
// mixture of versions, and each invalid save is logged with its position.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	doc := func(v int) string {
		return fmt.Sprintf("rules:\n  - {id: a%d, limit: 1000000/second}\n  - {id: b%d, limit: 1000000/second}\n", v, v)
	}
	file := write(t, filepath.Join(t.TempDir(), "rules.yaml"), doc(0))
	n := serve(t, "--rules", file)

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var checks atomic.Int64
	for range 4 {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				status, body := post(t, client, n.HTTP+"/v1/check", `{"key": "k"}`)
				var d checkapi.CheckResponse
				if err := json.Unmarshal([]byte(body), &d); status != 200 || err != nil || len(d.Limits) != 2 {
					t.Errorf("%d %s: %v", status, body, err)
					return
				}
				if d.Limits[0].Rule[1:] != d.Limits[1].Rule[1:] {
					t.Errorf("a mixed rule set: %s", body)
					return
				}
				checks.Add(1)
			}
		})
	}
	good := 1
	for i := 1; i <= 300; i++ {
		if i%2 == 0 {
			write(t, file, doc(i))
			good++
			n.await("rules applied", func(l map[string]any) bool { return l["version"] == float64(good) })
			continue
		}
		// The error moves from line to line, and so must the position in the log.
		line := 2 + i%100
		write(t, file, strings.Repeat("#\n", line-2)+fmt.Sprintf("rules:\n  - {id: c, limit: %d}\n", -i))
		n.await("rules rejected: the ones in force stay", func(l map[string]any) bool {
			return strings.Contains(l["at"].(string), fmt.Sprintf("rules.yaml:%d:", line)) && strings.Contains(l["error"].(string), fmt.Sprint(-i))
		})
	}
	stop()
	wg.Wait()
	t.Logf("%d checks during 300 saves", checks.Load())
}

// A node that is stopped under load responds to every request that it received, even if SIGHUPs arrive in the meantime.
func TestDrainLosesNothing(t *testing.T) {
	t.Parallel()
	for _, sent := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sent.String(), func(t *testing.T) { drains(t, sent) })
	}
}

func drains(t *testing.T, sent syscall.Signal) {
	var inside sync.WaitGroup
	inside.Add(8)
	release := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			inside.Done()
			<-release
		}
		_, _ = io.WriteString(w, "done")
	}))
	defer upstream.Close()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules:\n  - {id: all, limit: 1000000/second}\n")
	n := serve(t, "--rules", rules, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)

	// The requests are POSTs because net/http would retry a GET if its connection breaks.
	send := func(c *http.Client, url, want string) error {
		res, err := c.Post(url, "application/json", strings.NewReader(`{"key": "k"}`))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if b, err := io.ReadAll(res.Body); err != nil || !strings.HasPrefix(string(b), want) || res.StatusCode != 200 {
			return fmt.Errorf("answered %s %q: %w", res.Status, b, err)
		}
		return nil
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := send(http.DefaultClient, n.Gateway+"/slow", "done"); err != nil {
				t.Errorf("a slow request was lost: %v", err)
			}
		})
	}
	var answered [2]atomic.Int64
	for i := range 6 {
		url, want := n.Gateway+"/", "done"
		if i%2 == 0 {
			url, want = n.HTTP+"/v1/check", `{"allowed":true`
		}
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for {
				err := send(client, url, want)
				if errors.Is(err, syscall.ECONNREFUSED) {
					return // the node has exited, and nothing was in flight
				}
				if err != nil {
					t.Errorf("a request was lost: %v", err)
					return
				}
				answered[i%2].Add(1)
			}
		})
	}
	inside.Wait()
	_ = n.cmd.Process.Signal(sent)
	// New requests are sent until the port closes. Then the slow requests may finish.
	for {
		c, err := net.Dial("tcp", strings.TrimPrefix(n.Gateway, "http://"))
		if err != nil {
			break
		}
		c.Close()
	}
	_ = n.cmd.Process.Signal(syscall.SIGHUP)
	close(release)
	wg.Wait()
	if err := <-n.exited; err != nil {
		t.Errorf("the node ended with %v", err)
	}
	if answered[0].Load() == 0 || answered[1].Load() == 0 {
		t.Error("there was no load")
	}
}

// Invalid settings are rejected at startup, with an error that says what to do.
func TestServeRefusesBadSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := write(t, filepath.Join(dir, "bad.yaml"), "rules:\n  - {id: a, limt: 5/minute}\n")
	settings := write(t, filepath.Join(dir, "weir.yaml"), "htp: 127.0.0.1:0\n")
	nested := write(t, filepath.Join(dir, "nested.yaml"), "identity:\n  api_key: {heder: X-Key}\n")
	typed := write(t, filepath.Join(dir, "typed.yaml"), "http: 127.0.0.1:0\nrefusal: {status: many}\nheaders: [ietf]\n")
	list := write(t, filepath.Join(dir, "list.yaml"), "- http: 127.0.0.1:0\n")
	mapped := write(t, filepath.Join(dir, "mapped.yaml"), "# a comment\nhttp: {host: 127.0.0.1}\n")
	broken := write(t, filepath.Join(dir, "broken.yaml"), "# a comment\nhttp: [127.0.0.1\n")
	for _, c := range []struct{ args, want string }{
		{"--rules " + bad, `did you mean "limit"?`},
		{"--rules " + filepath.Join(dir, "none.yaml"), "--rules: open " + filepath.Join(dir, "none.yaml") + ": no such file"},
		{"--upstream http://127.0.0.1:1", "--gateway and --upstream go together"},
		{"--gateway 127.0.0.1:0 --upstream nonsense", "--upstream: must be a URL"},
		{"--admin 0.0.0.0:0", "isn't a loopback address, so it needs --admin-token or --admin-tokens"},
		{"--admin-tokens none.txt", "--admin-tokens: open none.txt"},
		{"--rules rules.yaml --seed-rules rules.yaml", "don't go together"},
		{"--tls-cert x.pem", "--tls-cert and --tls-key go together"},
		{"--memory-cap lots", "must be a size with its unit, such as 256MiB"},
		{"--memory-cap 256", "must be a size with its unit, such as 256MiB or 1GiB, got \"256\": did you mean 256MiB?"},
		{"--memory-cap 268435456", "did you mean 268435456B?"},
		{"--drain-timeout -1s", "--drain-timeout: must be at least 0s, such as 30s, got -1s"},
		{"--trusted-proxies 10.0.0.0/99", "--trusted-proxies: must be CIDRs"},
		{"--store nonsense", "--store: must be memory, or a URL such as redis://127.0.0.1:6379"},
		{"--store reddis://127.0.0.1", "--store: store URL: must begin with redis://, rediss://"},
		{"--store redis://127.0.0.1:99999", "--store: store URL: host 1: the port must be a number from 1 to 65535 (example: redis://user:password@host:6379/0)"},
		{"--store rediss://127.0.0.1?ca=none.pem", "--store: store URL: ca: open none.pem"},
		{"--store redis://127.0.0.1 --store-timeout -1s", "--store-timeout: must be more than 0"},
		{"--drain-notice -1s", "--drain-notice: must be at least 0s"},
		{"--store redis://127.0.0.1 --emergency-limit 10", "--emergency-limit: must be a count and a window"},
		{"--store redis://127.0.0.1 --emergency-limit 0/s", "--emergency-limit: limit: must be at least 1"},
		{"--emergency-limit 10/s", "--emergency-limit: is for a --store that can be lost"},
		{"--decision-log " + dir, "--decision-log: open " + dir + ": is a directory"},
		{"--decision-log " + filepath.Join(dir, "none", "d.log"), "--decision-log: open " + filepath.Join(dir, "none", "d.log") + ": no such file or directory"},
		{"--decision-log stderr --decision-log-sample 2", "--decision-log-sample: must be from 0 to 1, such as 0.01 for one admitted request in a hundred, got 2"},
		{"--decision-log-sample 0.1", "--decision-log-sample: needs --decision-log, which says where to: stderr, or a file"},
		{"--log-format xml", "--log-format: must be text or json"},
		{"--config " + settings, `weir.yaml:1:1: htp: there is no setting "htp"`},
		{"--config " + settings, `did you mean "http"?`},
		{"--config " + nested, `nested.yaml:2:13: identity.api_key.heder: there is no setting "heder" in identity.api_key`},
		{"--config " + nested, `did you mean "header"?`},
		{"--config " + typed, `typed.yaml:2:19: refusal.status: must be a whole number, got "many"`},
		{"--config " + typed, "typed.yaml:3:10: headers: must be a map of dialects, expose, names, got a list"},
		{"--config " + list, "list.yaml:1:1: must be settings, a line each, such as http: 127.0.0.1:8080"},
		{"--config " + mapped, "mapped.yaml:2:7: http: must be a value, got a map"},
		{"--config " + broken, `broken.yaml:2:7: this "[" is never closed`},
		{"--config " + filepath.Join(dir, "none.yaml"), "no such file"},
		{"--http 127.0.0.1:notaport", "--http:"},
		{"--nonsense", "unknown flag"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		cmd := exec.CommandContext(ctx, binary, append([]string{"serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, strings.Fields(c.args)...)...)
		cmd.Dir = t.TempDir() // this folder has no weir.yaml
		out, err := cmd.CombinedOutput()
		cancel()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v\n%s\nwant %s", c.args, err, out, c.want)
		}
	}
}
