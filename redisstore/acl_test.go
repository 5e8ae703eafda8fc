package redisstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/storetest"
)

// documentedACL reads the permissions that, according to the docs, a node needs on servers and on Sentinels.
func documentedACL(t *testing.T) (servers, sentinels string) {
	t.Helper()
	text, err := os.ReadFile("../docs/reference/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "## Redis permissions")
	lines := regexp.MustCompile(`(?m)^user weir on >PASSWORD (.+)$`).FindAllStringSubmatch(section, -1)
	if !found || len(lines) != 2 {
		t.Fatal(`docs/reference/redis.md hasn't two lines "user weir on >PASSWORD …" under "Redis permissions"`)
	}
	return lines[0][1], lines[1][1]
}

// everything makes a node do all that it ever does to Redis, including probes.
func everything(t *testing.T, url string) {
	t.Helper()
	var us atomic.Int64
	us.Store(storetest.Start.UnixMicro())
	s := open(t, Options{URL: url, Now: func() time.Time { return time.UnixMicro(us.Load()) }})
	for i, a := range storetest.Algorithms {
		var charges []counter.Charge
		for j := range 20 { // so many that fields are swept
			p := policy(t, fmt.Sprint("p", j), a, 3, time.Duration(j+1)*time.Second)
			charges = append(charges, charge1(p, "s"))
		}
		for j := range 6 { // taken at the same moment, later, when the first have left the window, and refused
			rs := take(t.Context(), s, charges...)
			for _, r := range rs {
				if r.Err != nil {
					t.Fatalf("%s: take: %v", a, r.Err)
				}
			}
			if j > 0 {
				us.Add(400_000)
			}
			back := counter.Return{Counter: charges[19].Counter, N: 1, Slot: rs[19].Slot}
			if err := s.GiveBack(t.Context(), counter.Once{byte(i), 1}, time.Minute, []counter.Return{back}); err != nil && err != counter.ErrUsed {
				t.Fatalf("%s: give back: %v", a, err)
			}
		}
		if err := s.Reset(t.Context(), []counter.Counter{charges[0].Counter}); err != nil {
			t.Fatalf("%s: reset: %v", a, err)
		}
	}
	for p, n := range withHolds(t, 3) {
		for j := range 5 { // taken, renewed, refused, settled, and over
			c := holding(p, "h", n, 1+j/2)
			slotsOf(t, s, p, "h", 10)
			slotOfHold(t, s, p, "h", 1)
			c.Hold.GiveBack = p.GivesBack
			res := take(t.Context(), s, c)[0]
			if res.Err != nil {
				t.Fatalf("%s: take: %v", p.Name, res.Err)
			}
			if j == 3 {
				if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{back(c, res, n)}); err != nil {
					t.Fatalf("%s: settle: %v", p.Name, err)
				}
			}
			us.Add(8 * time.Hour.Microseconds() * int64(j/4*4))
		}
		if left(t, s, p, "h"); s.Reset(t.Context(), []counter.Counter{holding(p, "h", n, 1).Counter}) != nil {
			t.Fatalf("%s: not reset", p.Name)
		}
	}
	// A lost shard is probed until it accepts writes.
	sh := s.joiners[0].shard.Load()
	sh.trip(os.ErrDeadlineExceeded)
	s.lose(sh)
	until(t, func(context.Context) error {
		if sh.open.Load() {
			return errors.New("not probed yet")
		}
		return nil
	})
	s.Close()
}

// welcome fails the test if a server denied a node anything.
func welcome(t *testing.T, servers ...*redistest.Server) {
	t.Helper()
	for _, r := range servers {
		if refusals := do(t, r, "ACL", "LOG").([]any); len(refusals) > 0 {
			t.Errorf("a node was refused something: %v", refusals[0])
		}
	}
}

// allow adds a user to servers that are already running.
func allow(t *testing.T, acl string, servers ...*redistest.Server) {
	t.Helper()
	for _, r := range servers {
		do(t, r, append([]string{"ACL", "SETUSER", "weir", "on", ">secret"}, strings.Fields(acl)...)...)
	}
}

