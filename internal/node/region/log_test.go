package region

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// journal is a log that tests can read.
type journal struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

// with returns the lines that contain all of the given texts.
func (j *journal) with(texts ...string) (found []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
lines:
	for line := range strings.Lines(j.text.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}

// listen makes a link that isn't running yet log to a journal.
func listen(l *Link) *journal {
	j := &journal{}
	l.log = slog.New(slog.NewTextHandler(j, nil))
	return j
}

// TestRegionsThatWereNeverHeard checks that a region that never responds is logged once, with the reason, as soon as it
// counts as silent.
func TestRegionsThatWereNeverHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sites := world(t, time.Now, "us", "eu")
		us, eu := sites[0], sites[1]
		log := listen(eu.link)
		eu.link.peers["us"].heard = time.Now()
		us.cut.Store(true)
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = eu.link.Run(ctx) })
		defer all.Wait()
		defer stop()
		begun := time.Now()
		for _, c := range []struct {
			at          time.Duration
			lost, there int
		}{
			{silentAfter - beatEvery/2, 0, 0},
			{silentAfter + 3*beatEvery/2, 1, 0},
			{time.Hour, 1, 0},
			{time.Hour + 2*beatEvery, 1, 1},
		} {
			us.cut.Store(c.there == 0)
			time.Sleep(time.Until(begun.Add(c.at)))
			synctest.Wait()
			lost, there := log.with("region can't be reached", "region=us", "cut off"), log.with("region is there", "region=us")
			if len(lost) != c.lost || len(there) != c.there {
				t.Errorf("after %v: %q, %q", c.at, lost, there)
			}
		}
	})
}

// TestStrangers checks that the first message from a region that isn't a peer is logged, for up to sixteen names.
func TestStrangers(t *testing.T) {
	us := world(t, time.Now, "us", "eu")[0]
	log := listen(us.link)
	hear := func(from string) {
		t.Helper()
		text, err := json.Marshal(message{From: from, To: "us"})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		us.link.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(text)))
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", from, w.Code, w.Body)
		}
	}
	const says = "isn't in regions.peers"
	hear("eu")
	if lines := log.with(says); len(lines) > 0 {
		t.Errorf("a peer: %q", lines)
	}
	for i := range 20 {
		for range 3 {
			hear(fmt.Sprint("x", i, "x"))
		}
		if lines := log.with(says, fmt.Sprint("region=x", i, "x")); i < 16 && len(lines) != 1 || i >= 16 && len(lines) > 0 {
			t.Errorf("region %d: %q", i+1, lines)
		}
	}
}

// TestRulesWithoutAHome checks that rules with an unknown home are logged once per rule set, however often the
// fingerprint is computed.
func TestRulesWithoutAHome(t *testing.T) {
	us := world(t, time.Now, "us", "eu")[0]
	log := listen(us.link)
	const says = "a rule's home is a region that this node doesn't know"
	for i := range 3 {
		rules := weir.Rules{Version: 1}
		for _, home := range []string{"", "us", "eu", "mars", "venus"} {
			rules.Rules = append(rules.Rules, weir.Rule{ID: "r" + home, Global: true, Home: home, Limits: []counter.Limit{counter.PerMinute(int64(100 + i))}})
		}
		rules.Rules = append(rules.Rules, weir.Rule{ID: "own", Limits: []counter.Limit{counter.PerMinute(100)}})
		set, err := weir.Compile(rules)
		if err != nil {
			t.Fatal(err)
		}
		us.link.limiter.Load().SetRules(set)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 100 {
					us.link.rules()
				}
			})
		}
		all.Wait()
		for _, home := range []string{"mars", "venus"} {
			if lines := log.with(says, "rule=r"+home, "home="+home); len(lines) != i+1 {
				t.Errorf("rule set %d: %q", i+1, lines)
			}
		}
		if lines := log.with(says); len(lines) != 2*(i+1) {
			t.Errorf("rule set %d: %q", i+1, lines)
		}
	}
}
