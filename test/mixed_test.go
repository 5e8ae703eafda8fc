package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// mixedRules has a rule for each feature. All rules refuse while the store is lost, so every admitted request was
// counted.
const mixedRules = `
rules:
  - {id: leased, match: {endpoint: /leased}, algorithm: fixed_window, limit: 1000000/365d, on_store_failure: refuse}
  - {id: scarce, match: {endpoint: /scarce}, algorithm: fixed_window, limit: 300/365d, on_store_failure: refuse}
  - {id: strict, match: {endpoint: /strict}, algorithm: fixed_window, limit: 1000000/365d, strict: true, on_store_failure: refuse}
  - {id: tight, match: {endpoint: /tight}, algorithm: fixed_window, limit: 100/365d, strict: true, on_store_failure: refuse}
  - {id: slots, match: {endpoint: /slots}, algorithm: concurrency, limit: 3, slot_ttl: 50s, on_store_failure: refuse}
  - {id: tokens, match: {endpoint: /tokens}, algorithm: fixed_window, amount: tokens, limit: 1000000/365d, on_store_failure: refuse}
  - {id: refunds, match: {endpoint: /refunds}, algorithm: fixed_window, limit: 1000000/365d, strict: true, on_store_failure: refuse}
  - {id: abused, match: {endpoint: /abused}, algorithm: fixed_window, limit: 1/365d, on_store_failure: refuse, abuse: {refusals: 20/minute, cooldown: 1h}}
`

// mixed runs a load that uses all features at once on several nodes, and records what an exact limiter would count.
type mixed struct {
	t      *testing.T
	client *http.Client
	number atomic.Int64

	mu    sync.RWMutex // guards nodes
	nodes []*node      // nodes that are alive

	// These are counted by clients.
	leased, scarce, strict, tight    atomic.Int64 // admitted
	tokens                           atomic.Int64 // settled
	refunds                          atomic.Int64 // admitted and not refunded
	held                             atomic.Int64 // slots
	unanswered, uncertain, abandoned atomic.Int64
}

func (m *mixed) pick() *node {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.nodes[rand.IntN(len(m.nodes))]
}

