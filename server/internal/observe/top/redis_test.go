package top_test

import (
	"compress/gzip"
	"context"
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

// join makes a node that uses a Redis, and waits until it is known there.
func join(t *testing.T, r *redistest.Server, name string, o top.Options) *top.Shared {
	t.Helper()
	s, err := redisstore.New(redisstore.Options{URL: "redis://" + r.Addr, Name: name, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for {
		all, err := s.Peers(t.Context())
		if err == nil && s.Health().Up && slices.ContainsFunc(all, func(p redisstore.Peer) bool { return p.Name == name }) {
			return top.Share(top.New(o), s, name, nil)
		}
	}
}

// still is a clock that doesn't move: lists don't grow old while a busy machine runs the test.
func still(at time.Time) top.Options { return top.Options{Now: func() time.Time { return at }} }

// tells has a node tell its list, as one does that is asked, until another has it.
func tells(t *testing.T, s *top.Shared, r *redistest.Server, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = s.Run(ctx) }()
	for {
		if _, err := r.Do(ctx, "SET", "weir{top}asked", "1"); err != nil {
			t.Fatal(err)
		}
		if n, err := r.Do(ctx, "EXISTS", "weir{top}hot:"+name); err != nil || n == int64(1) {
			break
		}
	}
	if _, err := r.Do(ctx, "PERSIST", "weir{top}hot:"+name); err != nil {
		t.Fatal(err)
	}
}

func names(a top.Answer) (all []string) {
	for _, n := range a.Nodes {
		all = append(all, n.Name)
	}
	return all
}

// TestNodesThatCantBeRead are missing, and nobody else is.
func TestNodesThatCantBeRead(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := still(time.Now())
	a, b, c := join(t, r, "a", now), join(t, r, "b", now), join(t, r, "c", now)
	tells(t, b, r, "b")
	tells(t, c, r, "c")
	for _, command := range []string{"DEL weir{top}hot:b", "LPUSH weir{top}hot:b x"} {
		if _, err := r.Do(t.Context(), strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	got, err := a.Answer(t.Context(), top.Query{K: 1})
	if err == nil || !slices.Equal(names(got), []string{"a", "c"}) || !slices.Equal(got.NodesMissing, []string{"b"}) {
		t.Errorf("%v: nodes %v, missing %v", err, names(got), got.NodesMissing)
	}
	if got.Partial == "" || strings.Contains(got.Partial, "alone") {
		t.Errorf("two nodes are in it, and it says %q", got.Partial)
	}
}

// TestAnOldListIsTheLastResort: the first question waits for one that is new.
func TestAnOldListIsTheLastResort(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := time.Now()
	a, b := join(t, r, "a", still(now)), join(t, r, "b", still(now.Add(-6*time.Second)))
	tells(t, b, r, "b")
	began := time.Now()
	got, err := a.Answer(t.Context(), top.Query{K: 1})
	if err != nil || len(got.Nodes) != 2 || got.Nodes[1].AgeMS < 6000 {
		t.Fatalf("%v: %+v", err, got.Nodes)
	}
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("a list of six seconds ago is taken after %v", waited)
	}
}

// TestQuestionsShareAnAnswer: the nodes are asked once a second, by however many.
func TestQuestionsShareAnAnswer(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	a := join(t, r, "a", top.Options{})
	sets := func() int {
		t.Helper()
		info, err := r.Info(t.Context(), "commandstats")
		if err != nil {
			t.Fatal(err)
		}
		calls, _, _ := strings.Cut(strings.TrimPrefix(info["cmdstat_set"], "calls="), ",")
		n, _ := strconv.Atoi(calls)
		return n
	}
	before, began := sets(), time.Now()
	var asking sync.WaitGroup
	for range 100 {
		asking.Go(func() {
			if got, err := a.Answer(t.Context(), top.Query{K: 1}); err != nil || len(got.Nodes) != 1 {
				t.Errorf("%v: %+v", err, got.Nodes)
			}
		})
	}
	asking.Wait()
	if n, most := sets()-before, 1+int(time.Since(began)/time.Second); n < 1 || n > most {
		t.Errorf("the nodes were asked %d times for 100 answers, want %d at most", n, most)
	}
}

// TestListsThatNoNodeHasWritten aren't in the answer, which says so, and do no harm to it.
func TestListsThatNoNodeHasWritten(t *testing.T) {
	now := time.Now().UTC()
	good := fmt.Sprintf(`{"node": "x", "at": %q, "began": %q, "one_in": 1, "clients": {"missing": {"requests": 0, "refused": 0}}}
c{"id": 1, "client": "sk…1", "kind": "api_key", "rule": "api", "rates": {"requests": 5, "refused": 0}, "lacks": 0}
r{"rule": "api", "rates": {"requests": 5, "refused": 0}, "last_hit": %q}
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
		"rule-rate":      strings.Replace(good, `"rule": "api", "rates": {"requests": 5, "refused": 0}, "last`, `"rule": "api", "rates": {"requests": 5, "refused": -1}, "last`, 1),
		"lacks":          changed(`"lacks": 0`, `"lacks": 1e308`),
		"one-in-0":       changed(`"one_in": 1`, `"one_in": 0`),
		"one-in-minus":   changed(`"one_in": 1`, `"one_in": -500`),
		"missing":        changed(`"missing": {"requests": 0`, `"missing": {"requests": -1e308`),
		"year-10000":     changed(`"last_hit": "`+now.Add(-time.Second).Format(time.RFC3339Nano), `"last_hit": "9999-12-31T23:59:59-23:00`),
		"tomorrow":       changed(now.Format(time.RFC3339), now.Add(24*time.Hour).Format(time.RFC3339)),
		"began-never":    changed(`"began": "`+now.Add(-time.Hour).Format(time.RFC3339), `"began": "0001-01-01T00:00:00Z`),
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
		if _, err := r.Do(t.Context(), "SET", "weir{top}hot:"+name, b.String()); err != nil {
			t.Fatal(err)
		}
		if name != "good" {
			bad = append(bad, name)
		}
	}
	join(t, r, "huge", top.Options{})
	if _, err := r.Do(t.Context(), "SETRANGE", "weir{top}hot:huge", "100000000", "x"); err != nil {
		t.Fatal(err)
	}
	bad = append(bad, "huge")
	got, err := a.Answer(t.Context(), top.Query{K: 10})
	if err == nil || !strings.Contains(got.Partial, "makes no sense") {
		t.Errorf("%v: it says %q", err, got.Partial)
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
