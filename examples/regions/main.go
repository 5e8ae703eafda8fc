// Command regions simulates the network between the regions of run.sh. It has a proxy for each direction that delays
// data, and a switch to cut off each region.
//
//	regions -rtt 150ms -cuts DIR FROM,TO,LISTEN,TARGET...
//
// Each FROM,TO,LISTEN,TARGET is a proxy from one region to another: it accepts connections on LISTEN and forwards them
// to TARGET. While DIR contains a file with the name of either region, no data passes. Data isn't lost: as with TCP, it
// arrives after the file is removed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

func main() {
	rtt := flag.Duration("rtt", 150*time.Millisecond, "how long it takes there and back")
	cuts := flag.String("cuts", ".", "the folder in which a file named after a region cuts it off")
	flag.Parse()
	if err := run(*rtt, *cuts, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run serves until a listener fails.
func run(rtt time.Duration, cuts string, ways []string) error {
	if len(ways) == 0 {
		return errors.New("say which ways there are: FROM,TO,LISTEN,TARGET")
	}
	failed := make(chan error)
	for _, text := range ways {
		f := strings.Split(text, ",")
		if len(f) != 4 {
			return fmt.Errorf("%s: must be FROM,TO,LISTEN,TARGET", text)
		}
		l, err := net.Listen("tcp", f[2])
		if err != nil {
			return err
		}
		w := &way{target: f[3], delay: rtt / 2, cuts: []string{filepath.Join(cuts, f[0]), filepath.Join(cuts, f[1])}}
		go func() { failed <- w.serve(l) }()
	}
	return <-failed
}

// way is a proxy from one region to another.
type way struct {
	target string
	delay  time.Duration // delay of one direction
	cuts   []string      // files: while one of them exists, no data passes
}

func (w *way) serve(l net.Listener) error {
	for {
		client, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer client.Close()
			server, err := net.Dial("tcp", w.target)
			if err != nil {
				return
			}
			defer server.Close()
			var both sync.WaitGroup
			both.Go(func() { w.pass(server, client) })
			both.Go(func() { w.pass(client, server) })
			both.Wait()
		}()
	}
}

// pass forwards data, each piece after its delay, and finally the end of the stream.
func (w *way) pass(to, from net.Conn) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			if n > 0 {
				pieces <- piece{b[:n], time.Now().Add(w.delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		time.Sleep(time.Until(p.due))
		for w.isCut() {
			time.Sleep(20 * time.Millisecond)
		}
		if _, err := to.Write(p.bytes); err != nil {
			_ = from.Close() // ends the reader; the remaining data is dropped
			for range pieces {
			}
			return
		}
	}
	_ = to.Close()
}

func (w *way) isCut() bool {
	for _, file := range w.cuts {
		if _, err := os.Stat(file); err == nil {
			return true
		}
	}
	return false
}
