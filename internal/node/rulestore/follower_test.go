package rulestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/internal/redistest"
)

// never is a poll interval longer than any test.
const never = 24 * time.Hour

// Whatever messages and heads a node gets, late, repeated, out of order or made up, the versions that it applies only
// rise, and in the end it has the newest.
func TestVersionsOnlyRise(t *testing.T) {
	path := t.TempDir()
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		d, err := OpenDir(fmt.Sprint(path, "/", round))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		n := newNode(d, "n", never, Version{})
		ctx := context.Background()
		var good int64
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			head, _ := d.Head(ctx)
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				text := rapid.SampledFrom([]string{"good", "good", "bad"}).Draw(t, "text")
				floor := rapid.Int64Range(0, head.Number+3).Draw(t, "floor")
				v, err := d.Append(ctx, floor, Version{Parent: head.Number, Text: []byte(text)})
				if err != nil {
					t.Fatal(err)
				}
				if text == "good" {
					good = v.Number
				}
			case 2:
				n.Wake()
			case 3: // the result of a slow poll
				old, err := d.Get(ctx, rapid.Int64Range(1, head.Number+3).Draw(t, "number"))
				if err == nil && string(old.Text) == "good" {
					_ = n.Follower.apply(old, Version{Number: rapid.Int64Range(0, head.Number).Draw(t, "in place of")}, nil)
				}
			case 4:
				n.Look(ctx)
			}
		}
		n.Look(ctx)
		numbers := n.numbers()
		if !slices.IsSorted(numbers) || len(slices.Compact(slices.Clone(numbers))) != len(numbers) {
			t.Errorf("applied %v", numbers)
		}
		if got := n.Current().Number; got != good {
			t.Errorf("%d is in force, and the newest that can be is %d", got, good)
		}
		head, _ := d.Head(ctx)
		if wrong := n.Status().Rejected; (wrong != nil) != (head.Number != good) {
			t.Errorf("rejected: %v, with %d in force and %d the newest", wrong, good, head.Number)
		}
	})
}

func TestPublishAppliesHereAtOnce(t *testing.T) {
	d := openDir(t, t.TempDir())
	n := newNode(d, "n", never, Version{})
	v, err := n.Publish(t.Context(), Version{Author: "ann", Text: []byte("one")})
	if err != nil || v.Number != 1 || n.Current().Number != 1 {
		t.Errorf("published %v, %v, in force %v", v, err, n.Current())
	}
	if _, err := n.Publish(t.Context(), Version{Text: []byte("late")}); !errors.Is(err, ErrConflict) {
		t.Errorf("based on an older version: %v", err)
	}
	v, err = n.Publish(t.Context(), Version{Parent: 1, Text: []byte("bad rule")})
	if v.Number != 2 || err == nil || !strings.Contains(err.Error(), "version 2 is written, but can't be applied: line 1") {
		t.Errorf("what can't be applied: %v, %v", v, err)
	}
	if n.Current().Number != 1 {
		t.Errorf("in force: %v", n.Current())
	}
}

// If a version can't be applied, the node logs that once, and tries the next version.
func TestABadVersionIsRejected(t *testing.T) {
	d := openDir(t, t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := newNode(d, "n", 2*time.Second, Version{})
		go n.Run(ctx)
		write(t, d, "good")
		bad := write(t, d, "bad rule")
		time.Sleep(time.Minute) // virtual time
		synctest.Wait()
		if got := n.Current().Number; got != 1 {
			t.Errorf("%d is in force", got)
		}
		if err := n.Status().Rejected; err == nil || err.Error() != "version 2: line 1: bad rule" {
			t.Errorf("rejected: %v", err)
		}
		if got := n.log.count("rules rejected"); got != 1 {
			t.Errorf("logged %d times:\n%s", got, n.log.text.String())
		}
		if got := n.log.count(fmt.Sprintf("version=%d", bad.Number)); got != 1 {
			t.Errorf("its number was logged %d times", got)
		}
		write(t, d, "good again")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := n.Current().Number; got != 3 || n.Status().Rejected != nil {
			t.Errorf("%d is in force, rejected: %v", got, n.Status().Rejected)
		}
		cancel()
		synctest.Wait()
	})
}

// If a good version and then a bad one were written while a node was down, the node applies the good one.
func TestTheLastGoodVersionIsFound(t *testing.T) {
	d := openDir(t, t.TempDir())
	for _, text := range []string{"good", "good too", "bad", "bad as well"} {
		write(t, d, text)
	}
	n := newNode(d, "n", never, Version{})
	n.Look(t.Context())
	if err := n.Status().Rejected; n.Current().Number != 2 || err == nil || !strings.HasPrefix(err.Error(), "version 4: ") {
		t.Errorf("%d is in force, rejected: %v", n.Current().Number, err)
	}
	n.Look(t.Context())
	if got := n.log.count("rules rejected"); got != 2 {
		t.Errorf("logged %d times", got)
	}
}

