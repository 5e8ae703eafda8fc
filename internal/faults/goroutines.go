package faults

import (
	"runtime"
	"sync"
	"time"
)

// goroutines counts this process's goroutines, again and again.
type goroutines struct {
	most    int
	end     chan struct{}
	running sync.WaitGroup
}

func countGoroutines() *goroutines {
	g := &goroutines{end: make(chan struct{})}
	g.running.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				g.most = max(g.most, runtime.NumGoroutine())
			case <-g.end:
				return
			}
		}
	})
	return g
}

// stop returns how many there were at most.
func (g *goroutines) stop() int {
	close(g.end)
	g.running.Wait()
	return g.most
}
