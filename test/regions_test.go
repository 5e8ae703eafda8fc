package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// site is a region with one node, its own Redis, and a proxy for other regions' requests, which can be slow or cut off.
type site struct {
	*node
	way *redistest.Proxy
}

// regions starts regions with one node each and the same rules. The first region is the home.
func regions(t *testing.T, rules string, names ...string) map[string]*site {
	t.Helper()
	return regionsWith(t, nil, rules, names...)
}

// regionsWith does the same with additional flags.
func regionsWith(t *testing.T, flags []string, rules string, names ...string) map[string]*site {
	t.Helper()
	dir := t.TempDir()
	secret := write(t, filepath.Join(dir, "secret"), strings.Repeat("0123456789abcdef", 4)+"\n")
	file := write(t, filepath.Join(dir, "rules.yaml"), rules)
	all := map[string]*site{}
	for _, name := range names {
		all[name] = &site{way: redistest.NewProxy(t, "127.0.0.1:1")} // until the node listens
	}
	for _, name := range names {
		peers := ""
		for _, other := range names {
			if other != name {
				peers += fmt.Sprintf("    %s: [%s]\n", other, all[other].way.Addr)
			}
		}
		redis := redistest.New(t, redistest.Options{})
		settings := fmt.Sprintf("regions:\n  name: %s\n  home: %s\n  listen: 127.0.0.1:0\n  secret_file: %s\n  peers:\n%s", name, names[0], secret, peers)
		config := write(t, filepath.Join(dir, name+".yaml"), settings)
		n := start(t, append([]string{"--config", config, "--store", "redis://" + redis.Addr, "--seed-rules", file, "--region-timeout", "10s"}, flags...)...)
		all[name].node = n.serves()
		line := n.await("serving", func(map[string]any) bool { return true })
		if err := all[name].way.Redirect(line["region_listen"].(string)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, func() error {
		for name, s := range all {
			for other, up := range s.peersOf(t) {
				if !up {
					return fmt.Errorf("%s doesn't hear of %s", name, other)
				}
			}
		}
		return nil
	})
	return all
}

// peersOf returns, for each other region, whether it is up and has the same rules.
func (s *site) peersOf(t *testing.T) map[string]bool {
	t.Helper()
	status, text := admin(t, s.node, "GET", "/v1/regions", "")
	var got struct {
		Peers []struct {
			Region string
			Up     bool
			Same   bool `json:"same_rules"`
		}
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 {
		t.Fatalf("%d: %s", status, text)
	}
	up := map[string]bool{}
	for _, p := range got.Peers {
		up[p.Region] = p.Up && p.Same
	}
	return up
}

// check sends a check for a user to a region. It returns the status and the receipt, and whether the response was
// degraded.
func (s *site) check(t *testing.T, user string, more string) (status int, degraded bool, receipt string) {
	t.Helper()
	return s.checkOf(t, "user", user, more)
}

func (s *site) checkOf(t *testing.T, attribute, value, more string) (status int, degraded bool, receipt string) {
	t.Helper()
	status, text := post(t, http.DefaultClient, s.HTTP+"/v1/check", fmt.Sprintf(`{"attributes": {%q: %q}, "ip": "203.0.113.7"%s}`, attribute, value, more))
	var got struct {
		Degraded bool
		Receipt  string
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%d: %s", status, text)
	}
	return status, got.Degraded, got.Receipt
}

const globalRules = `
rules:
  - {id: login, by: [user], missing: skip, scope: global, algorithm: fixed_window, limit: 30/day}
  - {id: address, by: [ip], limit: 1000000/day, algorithm: fixed_window}
`

// TestOneLimitOverRegions checks that three regions, each with its own Redis and 150 ms apart, together admit as many
// requests as one region would.
func TestOneLimitOverRegions(t *testing.T) {
	t.Parallel()
	all := regions(t, globalRules, "us", "eu", "ap")
	for _, s := range all {
		if err := s.way.Delay(150 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	var allowed atomic.Int64
	var wait sync.WaitGroup
	for _, s := range all {
		for range 30 {
			wait.Go(func() {
				switch status, degraded, _ := s.check(t, "ada", ""); {
				case degraded:
					t.Error("degraded")
				case status == http.StatusOK:
					allowed.Add(1)
				case status != http.StatusTooManyRequests:
					t.Errorf("status %d", status)
				}
			})
		}
	}
	wait.Wait()
	if n := allowed.Load(); n != 30 {
		t.Errorf("%d were admitted of 30", n)
	}
	// Tokens that are given back in one region can be used in another.
	status, _, receipt := all["eu"].check(t, "bob", `, "cost": 30, "receipt": true`)
	if status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	if status, _, _ := all["ap"].check(t, "bob", ""); status != http.StatusTooManyRequests {
		t.Errorf("status %d of what eu has used up", status)
	}
	if status, text := post(t, http.DefaultClient, all["eu"].HTTP+"/v1/refund", fmt.Sprintf(`{"receipt": %q}`, receipt)); status != http.StatusOK {
		t.Errorf("refund: %d %s", status, text)
	}
	until(t, func() error { // for a moment, ap still trusts the refusal
		if status, _, _ := all["ap"].check(t, "bob", `, "cost": 30`); status != http.StatusOK {
			return fmt.Errorf("status %d of what came back", status)
		}
		return nil
	})
	if _, text := admin(t, all["eu"].node, "GET", "/metrics", ""); !strings.Contains(text, `weir_region_up{peer="us"} 1`) || !strings.Contains(text, `region="eu"`) {
		t.Errorf("no metrics of regions")
	}
	if _, text := admin(t, all["eu"].node, "POST", "/v1/explain", `{"attributes": {"user": "ada"}}`); !strings.Contains(text, "borrows more of its home") || !strings.Contains(text, "counted in eu alone") {
		t.Errorf("explain doesn't say which rule is global, and which isn't: %s", text)
	}
}

// TestHomeThatIsCutOff checks that without the home region, on_partition decides and nothing more is admitted.
// Afterward the regions recover by themselves.
func TestHomeThatIsCutOff(t *testing.T) {
	t.Parallel()
	all := regions(t, globalRules+`
  - {id: shop, by: ["attr:shop"], missing: skip, scope: global, on_partition: local, algorithm: fixed_window, limit: 10/day}
`, "us", "eu")
	us, eu := all["us"], all["eu"]
	shop := func(s *site, name string) (allowed int, degraded bool) {
		for range 12 {
			status, apart, _ := s.checkOf(t, "shop", name, "")
			if status == http.StatusOK {
				allowed++
			}
			degraded = degraded || apart
		}
		return allowed, degraded
	}
	for name, fault := range map[string]func() error{
		"one way":   us.way.DropReplies,
		"other way": us.way.DropCommands,
		"down":      func() error { us.way.Down(); return nil },
	} {
		if err := fault(); err != nil {
			t.Fatal(err)
		}
		until(t, func() error {
			if up := eu.peersOf(t)["us"]; up {
				return fmt.Errorf("%s: us is still heard", name)
			}
			return nil
		})
		user := "user " + name
		if status, degraded, _ := eu.check(t, user, ""); status != http.StatusServiceUnavailable || !degraded {
			t.Errorf("%s: %d, degraded %v, of a rule that refuses", name, status, degraded)
		}
		until(t, func() error {
			if _, text := admin(t, eu.node, "GET", "/v1/now", ""); !strings.Contains(text, "region_lost") {
				return fmt.Errorf("%s: no trouble is reported", name)
			}
			return nil
		})
		for _, s := range all { // each region has the whole limit
			if n, degraded := shop(s, name); n != 10 || degraded != (s == eu) {
				t.Errorf("%s: %d were admitted of 10, degraded %v", name, n, degraded)
			}
		}
		us.way.Heal()
		if name == "down" {
			if err := us.way.Up(); err != nil {
				t.Fatal(err)
			}
		}
		until(t, func() error {
			if status, _, _ := eu.check(t, user+" again", ""); status != http.StatusOK && status != http.StatusTooManyRequests {
				return fmt.Errorf("%s: %d after it was mended", name, status)
			}
			return nil
		})
		admitted := 0
		for i := range 40 {
			if status, _, _ := all[[]string{"us", "eu"}[i%2]].check(t, user, ""); status == http.StatusOK {
				admitted++
			}
		}
		if admitted > 30 || name == "down" && admitted != 30 { // if the connection loses replies, some tokens were taken
			t.Errorf("%s: %d were admitted of 30", name, admitted)
		}
	}
}

// TestWaitingRequestsLeaveRoom checks that if the home region doesn't respond, requests that need more tokens than
// their own region has can't take all of the node's places for requests in flight.
func TestWaitingRequestsLeaveRoom(t *testing.T) {
	t.Parallel()
	all := regionsWith(t, []string{"--max-in-flight", "16"}, `
rules:
  - {id: quota, by: [user], scope: global, algorithm: fixed_window, limit: 1000/day}
`, "us", "eu")
	us, eu := all["us"], all["eu"]
	if err := us.way.DropReplies(); err != nil {
		t.Fatal(err)
	}
	const flood, waiting = 24, 12
	var answered atomic.Int64
	var clients sync.WaitGroup
	for range flood {
		clients.Go(func() {
			if status, _, _ := eu.check(t, "busy", `, "cost": 60`); status != http.StatusTooManyRequests && status != http.StatusOK {
				t.Errorf("%d for one that asks for more than its region has", status)
			}
			answered.Add(1)
		})
	}
	until(t, func() error {
		if n := answered.Load(); n < flood-waiting {
			return fmt.Errorf("%d of %d are answered", n, flood)
		}
		return nil
	})
	if status, _, _ := eu.check(t, "other", ""); status != http.StatusOK || answered.Load() == flood {
		t.Errorf("%d for another client, while %d of %d are answered", status, answered.Load(), flood)
	}
	us.way.Heal()
	clients.Wait()
}
