package faults

import (
	"runtime"
	"sync"
	"time"
)

// meter watches this process while a fault is there.
type meter struct {
	goroutines int           // at most
	hiccup     time.Duration // the longest that it should have run and didn't
	end        chan struct{}
	running    sync.WaitGroup
}

func startMeter() *meter {
	const every = 5 * time.Millisecond
	m := &meter{end: make(chan struct{})}
	m.running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-tick.C:
				now := time.Now()
				m.hiccup = max(m.hiccup, now.Sub(last)-every)
				m.goroutines = max(m.goroutines, runtime.NumGoroutine())
				last = now
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
