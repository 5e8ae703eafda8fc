package top_test

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// join returns a node that uses a Redis, once the node is registered there.
func join(t *testing.T, r *redistest.Server, name string, o top.Options) *top.Cluster {
	t.Helper()
	s, err := redisstore.New(redisstore.Options{URL: "redis://" + r.Addr, Name: name, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for {
		all, err := s.Peers(t.Context())
		if err == nil && s.Health().Up && slices.ContainsFunc(all, func(p redisstore.Peer) bool { return p.Name == name }) {
			return top.NewCluster(top.New(o), name, s, nil)
		}
	}
}

// still has a clock that doesn't move, so that lists don't grow old while a busy machine runs the test.
func still(at time.Time) top.Options { return top.Options{Now: func() time.Time { return at }} }

// toldKey is the key under which a node answers a question.
func toldKey(question, node string) string {
	sum := sha256.Sum256([]byte(question))
	return "weir{top}told:" + hex.EncodeToString(sum[:8]) + ":" + node
}

// tells lets a node write its answer about hot clients at the given time, and keeps the answer from expiring.
func tells(t *testing.T, c *top.Cluster, r *redistest.Server, name string, at time.Time) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = c.Run(ctx) }()
	for {
		if _, err := r.Do(ctx, "ZADD", "weir{top}questions", fmt.Sprint(at.UnixMilli()), "hot"); err != nil {
			t.Fatal(err)
		}
		if n, err := r.Do(ctx, "EXISTS", toldKey("hot", name)); err != nil || n == int64(1) {
			break
		}
	}
	if _, err := r.Do(ctx, "PERSIST", toldKey("hot", name)); err != nil {
		t.Fatal(err)
	}
}

func names(a top.Answer) (all []string) {
	for _, n := range a.Nodes {
		all = append(all, n.Name)
	}
	return all
}