// TestThePermissionsInTheDocs checks that the documented permissions are enough for a node in every deployment, and that each
// of them is used.
func TestThePermissionsInTheDocs(t *testing.T) {
	t.Parallel()
	acl, ofSentinels := documentedACL(t)
	t.Run("Server", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{ACL: []string{"user default off", "user weir on >secret " + acl}})
		do(t, r, "CONFIG", "RESETSTAT")
		everything(t, "redis://weir:secret@"+r.Addr)
		welcome(t, r)
		for word := range strings.FieldsSeq(acl) {
			if command, is := strings.CutPrefix(word, "+"); is && !elsewhere[command] && calls(t, r, command) == 0 {
				t.Errorf("a node doesn't need %s", command)
			}
		}
		for _, refused := range [][]string{
			{"FLUSHALL"}, {"FLUSHDB"}, {"KEYS", "*"}, {"SCAN", "0"}, {"CONFIG", "GET", "*"}, {"SHUTDOWN"}, {"DEBUG", "SLEEP", "0"},
			{"ACL", "LIST"}, {"MONITOR"}, {"REPLICAOF", "NO", "ONE"}, {"SCRIPT", "FLUSH"}, {"GET", "other"}, {"SET", "other", "1"}, {"DEL", "weird"},
		} {
			if v := do(t, r, append([]string{"ACL", "DRYRUN", "weir"}, refused...)...); v == "OK" {
				t.Errorf("%s is allowed", strings.Join(refused, " "))
			}
		}
		lasting(t, r)
	})
	t.Run("Cluster", func(t *testing.T) {
		c := redistest.NewCluster(t, redistest.Options{})
		allow(t, acl, c.Nodes...)
		url := strings.Replace(clusterURL(c), "://", "://weir:secret@", 1)
		everything(t, url)
		asksForShards(t, url)
		welcome(t, c.Nodes...)
		lasting(t, primaries(t, c)...)
	})
	t.Run("Sentinel", func(t *testing.T) {
		s := redistest.NewSentinel(t, redistest.Options{})
		allow(t, acl, s.Servers...)
		allow(t, ofSentinels, s.Sentinels...)
		var hosts []string
		for _, sentinel := range s.Sentinels {
			hosts = append(hosts, sentinel.Addr)
		}
		everything(t, "redis-sentinel://weir:secret@"+strings.Join(hosts, ",")+"/"+redistest.MasterName+"?sentinel_user=weir&sentinel_password=secret")
		welcome(t, s.Servers...)
		welcome(t, s.Sentinels...)
		lasting(t, s.Servers[0])
	})
}

// asksForShards makes a client ask a Cluster for its shards, as the client does by itself with servers from version 8 on.
func asksForShards(t *testing.T, url string) {
	t.Helper()
	a, err := parseAddress(url)
	if err != nil {
		t.Fatal(err)
	}
	a.option.ClusterOption.PreferClusterShards = true
	c, err := rueidis.NewClient(a.option)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// elsewhere lists permissions that a single server doesn't need, and those for rules, lists of clients and cooldowns, which
// internal/node/rulestore, server/internal/observe/top and internal/node/redislimit test.
var elsewhere = map[string]bool{
	"cluster|slots": true, "cluster|shards": true, "asking": true, "role": true,
	"publish": true, "subscribe": true, "hexists": true, "getrange": true, "incrby": true, "xadd": true, "xrange": true,
}

// A probe needs the same permissions as a check. Otherwise, a missing permission would make a shard go down and up many times a
// second.
func TestAMissingPermissionIsFoundByTheProbe(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	acl, _ := documentedACL(t)
	allow(t, acl, r)
	s := open(t, Options{URL: "redis://weir:secret@" + r.Addr})
	p := policy(t, "p", counter.TokenBucket, 1000, time.Hour)
	for _, command := range []string{"hset", "hget", "time"} {
		answers(t, s)
		do(t, r, "ACL", "SETUSER", "weir", "-"+command)
		sh := s.joiners[0].shard.Load()
		until(t, func(ctx context.Context) error {
			if _ = take(ctx, s, charge1(p, "s")); !sh.open.Load() {
				return errors.New("the breaker is closed")
			}
			return nil
		})
		before, since := calls(t, r, "evalsha"), sh.since.Load()
		until(t, func(context.Context) error {
			if n := calls(t, r, "evalsha") - before; n < 5 {
				return fmt.Errorf("%d probes", n)
			}
			return nil
		})
		if !sh.open.Load() || sh.since.Load() != since {
			t.Errorf("without %s the breaker closed", command)
		}
		do(t, r, "ACL", "SETUSER", "weir", "+"+command)
	}
	answers(t, s)
}
