package redislimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/rulefile"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// A Cluster's client sleeps for seconds before it closes connections, and for a second before it looks up the
		// owners of slots again.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient).redirectOrNew.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

func open(t *testing.T, url, rules string) *Limiter {
	t.Helper()
	l, err := New(redisstore.Options{URL: url, Timeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)}, memstore.New(memstore.Options{}), weir.Options{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(10 * time.Second) })
	f, err := rulefile.Parse("rules.yaml", []byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	l.SetRules(f.Set)
	until(t, func() error {
		if l.Redis.Secret() == nil || !l.Redis.Health().Up {
			return errors.New("no Redis yet")
		}
		_, err := l.Redis.Client()
		return err
	})
	return l
}

func until(t *testing.T, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := redistest.Until(ctx, func(context.Context) error { return f() }); err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, l *Limiter, key string) weir.Decision {
	t.Helper()
	d, err := l.Check(t.Context(), &weir.Request{APIKey: key})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const rules = "rules: [{id: api, limit: 5/day, abuse: {refusals: 60/hour, cooldown: 1h}}]"

// If a client is refused on three nodes, too seldom on each for a cooldown but often enough in total, all nodes keep it
// out, with one cooldown. A node that starts later knows the cooldown, and lifting it on one node lifts it everywhere.
func TestCooldownsAreShared(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	acl := regexp.MustCompile(`(?m)^user weir on >PASSWORD (.+)$`).FindStringSubmatch(string(text))[1]
	url := "redis://weir:secret@" + redistest.New(t, redistest.Options{ACL: []string{"user default off", "user weir on >secret " + acl}}).Addr
	nodes := []*Limiter{open(t, url, rules), open(t, url, rules), open(t, url, rules)}
	until(t, func() error {
		for _, n := range nodes {
			if n.Redis.Nodes() != len(nodes) {
				return fmt.Errorf("%d nodes", n.Redis.Nodes())
			}
		}
		return nil
	})
	offend := func(nodes []*Limiter) {
		t.Helper()
		next := 0
		until(t, func() error {
			next++
			if d := check(t, nodes[next%len(nodes)], "offender"); d.Reason != weir.ReasonCooldown {
				return fmt.Errorf("after %d requests: %s", next, d.Reason)
			}
			return nil
		})
	}
	everywhere := func(nodes []*Limiter, n int) cooldown.Cooldown {
		t.Helper()
		var first cooldown.Cooldown
		for i, l := range nodes {
			until(t, func() error {
				if all := l.Guard.All(); len(all) != 1 || all[0].N != n || all[0].Rule != "api" {
					return fmt.Errorf("node %d: %+v", i, all)
				}
				if d := check(t, l, "offender"); d.Reason != weir.ReasonCooldown {
					return fmt.Errorf("node %d: %+v", i, d)
				}
				return nil
			})
			c := l.Guard.All()[0]
			if i == 0 {
				first = c
			}
			if !c.Ends.Equal(first.Ends) || c.ID != first.ID {
				t.Errorf("node %d: %+v, and node 0: %+v", i, c, first)
			}
		}
		return first
	}
	offend(nodes)
	one := everywhere(nodes, 1)
	if begun := nodes[0].Guard.Stats().Begun + nodes[1].Guard.Stats().Begun + nodes[2].Guard.Stats().Begun; begun != 1 {
		t.Errorf("%d nodes began it", begun)
	}
	if d := check(t, nodes[1], "other"); !d.Allowed {
		t.Errorf("another client: %+v", d)
	}

	nodes = append(nodes, open(t, url, rules))
	everywhere(nodes, 1)

	if lifted, err := nodes[2].Guard.Lift(t.Context(), one.ID); lifted == nil || err != nil {
		t.Fatal(lifted, err)
	}
	for i, l := range nodes {
		until(t, func() error {
			if d := check(t, l, "offender"); d.Reason == weir.ReasonCooldown {
				return fmt.Errorf("node %d: %+v", i, d)
			}
			return nil
		})
	}
}

// A node knows existing cooldowns from its start, before its first request. If Redis loses its data in a flush or
// failover, nodes restore the cooldowns that they know, so later nodes know them, too.
func TestCooldownsAfterALoss(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	url := "redis://" + server.Addr
	nodes := []*Limiter{open(t, url, rules), open(t, url, rules)}
	for range 6 {
		check(t, nodes[0], "offender")
	}
	until(t, func() error {
		if d := check(t, nodes[0], "offender"); d.Reason != weir.ReasonCooldown {
			return errors.New(d.Reason.String())
		}
		return nil
	})
	known := func(when string, n *Limiter) {
		t.Helper()
		until(t, func() error {
			if st := n.Guard.Stats(); st.InForce != 1 { // calling All would make the node listen
				return fmt.Errorf("%s: %+v", when, st)
			}
			return nil
		})
	}
	known("a node that has seen no request", nodes[1])
	known("a node that starts later", open(t, url, rules))
	for i := range 2 {
		if _, err := server.Do(t.Context(), "FLUSHALL"); err != nil {
			t.Fatal(err)
		}
		until(t, func() error { // until the nodes have restored the secret; a node that starts earlier makes a new secret, which changes the clients' names
			if n, err := server.Do(t.Context(), "EXISTS", "weir{nodes}secret"); err != nil || n != int64(1) {
				return fmt.Errorf("%v secrets, %v", n, err)
			}
			return nil
		})
		fresh := open(t, url, rules)
		known(fmt.Sprint("a node that starts after loss ", i+1), fresh)
		if got, want := fresh.Guard.All()[0], nodes[0].Guard.All()[0]; got.ID != want.ID || got.Ends.Sub(want.Ends).Abs() > time.Second {
			t.Errorf("%+v, want %+v", got, want)
		}
		nodes = append(nodes, fresh)
	}
	if d := check(t, nodes[3], "offender"); d.Reason != weir.ReasonCooldown {
		t.Errorf("%+v", d)
	}
}

// Forged or invalid announcements are ignored, and Redis has no client's name in plain text.
func TestForgedAnnouncements(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	l := open(t, "redis://"+server.Addr, rules)
	c, err := l.Redis.Client()
	if err != nil {
		t.Fatal(err)
	}
	far := time.Now().Add(1000 * 24 * time.Hour).UTC().Format(time.RFC3339)
	for _, word := range []string{
		"", "null", "{", `{"id": "12"}`, strings.Repeat("[", 100_000), `{"id":"00000000000000000000000000000001","rule":"api","n":1,"ends":"` + far + `","forgets":"` + far + `"}`,
		`{"id":"00000000000000000000000000000001","rule":"api","n":-1}`, `{"id":"00000000000000000000000000000001","rule":"` + strings.Repeat("x", 10_000) + `","n":1}`,
	} {
		if err := c.Do(t.Context(), c.B().Xadd().Key(l.Redis.Prefix()+"{cooldowns}said").Id("*").FieldValue().FieldValue("c", word).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	for range 6 {
		check(t, l, "sk_live_0123456789abcdef")
	}
	until(t, func() error {
		if d := check(t, l, "sk_live_0123456789abcdef"); d.Reason != weir.ReasonCooldown {
			return errors.New(d.Reason.String())
		}
		return nil
	})
	other := open(t, "redis://"+server.Addr, rules)
	check(t, other, "somebody") // the node listens from its first check on
	until(t, func() error {
		if all := other.Guard.All(); len(all) != 1 || strings.Contains(all[0].Client, "0123") {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	said, err := c.Do(t.Context(), c.B().Xrange().Key(l.Redis.Prefix()+"{cooldowns}said").Start("-").End("+").Build()).AsXRange()
	if err != nil || len(said) != 9 || strings.Contains(fmt.Sprint(said), "456789") {
		t.Errorf("%v: %v", said, err)
	}
}

// untilKeptOut checks "offender" until it is in a cooldown.
func untilKeptOut(t *testing.T, l *Limiter) {
	t.Helper()
	until(t, func() error {
		if d := check(t, l, "offender"); d.Reason != weir.ReasonCooldown {
			return errors.New(d.Reason.String())
		}
		return nil
	})
}

// A node that has just started keeps out the clients that are in a cooldown on other nodes, from its first check.
func TestAFreshNodeKnowsCooldowns(t *testing.T) {
	url := "redis://" + redistest.New(t, redistest.Options{}).Addr
	const rules = "rules: [{id: api, limit: 5/day, abuse: {refusals: 4/hour, cooldown: 1h}}]"
	first := open(t, url, rules)
	untilKeptOut(t, first)
	until(t, func() error {
		words, _, err := cooldowns{first.Redis}.Announced(t.Context(), "")
		if err == nil && len(words) == 0 {
			err = errors.New("nothing is announced")
		}
		return err
	})
	fresh := open(t, url, rules)
	fresh.Guard.CatchUp(t.Context())
	if d := check(t, fresh, "offender"); d.Reason != weir.ReasonCooldown {
		t.Errorf("the first check: %+v", d)
	}
}

// If a node starts before the others have restored the secret, it makes a new secret. When all nodes use the new one,
// clients stay in their cooldowns, and nodes that never knew the old secret learn of them.
func TestCooldownsOutliveTheSecret(t *testing.T) {
	url := "redis://" + redistest.New(t, redistest.Options{}).Addr
	const rules = "rules: [{id: api, limit: 5/day, abuse: {refusals: 4/hour, cooldown: 1h}}]"
	first := open(t, url, rules)
	untilKeptOut(t, first)
	before := first.Guard.All()
	secret := []byte("another secret...")
	fresh := open(t, url, rules)
	fresh.Guard.SetSecret(secret)
	first.Guard.SetSecret(secret)
	if d := check(t, first, "offender"); d.Reason != weir.ReasonCooldown {
		t.Errorf("under the new secret: %+v", d)
	}
	untilKeptOut(t, fresh)
	for _, l := range []*Limiter{first, fresh} {
		until(t, func() error {
			if all := l.Guard.All(); len(all) != 1 || all[0].ID == before[0].ID || !all[0].Ends.Equal(before[0].Ends) {
				return fmt.Errorf("%+v, and before it %+v", all, before)
			}
			return nil
		})
	}
}