// call sends a request to any node. The status is 0 if there is no response.
func (m *mixed) call(path, body string) (status int, text []byte) {
	res, err := m.client.Post(m.pick().HTTP+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	text, err = io.ReadAll(res.Body)
	if err != nil {
		return 0, nil
	}
	return res.StatusCode, text
}

// surely sends a request until a node responds. It gives up, and reports false, before the request's id expires.
func (m *mixed) surely(path, body string) (status int, text []byte, ok bool) {
	for begun := time.Now(); time.Since(begun) < 45*time.Second; time.Sleep(20 * time.Millisecond) {
		if status, text = m.call(path, body); status != 0 && status != http.StatusServiceUnavailable {
			return status, text, true
		}
		m.unanswered.Add(1)
	}
	m.abandoned.Add(1)
	return 0, nil, false
}

// take sends a check with its own id, so that it is charged only once, however often it is sent.
func (m *mixed) take(path, more string) (receipt string, admitted bool) {
	status, text, ok := m.surely("/v1/check", fmt.Sprintf(`{"key": "k", "path": %q, "id": "%d"%s}`, path, m.number.Add(1), more))
	if !ok {
		return "", false
	}
	var a checkapi.CheckResponse
	if err := json.Unmarshal(text, &a); err != nil || a.Degraded || status != 200 && status != 429 {
		m.t.Errorf("%s: %d %s", path, status, text)
	}
	return a.Receipt, a.Allowed
}

// finish settles, releases or refunds a request.
func (m *mixed) finish(how, receipt, more string, also int) {
	if status, text, ok := m.surely("/v1/"+how, fmt.Sprintf(`{"receipt": %q%s}`, receipt, more)); ok && status != 200 && status != also {
		m.t.Errorf("%s: %d %s", how, status, text)
	}
}

// step runs one client's request for one random feature from start to end.
func (m *mixed) step() {
	switch rand.IntN(7) {
	case 0:
		m.once("/leased", &m.leased)
	case 1:
		m.once("/scarce", &m.scarce)
	case 2:
		if _, admitted := m.take("/strict", ""); admitted {
			m.strict.Add(1)
		}
	case 3:
		if _, admitted := m.take("/tight", ""); admitted {
			m.tight.Add(1)
		}
	case 4:
		receipt, admitted := m.take("/slots", "")
		if !admitted {
			return
		}
		if n := m.held.Add(1); n > 3 {
			m.t.Errorf("%d clients hold one of 3 slots", n)
		}
		m.finish("renew", receipt, "", 0)
		m.held.Add(-1)
		m.finish("release", receipt, "", 0)
	case 5:
		receipt, admitted := m.take("/tokens", `, "amounts": {"tokens": 10}, "reserve": "1h"`)
		if !admitted {
			m.t.Error("there are no tokens")
			return
		}
		used := rand.Int64N(20)
		m.finish("settle", receipt, fmt.Sprintf(`, "amounts": {"tokens": %d}`, used), 0)
		m.tokens.Add(used)
	case 6:
		receipt, admitted := m.take("/refunds", `, "receipt": true`)
		if !admitted {
			return
		}
		if m.refunds.Add(1)%2 == 0 {
			m.finish("refund", receipt, "", http.StatusConflict) // an earlier attempt may already have refunded it
			m.refunds.Add(-1)
		}
	}
}

// once sends a check without an id, so that nodes can decide it from leases.
func (m *mixed) once(path string, admitted *atomic.Int64) {
	switch status, text := m.call("/v1/check", fmt.Sprintf(`{"key": "k", "path": %q}`, path)); status {
	case 200:
		admitted.Add(1)
	case 0, http.StatusServiceUnavailable:
		m.uncertain.Add(1)
	case 429:
	default:
		m.t.Errorf("%s: %d %s", path, status, text)
	}
}

// passes waits until n more requests of each kind were admitted.
func (m *mixed) passes(n int64) {
	m.t.Helper()
	was := []int64{m.leased.Load(), m.strict.Load(), m.tokens.Load(), m.refunds.Load()}
	until(m.t, func() error {
		for i, now := range []int64{m.leased.Load(), m.strict.Load(), m.tokens.Load(), m.refunds.Load()} {
			if now < was[i]+n {
				return fmt.Errorf("%d became %d", was, now)
			}
		}
		return nil
	})
}

// used returns how much the store has counted for a rule.
func (m *mixed) used(path string, limit int64) (used int64) {
	m.t.Helper()
	until(m.t, func() error {
		a := check(m.t, m.pick(), fmt.Sprintf(`{"key": "k", "path": %q, "cost": 0, "amounts": {"tokens": 0}}`, path))
		if a.Degraded || a.status == 503 {
			return fmt.Errorf("%s: %d", path, a.status)
		}
		used = limit - a.Remaining
		return nil
	})
	return used
}

// keptOut fails the test unless every node refuses the abusive client because of its cooldown.
func (m *mixed) keptOut(when string) {
	m.t.Helper()
	for _, n := range m.nodes {
		if a := check(m.t, n, `{"key": "k", "path": "/abused"}`); a.status != 429 || a.Reason != "cooldown" {
			m.t.Errorf("%s: a client in a cooldown gets %d %+v", when, a.status, a.CheckResponse)
		}
	}
}

// begin starts nodes on a store, puts an abusive client into a cooldown, and starts the load. The returned function
// ends the load.
func (m *mixed) begin(store string) (end func()) {
	t := m.t
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), mixedRules)
	m.nodes = serveAll(t, 3, "--rules", rules, "--store", store, "--store-timeout", "5s")
	reached(t, m.nodes...)
	m.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	until(t, func() error {
		for _, n := range m.nodes {
			if a := check(t, n, `{"key": "k", "path": "/abused"}`); a.Reason != "cooldown" {
				return errors.New("the abusive client isn't kept out")
			}
		}
		return nil
	})
	var load sync.WaitGroup
	var enough atomic.Bool
	for range 8 {
		load.Go(func() {
			for !enough.Load() && !t.Failed() {
				m.step()
			}
		})
	}
	end = sync.OnceFunc(func() {
		enough.Store(true)
		load.Wait()
		m.client.CloseIdleConnections()
	})
	t.Cleanup(end)
	m.passes(30)
	return end
}

