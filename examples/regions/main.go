// Command regions is the network between the regions of run.sh: proxies that hold back what passes, and a switch for each region.
//
//	regions -rtt 150ms -cuts DIR FROM,TO,LISTEN,TARGET...
//
// Each FROM,TO,LISTEN,TARGET is the way from one region to another: who connects to LISTEN talks to TARGET. While DIR has a file
// with the name of either region, nothing passes, and nothing is lost: it arrives when the file is gone, as over TCP.
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

// run carries on until a listener fails.
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

// way leads from one region to another.
type way struct {
	target string
	delay  time.Duration // each way
	cuts   []string      // files: while there is one, nothing passes
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

// pass hands on what it reads, each piece when its time has come, and the end as well.
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
			_ = from.Close() // the reader ends, and the rest is thrown away
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
