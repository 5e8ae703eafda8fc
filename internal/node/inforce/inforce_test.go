package inforce_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/memstore"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestAnOverrideExpires checks that an override expires by itself, under the same rule version.
func TestAnOverrideExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := fmt.Sprintf("rules: [{id: all, limit: 5/hour, override: {vip: {limit: 50/hour, expires: %q}}}]", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		doc, err := inforce.Parse("rules", []byte(text), 7)
		if err != nil {
			t.Fatal(err)
		}
		l := weir.NewLimiter(memstore.New(memstore.Options{Now: time.Now}), doc.File.Set, weir.Options{})
		source := inforce.FromFile("rules.yaml", doc, l, slog.New(slog.DiscardHandler))
		limit := func() int64 {
			d, err := l.Check(t.Context(), &weir.Request{APIKey: "vip", Peek: true})
			if err != nil {
				t.Fatal(err)
			}
			return d.Policy.Limit.Count
		}
		if limit() != 50 {
			t.Errorf("the limit is %d, want the override's", limit())
		}
		began := time.Now()
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if limit() != 5 || source.InForce().Version != 7 {
			t.Errorf("the limit is %d at version %d after the override has expired", limit(), source.InForce().Version)
		}
		if since := source.InForce().Since; !since.Equal(began) {
			t.Errorf("in force since %s, want %s: an override that expires makes no new rules", since, began)
		}
	})
}

// TestAnOverrideExpiresByTheSharedClock checks that an override expires by the shared clock, whatever the node's own
// clock says, even if the node learns the shared time only after it has read the rules.
func TestAnOverrideExpiresByTheSharedClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := fmt.Sprintf("rules: [{id: all, limit: 5/hour, override: {vip: {limit: 50/hour, expires: %q}}}]", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		var ahead atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		doc, err := inforce.Parse("rules", []byte(text), 7)
		if err != nil {
			t.Fatal(err)
		}
		l := weir.NewLimiter(memstore.New(memstore.Options{Now: time.Now}), doc.File.Set, weir.Options{Now: now})
		inforce.FromFile("rules.yaml", doc, l, slog.New(slog.DiscardHandler))
		for _, step := range []struct {
			ahead time.Duration
			limit int64
		}{{2 * time.Hour, 5}, {-2 * time.Hour, 50}, {0, 50}, {59 * time.Minute, 50}, {time.Hour, 5}} {
			ahead.Store(int64(step.ahead))
			time.Sleep(2 * time.Second)
			synctest.Wait()
			d, err := l.Check(t.Context(), &weir.Request{APIKey: "vip", Peek: true})
			if err != nil || d.Policy.Limit.Count != step.limit {
				t.Errorf("with a clock that is %v ahead: the limit is %d, want %d; %v", step.ahead, d.Policy.Limit.Count, step.limit, err)
			}
		}
	})
}

// If a node's own clock is ahead, no override expires early. That holds for rules from a file and for seeds, which the
// node reads before it knows the shared time.
func TestAClockThatIsAheadExpiresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := fmt.Sprintf("rules: [{id: all, limit: 5/hour, override: {vip: {limit: 50/hour, expires: %q}}}]", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		shared := time.Now()
		time.Sleep(2 * time.Hour) // the override has expired by this node's clock
		doc, err := inforce.Parse("rules", []byte(text), 7)
		if err != nil {
			t.Fatal(err)
		}
		l := weir.NewLimiter(memstore.New(memstore.Options{Now: time.Now}), nil, weir.Options{Now: func() time.Time { return shared }})
		inforce.FromFile("rules.yaml", doc, l, slog.New(slog.DiscardHandler))
		if d, err := l.Check(t.Context(), &weir.Request{APIKey: "vip"}); err != nil || d.Policy.Limit.Count != 50 || d.Remaining != 49 {
			t.Errorf("the limit is %d, and %d are left, want 50 and 49; %v", d.Policy.Limit.Count, d.Remaining, err)
		}
	})
}

// A node without Redis uses its seed rules if its data folder is empty, even if the folder can't be written, because
// nobody can have blocked anything there.
func TestAnEmptyFolderThatCantBeWritten(t *testing.T) {
	seed, err := inforce.Parse("rules", []byte("rules: [{id: all, limit: 5/hour}]"), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, empty := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "data")
		dir, err := rulestore.OpenDir(path)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		if err := os.RemoveAll(path); err != nil { // makes writes fail, as on a full disk
			t.Fatal(err)
		}
		limiter := weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{})
		o := rulestore.Options{Store: dir, Node: rulestore.Node{Name: "n1"}, Logger: slog.New(slog.DiscardHandler)}
		s := inforce.FromStore(t.Context(), o, inforce.Start{Seed: seed, Message: "seed", Empty: empty}, limiter)
		if (s.Waiting() == "") != empty || (s.Stale() != "") != empty {
			t.Errorf("empty %v: waiting %q, stale %q", empty, s.Waiting(), s.Stale())
		}
	}
}