// killNode kills a node that holds leases.
func (m *mixed) killNode() {
	m.mu.Lock()
	dead := m.nodes[0]
	m.nodes = m.nodes[1:]
	m.mu.Unlock()
	if err := dead.cmd.Process.Kill(); err != nil {
		m.t.Fatal(err)
	}
	<-dead.exited
}

// killReplicated kills a primary once its replica has all acknowledged writes. Another test covers the losses of
// asynchronous replication.
func (m *mixed) killReplicated(primary, replica *redistest.Server) {
	m.t.Helper()
	ctx := m.t.Context()
	if _, err := primary.Do(ctx, "CLIENT", "PAUSE", "60000", "WRITE"); err != nil {
		m.t.Fatal(err)
	}
	until(m.t, func() error { return replica.Follows(ctx, primary) })
	primary.Kill()
}

// audit compares what clients counted with what an exact limiter admits, and looks for stuck keys.
func (m *mixed) audit() {
	t := m.t
	t.Logf("admitted: %d leased, %d scarce, %d strict, %d tight; %d tokens settled, %d not refunded; %d sent again, %d uncertain, %d abandoned",
		m.leased.Load(), m.scarce.Load(), m.strict.Load(), m.tight.Load(), m.tokens.Load(), m.refunds.Load(), m.unanswered.Load(), m.uncertain.Load(), m.abandoned.Load())
	if n := m.abandoned.Load(); n > 0 {
		t.Fatalf("%d requests had no answer for 45s", n)
	}
	for _, exact := range []struct {
		path       string
		limit, sum int64
	}{
		{"/strict", 1_000_000, m.strict.Load()},
		{"/tokens", 1_000_000, m.tokens.Load()},
		{"/refunds", 1_000_000, m.refunds.Load()},
	} {
		if used := m.used(exact.path, exact.limit); used != exact.sum {
			t.Errorf("%s: %d are counted, and clients used %d", exact.path, used, exact.sum)
		}
	}
	if used, told := m.used("/leased", 1_000_000), m.leased.Load(); used < told {
		t.Errorf("/leased: %d are counted, and clients were admitted %d times", used, told)
	}
	// The rest of the limit can be used up, and no more.
	until(t, func() error {
		if _, admitted := m.take("/tight", ""); admitted {
			m.tight.Add(1)
			return errors.New("there are tokens left")
		}
		return nil
	})
	if n := m.tight.Load(); n != 100 {
		t.Errorf("/tight: %d of 100 were admitted", n)
	}
	for range 200 {
		m.once("/scarce", &m.scarce)
	}
	if n := m.scarce.Load(); n > 300 || n < 150 { // the lease of a killed node is lost
		t.Errorf("/scarce: %d of 300 were admitted", n)
	}
	// All slots are free and can be taken. If a node gave up on a renewal, it may reach Redis after the release and
	// take the slot again. Then the slot is free after slot_ttl.
	until(t, func() error {
		if n := m.used("/slots", 3); n != 0 {
			return fmt.Errorf("%d slots are stuck", n)
		}
		return nil
	})
	var receipts []string
	for range 3 {
		receipt, admitted := m.take("/slots", "")
		if !admitted {
			t.Error("a slot is stuck")
		}
		receipts = append(receipts, receipt)
	}
	if _, admitted := m.take("/slots", ""); admitted {
		t.Error("there are 4 slots")
	}
	for _, r := range receipts {
		m.finish("release", r, "", 0)
	}
	// When a cooldown is ended, the client's limit decides its requests again, on all nodes.
	m.keptOut("at the end")
	until(t, func() error { // both requests ask Redis
		_, text := call(t, "GET", m.nodes[0].Admin+"/v1/cooldowns", "")
		var kept struct{ Cooldowns []struct{ ID string } }
		if err := json.Unmarshal([]byte(text), &kept); err != nil || len(kept.Cooldowns) != 1 {
			return fmt.Errorf("one client is kept out: %s %v", text, err)
		}
		if res, text := call(t, "DELETE", m.nodes[0].Admin+"/v1/cooldowns/"+kept.Cooldowns[0].ID, ""); res.StatusCode != 200 {
			return fmt.Errorf("%s %s", res.Status, text)
		}
		return nil
	})
	until(t, func() error {
		for _, n := range m.nodes {
			if a := check(t, n, `{"key": "k", "path": "/abused", "cost": 0}`); a.Reason == "cooldown" {
				return errors.New("a client that was forgiven is kept out")
			}
		}
		return nil
	})
}