// If a node can't read the rules that replaced the starter rules, it has no rules, rather than the starter rules again. It
// does go back to rules that an operator wrote.
func TestStarterRulesDontComeBack(t *testing.T) {
	for message, want := range map[string]int64{StarterMessage: 0, "seeded from ours.yaml": 1} {
		d := openDir(t, t.TempDir())
		for _, v := range []Version{{Author: "weir", Message: message, Text: []byte("good")}, {Parent: 1, Author: "ann", Text: []byte("bad")}} {
			if _, err := d.Append(t.Context(), 0, v); err != nil {
				t.Fatal(err)
			}
		}
		n := newNode(d, "n", never, Version{})
		n.Look(t.Context())
		if got := n.Current().Number; got != want || n.Status().Rejected == nil {
			t.Errorf("%s: %d is in force, not %d; rejected: %v", message, got, want, n.Status().Rejected)
		}
	}
}

// twoHundred starts 200 nodes on 20 connections that never poll, and returns them with a store to write to.
func twoHundred(t testing.TB) (nodes []*node, writer *Redis) {
	r := redistest.New(t, redistest.Options{})
	for i := range 20 {
		s := overRedis(t, "redis://"+r.Addr)
		for j := range 10 {
			n := newNode(s, fmt.Sprint("n", i, "-", j), never, Version{})
			n.run(t)
			nodes = append(nodes, n)
		}
	}
	writer = overRedis(t, "redis://"+r.Addr)
	listening(t, writer, nodes...)
	return nodes, writer
}

// Messages reach nodes that never poll.
func TestAMessageReachesEveryNode(t *testing.T) {
	nodes, writer := twoHundred(t)
	for i := range 5 {
		v := write(t, writer, fmt.Sprint("text ", i))
		for _, n := range nodes {
			until(t, n.has(v.Number))
		}
	}
	for _, n := range nodes {
		if !slices.IsSorted(n.numbers()) {
			t.Errorf("%s applied %v", n.o.Node.Name, n.numbers())
		}
	}
}

