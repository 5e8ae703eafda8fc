package top

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestBombs: however much a small value in Redis unpacks to, reading it takes no more memory than a list of a node may.
func TestBombs(t *testing.T) {
	now := time.Now().UTC()
	head := fmt.Sprintf(`{"at": %q, "began": %q, "one_in": 1}`+"\n", now.Format(time.RFC3339), now.Format(time.RFC3339))
	numbered := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	print := uint32(7)
	for name, text := range map[string]string{
		"rules":  head + numbered("r{\"rule\":\"%d\"}\n", 1<<19),
		"keys":   head + "r{}\n" + strings.Repeat("k{}\n", 1<<20),
		"nulls":  head + "r{}\n" + strings.Repeat("knull\n", 1<<20),
		"names":  head + strings.Repeat(`n{"id":30064771073}`+"\n", 1<<20),
		"low":    head + `r{"keys":{"n":1,"low":[` + strings.Repeat("0,", 8<<20) + "0]}}\n",
		"blanks": head + strings.Repeat(strings.Repeat(" ", 60<<10)+"\n", 600),
		"head":   strings.Repeat(" ", 61<<20) + head,
		"list":   head + strings.Repeat("c"+`{"kind":"api_key"}`+"\n", 1<<20),
		"pairs":  head + strings.Repeat("p"+`{"kind":"api_key"}`+"\n", 1<<20),
		"fields": head + strings.Repeat(`r{`+strings.Repeat(`"rule":"",`, 6000)+`"rule":""}`+"\n", 1000),
	} {
		b := zipped(t, text)
		if len(b) > mostTold {
			t.Fatalf("%s has %d bytes", name, len(b))
		}
		for reader, read := range map[string]func(left *int) error{
			"told": func(left *int) error {
				_, err := unpackTold(b, left, question{client: &print}, now, time.Time{})
				return err
			},
			"list": func(left *int) error {
				_, err := unpackList(b, left, now, time.Time{})
				return err
			},
		} {
			left := unpacked * mostTold
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := read(&left)
			runtime.ReadMemStats(&after)
			if taken := after.TotalAlloc - before.TotalAlloc; err == nil || taken > 4*unpacked*mostTold {
				t.Errorf("%s as %s: %v, and %d MiB taken for %d bytes", name, reader, err, taken>>20, len(b))
			}
		}
	}
}

// TestOldAnswersAreNotRead beyond their first line: nodes look for new ones many times a second.
func TestOldAnswersAreNotRead(t *testing.T) {
	now := time.Now().UTC()
	answer := told{At: now, OneIn: 1, Rules: make([]toldRule, 1)}
	list := List{At: now, Began: now, OneIn: 1, Rules: make([]listRule, 1)}
	for name, old := range map[string]bool{"old": true, "new": false} {
		since, there := now, time.Time{}
		if old {
			since, there = now.Add(time.Millisecond), now
		}
		b, weight, err := answer.packed()
		if err != nil {
			t.Fatal(err)
		}
		left := weight
		got, err := unpackTold(b, &left, question{}, now, since)
		if old && (err != errUnwanted || left != weight-perLine) || !old && (err != nil || left != 0 || len(got.Rules) != 1) {
			t.Errorf("%s: %v, %d of %d are left", name, err, left, weight)
		}
		if b, weight, err = list.packed(); err != nil {
			t.Fatal(err)
		}
		left = weight
		one, err := unpackList(b, &left, now, there)
		if old && (err != errUnwanted || left != weight-perLine) || !old && (err != nil || left != 0 || len(one.Rules) != 1) {
			t.Errorf("%s: %v, %d of %d are left", name, err, left, weight)
		}
	}
}

// TestAllAnswersTogether have a bound, too: there may be as many nodes in Redis as somebody writes there.
func TestAllAnswersTogether(t *testing.T) {
	now := time.Now().UTC()
	out := told{At: now, OneIn: 1}
	for i := range 1000 {
		out.Rules = append(out.Rules, toldRule{Rule: fmt.Sprint(i)})
	}
	b, weight, err := out.packed()
	if err != nil || weight != 1001*perLine {
		t.Fatal(weight, err)
	}
	s := &Shared{top: New(Options{})}
	s.room.Store(int64(3*weight + weight/2))
	for i := range 6 {
		if _, _, err := s.unpackTold(b, question{}, mostTold, time.Time{}); (err == nil) != (i < 3) {
			t.Errorf("answer %d: %v", i, err)
		}
	}
	f := &found{lists: map[string]List{}, left: 3*perLine + perLine/2}
	list := List{At: now, Began: now, OneIn: 1}
	if b, _, err = list.packed(); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		if err := s.unpackList(b, fmt.Sprint(i), now, f); (err == nil) != (i < 3) || len(f.lists) != min(i+1, 3) {
			t.Errorf("list %d: %v, %d are kept", i, err, len(f.lists))
		}
	}
}

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