// A load uses all features at once on three nodes while a Cluster moves slots, fails over and loses a primary, and a
// node dies. No request is counted twice or forgotten, no limit is exceeded, and nothing gets stuck.
func TestMixedFeaturesOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t, redistest.Options{})
	m := &mixed{t: t}
	end := m.begin("redis-cluster://" + strings.Join(cluster.Addrs()[:3], ","))
	ctx := t.Context()
	healthy := func(after string) {
		t.Helper()
		until(t, func() error { return cluster.Healthy(ctx) })
		m.passes(30)
		m.keptOut(after)
	}
	// owner returns the primary with the most keys, its replica, and the keys.
	owner := func() (primary, replica *redistest.Server, keys []any) {
		t.Helper()
		until(t, func() error {
			primaries, err := cluster.Primaries(ctx)
			if err != nil {
				return err
			}
			primary, keys = nil, nil
			for _, p := range primaries {
				found, err := p.Do(ctx, "KEYS", "*")
				if err != nil {
					return err
				}
				if all := found.([]any); primary == nil || len(all) > len(keys) {
					primary, keys = p, all
				}
			}
			_, port, _ := net.SplitHostPort(primary.Addr)
			for _, n := range cluster.Nodes {
				if info, err := n.Info(ctx, "replication"); err == nil && info["role"] == "slave" && info["master_port"] == port {
					replica = n
					return nil
				}
			}
			return errors.New("the primary has no replica")
		})
		return primary, replica, keys
	}

	// All keys of the busiest server move to another one.
	primary, _, keys := owner()
	primaries, err := cluster.Primaries(ctx)
	if err != nil {
		t.Fatal(err)
	}
	to := primaries[0]
	if to == primary {
		to = primaries[1]
	}
	moved := map[int]bool{}
	for _, key := range keys {
		slot, err := cluster.Slot(ctx, key.(string))
		if err != nil {
			t.Fatal(err)
		}
		if moved[slot] {
			continue
		}
		moved[slot] = true
		if err := cluster.MoveSlots(ctx, slot, slot, to); err != nil {
			t.Fatal(err)
		}
	}
	healthy("slots moved")

	_, replica, _ := owner()
	if _, err := replica.Do(ctx, "CLUSTER", "FAILOVER"); err != nil {
		t.Fatal(err)
	}
	until(t, func() error {
		if info, err := replica.Info(ctx, "replication"); err != nil || info["role"] != "master" {
			return fmt.Errorf("%v: %v", info, err)
		}
		return nil
	})
	healthy("a planned failover")

	m.killNode()
	healthy("a node died")

	primary, replica, _ = owner()
	m.killReplicated(primary, replica)
	healthy("a primary died")
	if err := primary.Restart(); err != nil {
		t.Fatal(err)
	}
	healthy("it came back")
	end()
	m.audit()
}

// TestMixedFeaturesWithSentinels does the same with Sentinels, which promote a replica when the primary dies.
func TestMixedFeaturesWithSentinels(t *testing.T) {
	t.Parallel()
	group := redistest.NewSentinel(t, redistest.Options{})
	m := &mixed{t: t}
	end := m.begin("redis-sentinel://" + strings.Join(group.Addrs(), ",") + "/" + redistest.MasterName)
	m.killReplicated(group.Servers[0], group.Servers[1])
	until(t, func() error {
		_, err := group.Primary(t.Context())
		return err
	})
	m.passes(30)
	m.keptOut("a primary died")
	m.killNode()
	m.passes(30)
	if err := group.Servers[0].Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() error { return group.Healthy(t.Context()) })
	m.passes(30)
	end()
	m.audit()
}