// TestNodesThatCantBeRead checks that exactly the nodes whose answers can't be read are reported as missing.
func TestNodesThatCantBeRead(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	at := time.Now()
	now := still(at)
	a, b, c := join(t, r, "a", now), join(t, r, "b", now), join(t, r, "c", now)
	tells(t, b, r, "b", at)
	tells(t, c, r, "c", at)
	for _, command := range []string{"DEL " + toldKey("hot", "b"), "LPUSH " + toldKey("hot", "b") + " x"} {
		if _, err := r.Do(t.Context(), strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	got := a.Hot(t.Context(), top.Query{K: 1})
	if !slices.Equal(names(got), []string{"a", "c"}) || !slices.Equal(got.NodesMissing, []string{"b"}) {
		t.Errorf("nodes %v, missing %v", names(got), got.NodesMissing)
	}
	if got.Partial == "" || strings.Contains(got.Partial, "alone") {
		t.Errorf("two nodes are in it, and it says %q", got.Partial)
	}
}

// TestAnOldListIsTheLastResort checks that a question first waits for a new list, and uses an old one only if none
// comes.
func TestAnOldListIsTheLastResort(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := time.Now()
	a, b := join(t, r, "a", still(now)), join(t, r, "b", still(now.Add(-6*time.Second)))
	tells(t, b, r, "b", now)
	began := time.Now()
	got := a.Hot(t.Context(), top.Query{K: 1})
	if len(got.Nodes) != 2 || got.Nodes[1].AgeMS < 6000 {
		t.Fatalf("%+v: %s", got.Nodes, got.Partial)
	}
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("a list of six seconds ago is taken after %v", waited)
	}
}

// TestQuestionsShareAnAnswer checks that the nodes are asked once a second, however many questions there are.
func TestQuestionsShareAnAnswer(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	a := join(t, r, "a", top.Options{})
	questions := func() int {
		t.Helper()
		info, err := r.Info(t.Context(), "commandstats")
		if err != nil {
			t.Fatal(err)
		}
		calls, _, _ := strings.Cut(strings.TrimPrefix(info["cmdstat_zadd"], "calls="), ",")
		n, _ := strconv.Atoi(calls)
		return n
	}
	before, began := questions(), time.Now()
	var asking sync.WaitGroup
	for range 100 {
		asking.Go(func() {
			if got := a.Hot(t.Context(), top.Query{K: 1}); got.Partial != "" || len(got.Nodes) != 1 {
				t.Errorf("%s: %+v", got.Partial, got.Nodes)
			}
		})
	}
	asking.Wait()
	if n, most := questions()-before, 1+int(time.Since(began)/time.Second); n < 1 || n > most {
		t.Errorf("the nodes were asked %d times for 100 answers, want %d at most", n, most)
	}
}

// TestForgedLists checks that an answer leaves out invalid lists, says so, and is otherwise right.
func TestForgedLists(t *testing.T) {
	now := time.Now().UTC()
	good := fmt.Sprintf(`{"node": "x", "at": %q, "since": %q, "one_in": 1, "clients": {"missing": {"requests": 0, "refused": 0}}}
c{"id": 1, "client": "sk…1", "kind": "api_key", "rule": "api", "rates": {"requests": 5, "refused": 0}}
r{"rule": "api", "rates": {"requests": 5, "refused": 0}, "hit": %q}
`,
		now.Format(time.RFC3339), now.Add(-time.Hour).Format(time.RFC3339), now.Add(-time.Second).Format(time.RFC3339Nano))
	changed := func(from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatal(from)
		}
		return strings.Replace(good, from, to, 1)
	}
	r := redistest.New(t, redistest.Options{})
	a := join(t, r, "a", still(now))
	var bad []string
	for name, text := range map[string]string{
		"good":           good,
		"rate":           changed(`"requests": 5`, `"requests": 1e308`),
		"rule-rate":      strings.Replace(good, `"rule": "api", "rates": {"requests": 5, "refused": 0}, "hit`, `"rule": "api", "rates": {"requests": 5, "refused": -1}, "hit`, 1),
		"one-in-0":       changed(`"one_in": 1`, `"one_in": 0`),
		"one-in-minus":   changed(`"one_in": 1`, `"one_in": -500`),
		"missing":        changed(`"missing": {"requests": 0`, `"missing": {"requests": -1e308`),
		"year-10000":     changed(`"hit": "`+now.Add(-time.Second).Format(time.RFC3339Nano), `"hit": "9999-12-31T23:59:59-23:00`),
		"tomorrow":       changed(now.Format(time.RFC3339), now.Add(24*time.Hour).Format(time.RFC3339)),
		"since-when":     changed(`"since": "`+now.Add(-time.Hour).Format(time.RFC3339), `"since": "1701-01-01T00:00:00Z`),
		"half-an-hour":   changed(now.Format(time.RFC3339), now.Add(-28*time.Minute).Format(time.RFC3339)),
		"escape":         changed(`"sk…1"`, `"\u001b[2J"`),
		"long":           changed(`"rule": "api"`, `"rule": "`+strings.Repeat("x", 5000)+`"`),
		"kind":           changed(`"api_key"`, `"king"`),
		"clients":        good + strings.Repeat(strings.Split(good, "\n")[1]+"\n", 500),
		"pairs":          good + strings.Repeat("p"+strings.Split(good, "\n")[1][1:]+"\n", 501),
		"rules":          good + strings.Repeat(strings.Split(good, "\n")[2]+"\n", 1000),
		"letter":         good + "x{}\n",
		"null":           good + "cnull\n",
		"too-large":      good + strings.Repeat("r{}\n", 16<<20),
		"not-a-list":     "[]",
		"nothing-at-all": "",
	} {
		join(t, r, name, top.Options{})
		var b strings.Builder
		z := gzip.NewWriter(&b)
		if _, err := z.Write([]byte(text)); err != nil || z.Close() != nil {
			t.Fatal(err)
		}
		if _, err := r.Do(t.Context(), "SET", toldKey("hot", name), b.String()); err != nil {
			t.Fatal(err)
		}
		if name != "good" {
			bad = append(bad, name)
		}
	}
	join(t, r, "huge", top.Options{})
	if _, err := r.Do(t.Context(), "SETRANGE", toldKey("hot", "huge"), "100000000", "x"); err != nil {
		t.Fatal(err)
	}
	bad = append(bad, "huge")
	got := a.Hot(t.Context(), top.Query{K: 10})
	if !strings.Contains(got.Partial, "makes no sense") {
		t.Errorf("it says %q", got.Partial)
	}
	slices.Sort(bad)
	slices.Sort(got.NodesMissing)
	if !slices.Equal(names(got), []string{"a", "good"}) || !slices.Equal(got.NodesMissing, bad) {
		t.Errorf("nodes %v, missing %v", names(got), got.NodesMissing)
	}
	if _, err := json.Marshal(got); err != nil || len(got.Clients) != 1 {
		t.Errorf("%v: %+v", err, got.Clients)
	}
}