// When a file's rules come into force, at the start and on each save, the log has lint's warnings. It has no more of
// them than people would read, and no keys.
func TestWarningsAreLogged(t *testing.T) {
	const key = "sk_live_abcdefgh12345678"
	var many strings.Builder
	fmt.Fprintf(&many, "blacklist: [%s]\nrules:\n", key)
	for i := range 30 {
		fmt.Fprintf(&many, "  - {id: r%d, limit: 5/min, by: [api_key, ip], override: {%s: {limit: 6/min}}}\n", i, key)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	save := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	save("rules: [{id: login, limit: 5/min, by: [ip], layer: one}, {id: other, limit: 5/min, by: [ip], layer: one}]")
	doc, err := inforce.ReadFile(path, 1)
	if err != nil {
		t.Fatal(err)
	}
	l := weir.NewLimiter(memstore.New(memstore.Options{}), doc.File.Set, weir.Options{})
	log := make(lines, 100)
	source := inforce.FromFile(path, doc, l, slog.New(slog.NewTextHandler(log, nil)))
	if len(log) != 1 {
		t.Fatalf("%d lines at the start, want 1", len(log))
	}
	if got := <-log; !strings.Contains(got, "level=WARN") || !strings.Contains(got, "rules.yaml:1:") || !strings.Contains(got, `never applies: \"login\" goes before it`) {
		t.Errorf("at the start: %s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx) }()
	save(many.String())
	warnings := 0
	for got := <-log; !strings.Contains(got, "and 10 more warnings"); got = <-log {
		if strings.Contains(got, key) {
			t.Errorf("the log has a key in it: %s", got)
		}
		if strings.Contains(got, `\"sk_liv…78\" on the deny list`) {
			warnings++
		}
	}
	if warnings != 20 {
		t.Errorf("%d warnings, want 20", warnings)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// lines receives the lines of a log.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// If a node has kept rules that block a key, and the rule store has gone on without them, the node warns until the key
// is blocked again.
func TestBlocksThatWereGivenUp(t *testing.T) {
	dir, err := rulestore.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	const blocked, open = "blacklist: [sk_leaked_123456, 192.0.2.0/24]\nrules: []\n", "rules: []\n"
	write := func(text string) {
		t.Helper()
		head, err := dir.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		next := head.Next()
		next.Author, next.Text = "bob", []byte(text)
		if _, err := dir.Append(t.Context(), 0, next); err != nil {
			t.Fatal(err)
		}
	}
	write(open)
	write("blacklist: [192.0.0.0/16]\nrules: []\n") // this block covers one of the two
	kept := rulestore.Copy{Path: t.TempDir()}
	lost, err := rulestore.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	if err := lost.PutBack(t.Context(), rulestore.Version{Number: 9, Parent: 8, ParentHash: "8888", Author: "ann", Time: time.Now(), Text: []byte(blocked)}); err != nil {
		t.Fatal(err)
	}
	v, err := lost.Get(t.Context(), 9)
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.Save(v); err != nil {
		t.Fatal(err)
	}
	seed, err := inforce.Parse("rules", []byte(open), 0)
	if err != nil {
		t.Fatal(err)
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{})
	told := &reports{Store: dir}
	o := rulestore.Options{Store: told, Node: rulestore.Node{Name: "n1"}, Logger: slog.New(slog.DiscardHandler)}
	s := inforce.FromStore(t.Context(), o, inforce.Start{Seed: seed, Message: "seed", Copy: &kept}, limiter)
	if got := s.InForce().Version; got != 2 {
		t.Fatalf("version %d is in force", got)
	}
	warned := func(want string) {
		t.Helper()
		got := s.Warning()
		if want == "" && got != "" || !strings.Contains(got, want) || strings.Contains(got, "sk_leaked") {
			t.Errorf("the warning is %q, want %q", got, want)
		}
	}
	warned("1 of the entries that it blocks pass now: weir rules show --version 9-")
	publish := func(text string) {
		t.Helper()
		newest, err := s.Newest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		next := newest.Next()
		next.Text = []byte(text)
		if _, err := s.Publish(t.Context(), next); err != nil {
			t.Fatal(err)
		}
	}
	publish(open)
	warned("2 of the entries that it blocks pass now: weir rules show --version 9-")
	if !strings.Contains(told.last.Warning, "version 9-") {
		t.Errorf("the node reports %v", told.last)
	}
	publish("blacklist: [sk_leaked_*, 192.0.2.0/24]\nrules: []\n")
	warned("")
	publish(open) // now the key is unblocked on purpose
	warned("")
}

// reports is a store that keeps the node's last report about itself.
type reports struct {
	rulestore.Store
	last rulestore.Node
}

func (r *reports) Beat(ctx context.Context, n rulestore.Node, kept ...rulestore.Version) (rulestore.Pulse, error) {
	r.last = n
	return r.Store.Beat(ctx, n, kept...)
}
