package redisstore

import (
	"encoding/binary"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

// TestSizing checks that requests leave as many bytes in Redis, besides counters, as docs/guides/sizing.md says, and for as
// long.
func TestSizing(t *testing.T) {
	docs, err := os.ReadFile("../docs/guides/sizing.md")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]int64{}
	for _, m := range regexp.MustCompile(`(?m)^\| (.+) \| (\d+) bytes \|`).FindAllStringSubmatch(string(docs), -1) {
		said[m[1]], _ = strconv.ParseInt(m[2], 10, 64)
	}
	month := counter.Limit{Algorithm: counter.FixedWindow, Count: 1_000_000_000, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}}
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "requests", Limits: []counter.Limit{{Count: 1_000_000, Window: 30 * 24 * time.Hour}}},
		{ID: "tokens", Amount: "tokens", Algorithm: counter.FixedWindow, Limits: []counter.Limit{month}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	const clients, each = 30, 100
	refund, settle := weir.Outcome{Abandoned: true}, weir.Outcome{Amounts: map[string]counter.Amount{"tokens": counter.Whole(7)}}
	for what, c := range map[string]struct {
		id      bool
		receipt bool
		reserve time.Duration
		end     *weir.Outcome
		lasts   time.Duration // of what is left, at most
	}{
		"a refund by receipt":                     {receipt: true, end: &refund, lasts: time.Hour},
		"a settlement by receipt":                 {receipt: true, reserve: time.Hour, end: &settle, lasts: time.Hour},
		"a refund or settlement of an `id`":       {id: true, receipt: true, end: &refund},
		"an `id`, for each rule":                  {id: true, lasts: 70 * time.Second},
		"an `id` with a receipt, for each rule":   {id: true, receipt: true, lasts: 70 * time.Minute},
		"a settlement of a reservation with `id`": {id: true, receipt: true, reserve: time.Hour, end: &settle},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := redistest.New(t, redistest.Options{})
			s := open(t, Options{URL: "redis://" + r.Addr})
			l := weir.NewLimiter(s, rules, weir.Options{Now: s.Now})
			send := func(i int, req weir.Request) {
				t.Helper()
				req.APIKey, req.Amounts = fmt.Sprint("k", i%clients), map[string]counter.Amount{"tokens": counter.Whole(9)}
				d, err := l.Check(t.Context(), &req)
				if err != nil || !d.Allowed {
					t.Fatalf("%+v: %v", d, err)
				}
				if c.end != nil && req.Receipt {
					if err := l.Finish(t.Context(), &weir.Decision{Receipt: d.Receipt}, *c.end); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i := range clients {
				send(i, weir.Request{})
			}
			for i := range clients * each {
				req := weir.Request{Receipt: c.receipt, Reserve: c.reserve}
				if c.id {
					binary.LittleEndian.PutUint64(req.Repeat[:], uint64(i+1))
					req.Repeat[15] = 1
				}
				send(i, req)
			}
			got := int64(0)
			for _, key := range do(t, r, "KEYS", "*").([]any) {
				name := key.(string)
				if !strings.Contains(name, "once:") && !strings.HasSuffix(name, ".h") && !strings.HasSuffix(name, ".e") {
					continue
				}
				const ttl = 40 // what a TTL takes beside what Redis says of a key: an entry in another table, and its places there
				got += do(t, r, "MEMORY", "USAGE", name, "SAMPLES", "0").(int64) + ttl
				if ms := do(t, r, "PTTL", name).(int64); ms < 0 || time.Duration(ms)*time.Millisecond > c.lasts {
					t.Errorf("%s lasts %d ms, want %v at most", name, ms, c.lasts)
				}
			}
			got /= clients * each
			if strings.Contains(what, "each rule") {
				got /= 2
			}
			t.Logf("%d bytes", got)
			if c.lasts == 0 {
				if got > 0 {
					t.Errorf("%d bytes are left of each", got)
				}
			} else if want := said[what]; got > want*6/5 || got < want*4/5 {
				t.Errorf("%d bytes, and the docs say %d", got, want)
			}
		})
	}
}
