package rulestore

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// Whatever unexpected data Redis has beside or instead of versions, nodes keep their rules, new nodes never start over
// with their seed, and the rules can be changed.
func TestOddEntriesInRedis(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   []string // a command
		healed  bool     // a node that has the version repairs the store
		without string   // the rules of a new node if no node repairs the store; "" means none
	}{
		"a member that is no number":  {[]string{"ZADD", "weir{rules}numbers", "99", "abc"}, true, "two"},
		"a negative member":           {[]string{"ZADD", "weir{rules}numbers", "-7", "-7"}, true, "two"},
		"an infinite score":           {[]string{"ZADD", "weir{rules}numbers", "inf", "9"}, true, "two"},
		"a fraction":                  {[]string{"ZADD", "weir{rules}numbers", "9.5", "9.5"}, true, "two"},
		"another number's score":      {[]string{"ZADD", "weir{rules}numbers", "50", "1"}, true, "two"},
		"a number without a version":  {[]string{"ZADD", "weir{rules}numbers", "9", "9"}, true, "two"},
		"nothing known of the newest": {[]string{"HDEL", "weir{rules}about", "2"}, true, "one"},
		"nonsense about the newest":   {[]string{"HSET", "weir{rules}about", "2", "nonsense"}, true, "one"},
		"a list about the newest":     {[]string{"HSET", "weir{rules}about", "2", "[]"}, true, "one"},
		"null about the newest":       {[]string{"HSET", "weir{rules}about", "2", "null"}, true, "one"},
		"a hash that is a number":     {[]string{"HSET", "weir{rules}about", "2", `{"parent": 1, "hash": 7}`}, true, "one"},
		"no text":                     {[]string{"HDEL", "weir{rules}texts", "2"}, true, "one"},
		"no texts":                    {[]string{"DEL", "weir{rules}texts"}, true, ""},
		"another text":                {[]string{"HSET", "weir{rules}texts", "2", "spoiled"}, false, "one"},
		"half of the text":            {[]string{"HSET", "weir{rules}texts", "2", "tw"}, false, "one"},
		"no numbers":                  {[]string{"DEL", "weir{rules}numbers"}, true, "seed"},
		"nothing known of any":        {[]string{"DEL", "weir{rules}about"}, true, ""},
		"nonsense of a node":          {[]string{"HSET", "weir{nodes}said", "old", "nonsense"}, true, "two"},
		"a list of a node":            {[]string{"HSET", "weir{nodes}said", "old", "[7]"}, true, "two"},
		"numbers of another type":     {[]string{"SET", "weir{rules}numbers", "x"}, true, ""},
		"knowledge of another type":   {[]string{"SET", "weir{rules}about", "x"}, true, ""},
		"texts of another type":       {[]string{"SET", "weir{rules}texts", "x"}, true, ""},
		"orphans of another type":     {[]string{"SET", "weir{rules}orphans", "x"}, true, "two"},
		"nodes of another type":       {[]string{"SET", "weir{nodes}", "x"}, true, "two"},
		"what they said, likewise":    {[]string{"SET", "weir{nodes}said", "x"}, true, "two"},
	} {
		t.Run(name, func(t *testing.T) {
			r := redistest.New(t, redistest.Options{})
			s := overRedis(t, "redis://"+r.Addr)
			old := newNode(s, "old", never, Version{})
			old.publish(t, "one")
			old.publish(t, "two")
			old.Look(t.Context())
			do(t, r, c.spoil...)

			alone := seeded(s, "alone", never, "seed")
			if c.without != "seed" { // a store without numbers looks empty to a new node, except that a live node has reported a version
				alone.Look(t.Context())
			}
			if got := string(alone.Current().Text); c.without != "seed" && got != c.without {
				t.Errorf("a new node decides by %q, want %q", got, c.without)
			}
			old.Look(t.Context())
			old.Look(t.Context())
			if got := string(old.Current().Text); got != "two" {
				t.Errorf("the old node decides by %q", got)
			}
			fresh := seeded(s, "fresh", never, "seed")
			fresh.Look(t.Context())
			if got := string(fresh.Current().Text); c.healed && got != "two" || !c.healed && got != c.without {
				t.Errorf("another new node decides by %q", got)
			}
			if v := old.publish(t, "three"); v.Number < 3 {
				t.Errorf("the next is %s", v.Name())
			}
			for _, n := range []*node{alone, fresh} {
				n.Look(t.Context())
				if got := string(n.Current().Text); got != "three" {
					t.Errorf("%s decides by %q at last", n.o.Node.Name, got)
				}
				if n.log.count("seed of") != 0 {
					t.Errorf("%s has applied its seed", n.o.Node.Name)
				}
			}
		})
	}
}

// Each version is fetched once, and rejected once.
func TestLooksReadLittle(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := overRedis(t, "redis://"+r.Addr)
	var last Version
	write := func(text string) {
		next := last.Next()
		next.Author, next.Text = "ada", []byte(text)
		var err error
		if last, err = s.Append(t.Context(), 0, next); err != nil {
			t.Fatal(err)
		}
	}
	fetched := func() (calls int) {
		for line := range strings.Lines(do(t, r, "INFO", "commandstats").(string)) {
			_, _ = fmt.Sscanf(line, "cmdstat_hget:calls=%d", &calls)
		}
		return calls
	}
	n := newNode(s, "n", never, Version{})
	look := func() int {
		n.Look(t.Context())
		gets := math.MaxInt
		for range 3 { // the store's own heartbeat may run during one of them
			before := fetched()
			n.Look(t.Context())
			gets = min(gets, fetched()-before)
		}
		return gets
	}
	write("good")
	if gets := look(); n.Current().Number != 1 || gets > 2 { // two are reads of the heartbeat itself
		t.Errorf("version %d is in force, and a look reads %d fields", n.Current().Number, gets)
	}
	write("bad")
	if gets := look(); n.Current().Number != 1 || n.Status().Rejected == nil || gets > 2 {
		t.Errorf("version %d is in force, rejected: %v, and a look reads %d fields", n.Current().Number, n.Status().Rejected, gets)
	}
	if got := n.log.count("rules rejected"); got != 1 {
		t.Errorf("logged %d times", got)
	}
	// A lost version is restored, also above one that was rejected.
	write("good again")
	n.Look(t.Context())
	n.publish(t, "newest")
	do(t, r, "ZREM", "weir{rules}numbers", "4")
	do(t, r, "HDEL", "weir{rules}about", "4")
	do(t, r, "HDEL", "weir{rules}texts", "4")
	n.Look(t.Context())
	wantHistory(t, s, "4-newest", "3-good again", "2-bad", "1-good")
}
