package top_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// member is a node that uses a Redis and remembers the last hour.
type member struct {
	limiter *weir.Limiter
	hour    *top.Cluster
	top     *top.Top
}

// joinHour returns a member that has the same tokens as the others, and runs until the test ends.
func joinHour(t *testing.T, r *redistest.Server, name string, rs *weir.RuleSet) *member {
	t.Helper()
	return joinWith(t, r, name, rs, "of the tokens that all have")
}

// joinWith returns a member whose tokens have the given digest. It has no tokens if digest is "".
func joinWith(t *testing.T, r *redistest.Server, name string, rs *weir.RuleSet, digest string) *member {
	t.Helper()
	return joinAt(t, "redis://"+r.Addr, name, rs, digest)
}

func joinAt(t *testing.T, url, name string, rs *weir.RuleSet, digest string) *member {
	t.Helper()
	s, err := redisstore.New(redisstore.Options{URL: url, Name: name, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for {
		all, err := s.Peers(t.Context())
		if err == nil && s.Health().Up && s.Secret() != nil && slices.ContainsFunc(all, func(p redisstore.Peer) bool { return p.Name == name }) {
			break
		}
	}
	m := &member{}
	m.top = top.New(top.Options{Secret: s.Secret, Rules: func() *weir.RuleSet { return rs }})
	m.hour = top.NewCluster(m.top, name, s, func() []byte {
		if digest == "" {
			return nil
		}
		return []byte(digest)
	})
	m.limiter = weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{Observe: m.top.Observe})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for _, run := range []func(context.Context) error{m.top.Run, m.hour.Run} {
		go func() { done <- run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		<-done
		<-done
	})
	m.top.Learn()
	return m
}

func compile(t *testing.T, rules ...weir.Rule) *weir.RuleSet {
	t.Helper()
	rs, err := weir.Compile(weir.Rules{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// TestTheHourOverThreeNodes checks that every node returns exact counts over all nodes together, and that Redis
// contains no key in clear.
func TestTheHourOverThreeNodes(t *testing.T) {
	t.Parallel() // the test mostly waits
	r := redistest.New(t, redistest.Options{})
	rs := compile(t, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerHour(30)}}, weir.Rule{ID: "org", By: []string{"org"}, Limits: []weir.Limit{weir.PerHour(1_000_000)}})
	nodes := []*member{joinHour(t, r, "a", rs), joinHour(t, r, "b", rs), joinHour(t, r, "c", rs)}
	type sums struct{ requests, refused uint64 }
	keys, orgs, all, refused := map[string]sums{}, map[string]sums{}, uint64(0), uint64(0)
	random := rand.New(rand.NewPCG(3, 4))
	key := func(i int) string { return fmt.Sprintf("sk%03d_SECRET_of_a_client", i) }
	for range 3000 {
		i, at := int(random.ExpFloat64()*20), random.IntN(3)
		if i == 7 {
			at = 2 // so that node a never sees this key
		}
		q := weir.Request{APIKey: key(i), KeyVerified: true, Org: fmt.Sprintf("organisation_%d", i%4)}
		d, err := nodes[at].limiter.Check(t.Context(), &q)
		if err != nil {
			t.Fatal(err)
		}
		k, o := keys[q.APIKey], orgs[q.Org]
		k.requests, o.requests, all = k.requests+1, o.requests+1, all+1
		if !d.Allowed {
			k.refused, refused = k.refused+1, refused+1
		}
		keys[q.APIKey], orgs[q.Org] = k, o
		if all%100 == 0 { // a node that counts too seldom has to estimate what it missed
			for _, n := range nodes {
				n.top.Hottest() // makes the node count
			}
		}
	}
	for i, n := range nodes {
		got := whole(t, 3, func() (top.HourOfRule, top.Span) {
			r := must(n.hour.Rule(t.Context(), top.Query{Rule: "api", K: 1000}))
			return r, r.Span
		})
		if len(got.Nodes) != 3 || len(got.NodesMissing) > 0 || got.Partial != "" || got.Requests != all || got.Refused != refused || got.Coverage != 1 || got.Keys != len(keys) || len(got.Clients) != len(keys) {
			t.Fatalf("node %d: %d of %d requests, %d of %d refused, %d and %d of %d keys, of %v, without %v: %s", i, got.Requests, all, got.Refused, refused, got.Keys, len(got.Clients), len(keys), got.Nodes, got.NodesMissing, got.Partial)
		}
		for _, c := range got.Clients {
			want := keys[c.Client[:5]+"_SECRET_of_a_client"]
			if c.Requests != want.requests || c.Refused != want.refused {
				t.Errorf("node %d: %s has %d requests, %d refused, want %+v", i, c.Client, c.Requests, c.Refused, want)
			}
			sent := uint64(0)
			for _, n := range c.History.Requests {
				sent += n
			}
			if sent != want.requests {
				t.Errorf("its history has %d", sent)
			}
		}
		usage := whole(t, 3, func() (top.HourOfRules, top.Span) {
			r := must(n.hour.Rules(t.Context()))
			return r, r.Span
		})
		if len(usage.Rules) != 2 || usage.Rules[0].Requests != all || usage.Rules[0].Keys != len(keys) || usage.Rules[1].Keys != 4 || usage.Rules[1].Coverage != 1 {
			t.Errorf("node %d: %+v", i, usage.Rules)
		}
		// Some keys have used up their limit, on node c at least.
		if usage.Rules[0].Above100 == 0 || usage.Rules[0].Above100 > len(keys) {
			t.Errorf("node %d: %+v", i, usage.Rules[0])
		}
		would := whole(t, 3, func() (top.WhatIf, top.Span) {
			w := must(n.hour.Arrivals(t.Context(), "api")).Under(t.Context(), policy(t, weir.PerHour(10)))
			return w, top.Span{Asked: w.Asked}
		})
		want := uint64(0)
		for _, k := range keys {
			want += max(k.requests, 10) - 10
		}
		if would.Requests != all || would.WasRefused != refused || would.WouldRefuse != want || would.Keys != len(keys) || len(would.Nodes) != 3 {
			t.Errorf("node %d: %+v, want %d", i, would, want)
		}
		// All nodes know a client that only one node has seen.
		print := n.top.Fingerprint(&weir.Request{APIKey: key(7)})
		if who, err := n.resolve(t, print); err != nil || who.Value != key(7) {
			t.Errorf("node %d: %v: %q", i, err, who.Kind)
		}
		page := n.page(t, 3, top.Identity{Kind: "api_key", Value: key(7)}, "")
		if len(page.Rules) != 1 || page.Rules[0].Requests != keys[key(7)].requests {
			t.Errorf("node %d: %+v", i, page.Rules)
		}
	}
	found, err := r.Do(t.Context(), "KEYS", "weir{top}told*")
	if names := found.([]any); err != nil || len(names) < 9 { // of three questions or more
		t.Fatalf("%v: %v", err, names)
	}
	sealed := 0
	for _, name := range found.([]any) {
		packed, err := r.Do(t.Context(), "GET", name.(string))
		if err != nil {
			t.Fatal(err)
		}
		text := gunzip(t, packed.(string))
		if strings.Contains(text, "SECRET") || strings.Contains(name.(string), "SECRET") {
			t.Errorf("a key in %s: %s", name, text)
		}
		sealed += strings.Count(text, `"sealed"`)
	}
	if sealed == 0 {
		t.Error("no node has reported a name")
	}
}

// TestRedisAloneRevealsNoKey checks that a node with other tokens can't learn a key, although it reads all of Redis and asks
// like a node.
func TestRedisAloneRevealsNoKey(t *testing.T) {
	t.Parallel() // the test mostly waits
	r := redistest.New(t, redistest.Options{})
	rs := compile(t, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerHour(30)}})
	nodes := map[string]*member{}
	for name, digest := range map[string]string{"a": "ours", "b": "ours", "stranger": "of others", "open": "", "open-too": ""} {
		nodes[name] = joinWith(t, r, name, rs, digest)
	}
	const key = "sk_prod_0123456789abcdef_SECRET"
	print := nodes["a"].top.Fingerprint(&weir.Request{APIKey: key})
	if _, err := nodes["b"].limiter.Check(t.Context(), &weir.Request{APIKey: key, KeyVerified: true}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"a": nil, "b": nil, "stranger": top.ErrSealedClient, "open": top.ErrSealedClient} {
		who, err := nodes[name].resolve(t, print)
		if err != want || who.Kind != "api_key" || (who.Value == key) != (want == nil) {
			t.Errorf("%s: %v: %+v", name, err, who)
		}
		page := nodes[name].page(t, len(nodes), top.Identity{}, print)
		if page.Client != mask(key) || len(page.Rules) != 1 || page.Rules[0].Requests != 1 {
			t.Errorf("%s: %+v", name, page)
		}
	}
	// A node without tokens tells no other node its keys.
	if _, err := nodes["open"].limiter.Check(t.Context(), &weir.Request{APIKey: key + "2", KeyVerified: true}); err != nil {
		t.Fatal(err)
	}
	print = nodes["a"].top.Fingerprint(&weir.Request{APIKey: key + "2"})
	for name, want := range map[string]error{"a": top.ErrSealedClient, "open": nil, "open-too": top.ErrSealedClient} {
		if _, err := nodes[name].resolve(t, print); err != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// whole repeats a question until the given number of nodes have answered, because nodes on a busy machine may be late.
func whole[T any](t *testing.T, nodes int, ask func() (T, top.Span)) T {
	t.Helper()
	for {
		answer, span := ask()
		if len(span.Nodes) == nodes || t.Context().Err() != nil {
			return answer
		}
		t.Logf("without %v: %s", span.NodesMissing, span.Partial)
		time.Sleep(500 * time.Millisecond) // answers are cached for a few seconds
	}
}

// resolve repeats a question until all nodes have answered.
func (m *member) resolve(t *testing.T, print string) (top.Identity, error) {
	for {
		who, err := m.hour.Resolve(t.Context(), print)
		if err != top.ErrUnaskedClient {
			return who, err
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// page returns the page of a client from the given number of nodes.
func (m *member) page(t *testing.T, nodes int, who top.Identity, print string) top.HourOfClient {
	return whole(t, nodes, func() (top.HourOfClient, top.Span) {
		page, _, err := m.hour.Client(t.Context(), who, print)
		if err != nil && err != top.ErrUnaskedClient {
			t.Fatal(err)
		}
		return page, page.Span
	})
}

// must returns an answer, and panics on an error.
func must[T any](answer T, err error) T {
	if err != nil {
		panic(err)
	}
	return answer
}

func policy(t *testing.T, l weir.Limit) *counter.Policy {
	t.Helper()
	p, err := counter.NewPolicy("x", l)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func gunzip(t *testing.T, packed string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestForgedAnswers checks that an answer leaves out invalid answers of nodes, says so, and is otherwise
// right.
func TestForgedAnswers(t *testing.T) {
	t.Parallel() // the test mostly waits
	r := redistest.New(t, redistest.Options{})
	rs := compile(t, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerHour(30)}})
	a, b := joinHour(t, r, "a", rs), joinHour(t, r, "b", rs)
	for range 5 {
		if _, err := b.limiter.Check(t.Context(), &weir.Request{APIKey: "sk_prod_0123456789abcdef"}); err != nil {
			t.Fatal(err)
		}
	}
	err := redistest.Until(t.Context(), func(context.Context) error { // b may be late
		if got := must(a.hour.Rule(t.Context(), top.Query{Rule: "api", K: 10})); got.Requests != 5 || len(got.Clients) != 1 {
			return fmt.Errorf("%d requests of %d clients", got.Requests, len(got.Clients))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// What b has told, changed in many ways, as the answers of nodes that can't overwrite it.
	names, err := r.Do(t.Context(), "KEYS", "weir{top}told*:b")
	if err != nil || len(names.([]any)) != 1 {
		t.Fatal(err, names)
	}
	key := names.([]any)[0].(string)
	packed, err := r.Do(t.Context(), "GET", key)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(gunzip(t, packed.(string)), "\n"), "\n")
	if len(lines) != 3 || lines[1][0] != 'r' || lines[2][0] != 'k' {
		t.Fatalf("%q", lines)
	}
	type object = map[string]any
	changed := func(change func(told, rule, row object)) string {
		var all []object
		for i, line := range lines {
			var o object
			if err := json.Unmarshal([]byte(line[min(i, 1):]), &o); err != nil {
				t.Fatal(err)
			}
			all = append(all, o)
		}
		change(all[0], all[1], all[2])
		out := ""
		for i, o := range all {
			b, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			out += []string{"", "r", "k"}[i] + string(b) + "\n"
		}
		return out
	}
	text := strings.Join(lines, "\n") + "\n"
	bad := map[string]string{
		"time":     changed(func(t, _, _ object) { t["at"] = "2099-01-01T00:00:00Z" }),
		"no-time":  changed(func(t, _, _ object) { delete(t, "at") }),
		"one-in":   changed(func(t, _, _ object) { t["one_in"] = -1 }),
		"left":     changed(func(t, _, _ object) { t["left"] = -1 }),
		"sum":      changed(func(_, r, _ object) { r["sum"] = object{"requests": uint64(1) << 60} }),
		"refused":  changed(func(_, r, _ object) { r["sum"] = object{"requests": 5, "refused": 6} }),
		"kept":     changed(func(_, r, _ object) { r["kept"] = 6 }),
		"would":    changed(func(_, r, _ object) { r["would"] = uint64(1) << 63 }),
		"escape":   changed(func(_, r, _ object) { r["rule"] = "\x1b[2J" }),
		"long":     changed(func(_, r, _ object) { r["rule"] = strings.Repeat("x", 5000) }),
		"hit":      changed(func(_, r, _ object) { r["hit"] = "9999-12-31T23:59:59-23:00" }),
		"twice":    text + lines[1] + "\n",
		"keys":     changed(func(_, r, _ object) { r["keys"] = object{"n": 1 << 40} }),
		"keys-low": changed(func(_, r, _ object) { r["keys"] = object{"n": 2, "low": []int{5, 4}} }),
		"above":    changed(func(_, r, _ object) { r["above"] = object{"n": 0, "low": []int{5}} }),
		"past": changed(func(_, r, _ object) {
			r["past"] = []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
		}),
		"row-sum":      changed(func(_, _, w object) { w["sum"] = object{"requests": 1000} }),
		"row-past":     changed(func(_, _, w object) { w["past"] = bytes.Repeat([]byte{0xf0, 1}, 10_000) }),
		"row-used":     changed(func(_, _, w object) { w["used"] = 251 }),
		"row-name":     changed(func(_, _, w object) { w["client"] = "\u202e" }),
		"rows":         text + strings.Repeat(lines[2]+"\n", 1000),
		"row-first":    lines[0] + "\n" + lines[2] + "\n",
		"names":        text + `n{"id": 1}` + "\n",
		"letter":       text + "x{}\n",
		"empty-line":   text + "\n\n",
		"null":         text + "rnull\nrnull\n",
		"not-json":     "[]",
		"no-lines":     "",
		"line-too-big": strings.Repeat(" ", 1<<20) + text,
		"too-large":    text + strings.Repeat("r{}\n", 16<<20),
	}
	for name := range bad {
		join(t, r, name, top.Options{})
	}
	for name, text := range bad {
		var b strings.Builder
		z := gzip.NewWriter(&b)
		if _, err := z.Write([]byte(text)); err != nil || z.Close() != nil {
			t.Fatal(err)
		}
		if _, err := r.Do(t.Context(), "SET", strings.TrimSuffix(key, "b")+name, b.String()); err != nil {
			t.Fatal(err)
		}
	}
	join(t, r, "list", top.Options{})
	if _, err := r.Do(t.Context(), "LPUSH", strings.TrimSuffix(key, "b")+"list", "x"); err != nil {
		t.Fatal(err)
	}
	join(t, r, "huge", top.Options{})
	if _, err := r.Do(t.Context(), "SETRANGE", strings.TrimSuffix(key, "b")+"huge", "100000000", "x"); err != nil {
		t.Fatal(err)
	}
	c := joinHour(t, r, "c", rs)
	var got top.HourOfRule
	err = redistest.Until(t.Context(), func(context.Context) error { // a and b may be late
		if got = must(c.hour.Rule(t.Context(), top.Query{Rule: "api", K: 10})); len(got.Nodes) != 3 {
			return fmt.Errorf("only %v have answered", got.Nodes)
		}
		return nil
	})
	if err != nil || got.Requests != 5 || len(got.Clients) != 1 || len(got.NodesMissing) != len(bad)+2 || !strings.Contains(got.Partial, "makes no sense") {
		t.Errorf("of %v, without %v: %d requests: %s", got.Nodes, got.NodesMissing, got.Requests, got.Partial)
	}
}

// TestABadListIsReadOnce checks that an invalid list isn't read again while the node waits for others.
func TestABadListIsReadOnce(t *testing.T) {
	t.Parallel() // the test mostly waits
	r := redistest.New(t, redistest.Options{})
	a := joinHour(t, r, "a", compile(t))
	join(t, r, "bad", top.Options{})
	for _, question := range []string{"hot", "rules"} {
		if _, err := r.Do(t.Context(), "SET", toldKey(question, "bad"), "x"); err != nil {
			t.Fatal(err)
		}
	}
	reads := func() string {
		info, err := r.Info(t.Context(), "commandstats")
		if err != nil {
			t.Fatal(err)
		}
		calls, _, _ := strings.Cut(info["cmdstat_getrange"], ",")
		return calls
	}
	if got := a.hour.Hot(t.Context(), top.Query{K: 1}); !strings.Contains(got.Partial, `the list of "bad" in Redis makes no sense`) || reads() != "calls=1" {
		t.Errorf("%s: %s reads", got.Partial, reads())
	}
	if got := must(a.hour.Rules(t.Context())); !strings.Contains(got.Partial, `the list of "bad" in Redis makes no sense`) || !slices.Equal(got.NodesMissing, []string{"bad"}) || reads() != "calls=2" {
		t.Errorf("%s: %s reads", got.Partial, reads())
	}
}

// TestThePermissionsInTheDocs checks that the Redis permissions in the docs are enough to ask and to answer.
func TestThePermissionsInTheDocs(t *testing.T) {
	t.Parallel() // the test mostly waits
	text, err := os.ReadFile("../../../../docs/reference/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := strings.Cut(string(text), "\nuser weir on >PASSWORD ")
	if !found {
		t.Fatal("docs/reference/redis.md says no permissions")
	}
	line, _, _ = strings.Cut(line, "\n")
	r := redistest.New(t, redistest.Options{})
	if _, err := r.Do(t.Context(), append(strings.Fields("ACL SETUSER weir on >secret"), strings.Fields(line)...)...); err != nil {
		t.Fatal(err)
	}
	rs := compile(t, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerHour(30)}})
	a, _ := joinAt(t, "redis://weir:secret@"+r.Addr, "a", rs, "ours"), joinAt(t, "redis://weir:secret@"+r.Addr, "b", rs, "ours")
	for {
		hot := a.hour.Hot(t.Context(), top.Query{K: 1})
		if usage := must(a.hour.Rules(t.Context())); len(hot.Nodes) == 2 && len(usage.Nodes) == 2 {
			break
		}
		if refused, err := r.Do(t.Context(), "ACL", "LOG"); err != nil || len(refused.([]any)) > 0 {
			t.Fatalf("%v: %v", err, refused)
		}
	}
}

// TestForgedQuestions checks that forged questions don't affect those of nodes, and that a node without Redis answers
// from its own data.
func TestForgedQuestions(t *testing.T) {
	t.Parallel() // the test mostly waits
	r := redistest.New(t, redistest.Options{})
	rs := compile(t, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerHour(30)}})
	a, b := joinHour(t, r, "a", rs), joinHour(t, r, "b", rs)
	if _, err := b.limiter.Check(t.Context(), &weir.Request{APIKey: "sk_prod_0123456789abcdef"}); err != nil {
		t.Fatal(err)
	}
	now := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	for _, q := range []string{"rule:" + strings.Repeat("x", 5000), "rule:\x00", "client:zzzzzzzz", "client:", "nothing", "rule:"} {
		if _, err := r.Do(t.Context(), "ZADD", "weir{top}questions", now, q); err != nil {
			t.Fatal(err)
		}
	}
	print := a.top.Fingerprint(&weir.Request{APIKey: "sk_prod_0123456789abcdef"})
	if who, err := a.resolve(t, print); err != nil || who.Value != "sk_prod_0123456789abcdef" {
		t.Errorf("%v: %s", err, who.Kind)
	}
	if _, err := a.resolve(t, "00000000"); err != top.ErrUnknownClient {
		t.Error(err)
	}
	r.Kill()
	for {
		got := must(a.hour.Rules(t.Context()))
		if len(got.Nodes) == 1 && strings.Contains(got.Partial, "alone") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
}
