package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestWay checks that data is delayed by the round trip, and waits while either region is cut off.
func TestWay(t *testing.T) {
	echo := listen(t)
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	cut := filepath.Join(t.TempDir(), "eu")
	front := listen(t)
	w := &way{target: echo.Addr().String(), delay: 50 * time.Millisecond, cuts: []string{cut}}
	go func() { _ = w.serve(front) }()
	c, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answers := bufio.NewReader(c)
	say := func(text string) time.Duration {
		begun := time.Now()
		fmt.Fprintln(c, text)
		if got, err := answers.ReadString('\n'); err != nil || got != text+"\n" {
			t.Fatalf("%q, %v", got, err)
		}
		return time.Since(begun)
	}
	if took := say("hello"); took < 100*time.Millisecond {
		t.Errorf("a round trip took only %s", took)
	}
	if err := os.WriteFile(cut, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, func() { _ = os.Remove(cut) })
	if took := say("still there?"); took < 300*time.Millisecond {
		t.Errorf("a round trip through the cut took only %s", took)
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
