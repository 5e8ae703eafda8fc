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

// TestBombs checks that reading a small compressed value from Redis takes no more memory than a node's list may,
// however much it unpacks to.
func TestBombs(t *testing.T) {
	now := time.Now().UTC()
	head := fmt.Sprintf(`{"at": %q, "since": %q, "one_in": 1}`+"\n", now.Format(time.RFC3339), now.Format(time.RFC3339))
	numbered := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
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
		left := unpacked * mostTold
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := unpackTold(b, &left, question{ofClient, "00000007"}, now, time.Time{})
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; err == nil || taken > 4*unpacked*mostTold {
			t.Errorf("%s: %v, and %d MiB taken for %d bytes", name, err, taken>>20, len(b))
		}
	}
}

// TestOldAnswersAreNotRead checks that only the first line of an old answer is read, because nodes poll for new ones
// many times a second.
func TestOldAnswersAreNotRead(t *testing.T) {
	now := time.Now().UTC()
	answer := told{At: now, OneIn: 1, Rules: make([]toldRule, 1)}
	b, weight, err := answer.packed()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		now, there time.Time
		old        bool
	}{
		"new":         {now.Add(oldest), time.Time{}, false},
		"newer":       {now, now.Add(-time.Millisecond), false},
		"known":       {now, now, true},
		"of long ago": {now.Add(oldest + time.Millisecond), time.Time{}, true},
	} {
		left := weight
		got, err := unpackTold(b, &left, question{kind: ofRules}, c.now, c.there)
		if c.old && (err != errUnwanted || left != weight-perLine) || !c.old && (err != nil || left != 0 || len(got.Rules) != 1) {
			t.Errorf("%s: %v, %d of %d are left", name, err, left, weight)
		}
	}
}

// TestAllAnswersTogether checks that all answers together are bounded, too, because anyone with access to Redis can
// make up nodes.
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
	s := &Cluster{top: New(Options{})}
	s.room.Store(int64(3*weight + weight/2))
	for i := range 6 {
		if _, _, err := s.unpackTold(b, question{kind: ofRules}, mostTold, time.Time{}); (err == nil) != (i < 3) {
			t.Errorf("answer %d: %v", i, err)
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
