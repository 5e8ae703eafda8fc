package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/node/watch"
)

// fullPipe returns a pipe whose buffer is full.
func fullPipe(t *testing.T) (r, w *os.File, held int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	for line := []byte(strings.Repeat("x", 1023) + "\n"); err == nil; {
		if err = w.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		var n int
		n, err = w.Write(line)
		held += n
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	_ = w.SetWriteDeadline(time.Time{})
	return r, w, held
}

// A log without a reader doesn't block anyone. What is read later consists of whole lines in order, and together with
// the number of lines left out it is complete. Audit lines have room of their own.
func TestALogWithoutAReader(t *testing.T) {
	r, w, held := fullPipe(t)
	log, err := newLogger(w, "json", slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	const lines, audits = 30_000, 3_000
	for i := range lines {
		log.Info("line", "n", i)
	}
	for i := range audits {
		log.audit.Info("audit", "n", i)
	}
	if _, err := io.CopyN(io.Discard, r, int64(held)); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for scan := bufio.NewScanner(r); got["left out"] == 0 && scan.Scan(); {
		var l struct {
			Msg     string
			N       int
			LeftOut int `json:"left_out"`
			Audit   int
		}
		if err := json.Unmarshal(scan.Bytes(), &l); err != nil {
			t.Fatalf("%s: %v", scan.Text(), err)
		}
		if l.LeftOut > 0 {
			got["left out"] = l.LeftOut
			if l.Audit != 0 {
				t.Errorf("%d of the audit are left out", l.Audit)
			}
			continue
		}
		if l.N != got[l.Msg] {
			t.Fatalf("%s %d comes after %d", l.Msg, l.N, got[l.Msg]-1)
		}
		got[l.Msg]++
	}
	if got["line"]+got["left out"] != lines || got["audit"] != audits || got["line"] < 10_000 {
		t.Errorf("%v, want %d lines, of which some are left out, and %d of the audit", got, lines, audits)
	}
	log.Info("the last")
	if !log.out.close() {
		t.Error("the last line isn't written")
	}
	if last, err := bufio.NewReader(r).ReadString('\n'); err != nil || !strings.Contains(last, "the last") {
		t.Errorf("%q, %v", last, err)
	}
}

// After a line was left out, a shorter one isn't written either, even if there is room, so that no line overtakes
// another.
func TestLinesThatAreLeftOut(t *testing.T) {
	w := &logWriter{wake: watch.NewBell()}
	audit := (*auditWriter)(w)
	for i, c := range []struct {
		to              io.Writer
		length          int
		leftOut, audits int
	}{
		{w, logWaits - 10, 0, 0},
		{w, 11, 1, 0},
		{w, 10, 2, 0},
		{audit, auditWaits, 2, 0},
		{audit, 11, 3, 1},
		{audit, 10, 4, 2},
		{w, 1, 5, 2},
	} {
		_, _ = c.to.Write(make([]byte, c.length))
		if w.leftOut != c.leftOut || w.audits != c.audits {
			t.Errorf("%d: %d are left out, %d of the audit; want %d, %d", i, w.leftOut, w.audits, c.leftOut, c.audits)
		}
	}
}

// close writes what was logged, and doesn't wait for a reader that never comes.
func TestTheEndOfALog(t *testing.T) {
	var text strings.Builder
	log, err := newLogger(&text, "text", slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		log.Info("line")
	}
	if !log.out.close() || strings.Count(text.String(), "msg=line\n") != 1000 {
		t.Errorf("the log ends with %d lines", strings.Count(text.String(), "\n"))
	}
	_, w, _ := fullPipe(t)
	if log, err = newLogger(w, "text", slog.LevelInfo); err != nil {
		t.Fatal(err)
	}
	log.Info("nobody reads this")
	if log.out.close() {
		t.Error("a full pipe has taken a line")
	}
}
