package faults

import (
	"runtime"
	"sync"
	"time"
)

// meter records the most goroutines that this process has while a fault lasts.
type meter struct {
	most    int
	end     chan struct{}
	running sync.WaitGroup
}

func startMeter() *meter {
	m := &meter{end: make(chan struct{})}
	m.running.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.most = max(m.most, runtime.NumGoroutine())
			case <-m.end:
				return
			}
		}
	})
	return m
}

func (m *meter) stop() {
	close(m.end)
	m.running.Wait()
}