// BenchmarkTwoHundredNodes measures the time until the last node has a new version.
func BenchmarkTwoHundredNodes(b *testing.B) {
	nodes, writer := twoHundred(b)
	var took []time.Duration
	for b.Loop() {
		begun := time.Now()
		v := write(b, writer, "text")
		for _, n := range nodes {
			until(b, n.has(v.Number))
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// deaf is a store that gets messages through another store, which can be cut off.
type deaf struct {
	Store
	ear Store
}

func (d deaf) Watch(ctx context.Context, f func(int64)) { d.ear.Watch(ctx, f) }

// Without messages, polling finds a change. Once messages work again, nodes get them again.
func TestPollsFindWhatMessagesDont(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	proxy := redistest.NewProxy(t, r.Addr)
	s, ear := overRedis(t, "redis://"+r.Addr), overRedis(t, "redis://"+proxy.Addr)
	polling := newNode(deaf{s, ear}, "polling", 200*time.Millisecond, Version{})
	polling.run(t)
	waiting := newNode(deaf{s, ear}, "waiting", never, Version{})
	waiting.run(t)
	listening(t, s, polling, waiting)
	before := write(t, s, "one")
	until(t, waiting.has(before.Number))

	if err := proxy.DropReplies(); err != nil {
		t.Fatal(err)
	}
	v := write(t, s, "two")
	until(t, polling.has(v.Number))
	if got := waiting.Current().Number; got != before.Number {
		t.Errorf("who doesn't poll has %d", got)
	}
	proxy.Heal()
	until(t, func(context.Context) error { // the node gets a message about a version that was written after it has subscribed again
		if waiting.Current().Number > v.Number {
			return nil
		}
		write(t, s, "more")
		return errors.New("nothing heard yet")
	})
}

// If Redis comes back empty, nodes restore their rules and log that. The next version follows them.
func TestARedisThatLostItsData(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	var nodes []*node
	for i := range 3 {
		n := newNode(overRedis(t, "redis://"+r.Addr), fmt.Sprint("n", i), 100*time.Millisecond, Version{})
		n.run(t)
		nodes = append(nodes, n)
	}
	s := overRedis(t, "redis://"+r.Addr)
	for range 42 {
		write(t, s, "text")
	}
	for _, n := range nodes {
		until(t, n.has(42))
	}
	if err := r.RestartEmpty(); err != nil {
		t.Fatal(err)
	}
	until(t, func(ctx context.Context) error {
		head, err := s.Head(ctx)
		if err == nil && head.Number != 42 {
			err = fmt.Errorf("the newest is %v", head)
		}
		return err
	})
	v, err := s.Get(t.Context(), 42)
	if err != nil || v.Message != "restored: why" || v.Author != "ann" || string(v.Text) != "text" || v.Parent != 41 {
		t.Errorf("restored: %v, %v", v, err)
	}
	told, back := 0, 0
	for _, n := range nodes {
		until(t, n.logged(1, "the rule store can't be reached"))
		until(t, n.logged(1, "the rule store is back"))
		told += n.log.count("the rule store has lost versions")
		back += n.log.count("rules put back")
	}
	if told < 1 || told > len(nodes) || back < 1 || back > told {
		t.Errorf("%d nodes said that rules were lost, and %d that they are back", told, back)
	}
	if v = write(t, s, "new"); v.Number != 43 {
		t.Errorf("the next version is %d", v.Number)
	}
	for _, n := range nodes {
		until(t, n.has(43))
		if !slices.IsSorted(n.numbers()) {
			t.Errorf("%s applied %v", n.o.Node.Name, n.numbers())
		}
	}
}

// After Redis has lost its data, publishing doesn't have to wait for the next poll.
func TestPublishOnARedisThatLostItsData(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := overRedis(t, "redis://"+r.Addr)
	n := newNode(s, "n", never, Version{})
	for i := range int64(3) {
		if _, err := n.Publish(t.Context(), Version{Parent: i, Text: []byte("text")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Do(t.Context(), "FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	if v, err := n.Publish(t.Context(), Version{Parent: 3, Text: []byte("next")}); err != nil || v.Number != 4 {
		t.Errorf("published %d, %v", v.Number, err)
	}
	if all, err := s.List(t.Context(), 0, 10); err != nil || len(all) != 4 || all[0].Message != "" || all[1].Message != "restored: " || all[3].Message != "restored: " {
		t.Errorf("the history is %v, %v", all, err)
	}
}

// If a store was seeded again, and another node has a higher version, that version wins.
func TestTheHighestVersionWins(t *testing.T) {
	s := overRedis(t, "redis://"+redistest.New(t, redistest.Options{}).Addr)
	first := Version{Number: 42, Parent: 41, Author: "ann", Text: []byte("rules"), Time: time.Now()}
	old := newNode(s, "old", never, first)
	fresh := newNode(s, "fresh", never, Version{})
	if _, err := fresh.Publish(t.Context(), Version{Text: []byte("seed")}); err != nil {
		t.Fatal(err)
	}
	old.Look(t.Context())
	fresh.Look(t.Context())
	if got := fresh.Current(); got.Number != 42 || string(got.Text) != "rules" {
		t.Errorf("in force: %v", got)
	}
	if len(old.numbers()) != 0 {
		t.Errorf("the old node applied %v", old.numbers())
	}
}

// If Redis has lost its data, a new node doesn't write its seed while other nodes have rules.
func TestASeedDoesntReplaceTheRulesOfNodes(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := overRedis(t, "redis://"+r.Addr)
	old := newNode(s, "old", never, Version{})
	for i := range int64(3) {
		if _, err := old.Publish(t.Context(), Version{Parent: i, Text: []byte("rules")}); err != nil {
			t.Fatal(err)
		}
	}
	do(t, r, "FLUSHALL")
	if p, err := s.Beat(t.Context(), Node{Name: "old", RulesVersion: 3}); p.Head.Number != 0 || err != nil { // the old node is about to restore its version
		t.Fatal(p, err)
	}
	until(t, says(s, 3))
	fresh := newNode(overRedis(t, "redis://"+r.Addr), "fresh", never, Version{})
	if v, err := fresh.Publish(t.Context(), Version{Text: []byte("seed")}); !errors.Is(err, ErrConflict) {
		t.Errorf("seeded: %v, %v", v, err)
	}
	old.Look(t.Context())
	fresh.Look(t.Context())
	if got := fresh.Current(); got.Number != 3 || string(got.Text) != "rules" {
		t.Errorf("in force: %v", got)
	}
}

// While Redis is down, the rules stay in force. A change that another node made in the meantime arrives when Redis is
// back.
func TestRulesStayWhileRedisIsAway(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	proxy := redistest.NewProxy(t, r.Addr)
	s := overRedis(t, "redis://"+r.Addr)
	n := newNode(overRedis(t, "redis://"+proxy.Addr), "n", 100*time.Millisecond, Version{})
	n.run(t)
	write(t, s, "one")
	until(t, n.has(1))
	proxy.Down()
	until(t, n.logged(1, "the rule store can't be reached"))
	write(t, s, "two")
	if _, err := n.Publish(timeout(t), Version{Parent: 1, Text: []byte("no")}); err == nil || errors.Is(err, ErrConflict) {
		t.Errorf("published: %v", err)
	}
	if n.Current().Number != 1 {
		t.Errorf("in force: %v", n.Current())
	}
	if err := proxy.Up(); err != nil {
		t.Fatal(err)
	}
	until(t, n.has(2))
	until(t, n.logged(1, "the rule store is back"))
	if got := n.log.count("can't be reached"); got != 1 {
		t.Errorf("the loss was logged %d times", got)
	}
}

// timeout returns a context that ends after 200 ms.
func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
