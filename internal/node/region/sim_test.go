package region

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

// simulation runs regions in virtual time: real stores and links, with a simulated network and a separate clock for
// each region. It checks everything that a region writes into its cells. It must run in a synctest bubble.
type simulation struct {
	t        testing.TB
	names    []string
	sites    []*site
	clocks   []*clock
	counters map[string]*counted // by the key of the cell
	fate     func(from, to int) []way
	bug      *bug
	stop     context.CancelFunc
	running  sync.WaitGroup // all goroutines that were started
	over     atomic.Bool    // no more messages arrive
	messages []atomic.Int64 // by sender; without heartbeats
	entries  atomic.Int64   // asks and their responses

	mu     sync.Mutex // guards the fields below, and counters
	cut    map[[2]int]bool
	dead   []bool
	broken string // the first violation of a bound
}

// way is the fate of a message and its response: how long each takes, or never if negative. If again isn't zero, the
// response arrives a second time after that much more time. A message with several ways is served several times.
type way struct{ out, back, again time.Duration }

const never = -1

// clock is the clock of a region's store. It can drift and step.
type clock struct {
	start  time.Time
	drift  float64
	offset atomic.Int64 // µs
}

func (c *clock) now() int64 {
	elapsed := time.Since(c.start).Microseconds()
	return c.start.UnixMicro() + elapsed + int64(float64(elapsed)*c.drift) + c.offset.Load()
}

// newSimulation creates regions. The first region is the home.
func newSimulation(t testing.TB, regions int) *simulation {
	s := &simulation{t: t, names: []string{"us", "eu", "ap", "sa", "af", "oc"}[:regions], counters: map[string]*counted{}, cut: map[[2]int]bool{},
		dead: make([]bool, regions), messages: make([]atomic.Int64, regions), bug: &bug{}}
	s.fate = func(int, int) []way { return []way{{out: 75 * time.Millisecond, back: 75 * time.Millisecond}} }
	s.sites = world(t, time.Now, s.names...)
	for i, site := range s.sites {
		c := &clock{start: time.Now()}
		s.clocks = append(s.clocks, c)
		cells := site.stakes.cells.(*memoryCells)
		cells.clock = c.now
		site.stakes.cells = &watched{cells, s, i}
		site.link.timeout = DefaultTimeout
		for j, to := range s.names {
			if p := site.link.peers[to]; p != nil {
				p.Since, p.heard, p.Up = time.Now(), time.Now(), true
				p.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) { return s.carry(i, j, r) })
			}
		}
	}
	return s
}

// run makes the regions exchange messages until end is called.
func (s *simulation) run() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	for _, site := range s.sites {
		s.running.Go(func() { _ = site.link.Run(ctx) })
	}
}

func (s *simulation) end() {
	s.over.Store(true)
	s.stop()
	s.running.Wait()
	time.Sleep(2 * DefaultTimeout) // for messages whose senders have given up
}

// carry delivers a message from one region to another, as its fate says. Responses that arrive late or twice are
// processed, too.
func (s *simulation) carry(from, to int, r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	beat := !bytes.Contains(body, []byte(`"acts"`))
	if !beat {
		s.messages[from].Add(1)
		s.entries.Add(2 * int64(bytes.Count(body, []byte(`"talk"`))))
	}
	got := make(chan []byte, 2) // two may arrive at the same time
	for _, w := range s.fate(from, to) {
		if w.out < 0 {
			continue
		}
		s.running.Go(func() {
			time.Sleep(w.out)
			if !s.reaches(from, to) {
				return
			}
			text := s.serve(from, to, body, beat)
			if w.back < 0 {
				return
			}
			time.Sleep(w.back)
			if !s.reaches(to, from) {
				return
			}
			if len(got) == 0 && r.Context().Err() == nil {
				got <- s.twist(from, to, body, text, beat)
			} else {
				s.hearLate(from, to, body, text, beat)
			}
			if w.again > 0 {
				time.Sleep(w.again)
				s.hearLate(from, to, body, text, beat)
			}
		})
	}
	select {
	case text := <-got:
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(text))}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (s *simulation) reaches(from, to int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.over.Load() && !s.dead[from] && !s.dead[to] && !s.cut[[2]int{from, to}]
}

// serve makes a region respond to a message.
func (s *simulation) serve(from, to int, body []byte, beat bool) []byte {
	if beat {
		text, _ := json.Marshal(answer{From: s.names[to], Rules: s.sites[to].link.rules()})
		return text
	}
	var m message
	if s.bug.heard != nil || s.bug.served != nil {
		_ = json.Unmarshal(body, &m)
		for i := range m.Acts {
			if c := s.about(&m.Acts[i]); c != nil && s.bug.heard != nil {
				s.bug.heard(s, c, to, from, &m.Acts[i].Talk.Message)
			}
		}
		body, _ = json.Marshal(&m)
	}
	w := httptest.NewRecorder()
	s.sites[to].link.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)))
	text := w.Body.Bytes()
	if s.bug.served != nil {
		var a answer
		_ = json.Unmarshal(text, &a)
		for i := range a.Done {
			if c := s.about(&m.Acts[i]); c != nil && a.Done[i].Said != nil {
				s.bug.served(s, c, to, from, &m.Acts[i].Talk.Message, a.Done[i].Said)
			}
		}
		text, _ = json.Marshal(&a)
	}
	return text
}

// about returns the counter of an operation, if the simulation watches it.
func (s *simulation) about(a *operation) *counted {
	if a.Talk == nil {
		return nil
	}
	counted, err := a.Talk.Counter.counter()
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counters[keyOf(&counted)]
}

// twist applies the planted bug to a response.
func (s *simulation) twist(from, to int, body, text []byte, beat bool) []byte {
	if beat || s.bug.heard == nil {
		return text
	}
	var m message
	var a answer
	_, _ = json.Unmarshal(body, &m), json.Unmarshal(text, &a)
	for i := range a.Done {
		if c := s.about(&m.Acts[i]); c != nil && a.Done[i].Said != nil {
			s.bug.heard(s, c, from, to, a.Done[i].Said)
		}
	}
	text, _ = json.Marshal(&a)
	return text
}

// hearLate makes a region process a response for which nobody waits anymore.
func (s *simulation) hearLate(from, to int, body, text []byte, beat bool) {
	var m message
	var a answer
	if beat || !s.reaches(to, from) || json.Unmarshal(body, &m) != nil || json.Unmarshal(s.twist(from, to, body, text, beat), &a) != nil {
		return
	}
	for i := range a.Done {
		if m.Acts[i].Talk == nil || a.Done[i].Said == nil {
			continue
		}
		if counted, err := m.Acts[i].Talk.Counter.counter(); err == nil {
			_, _ = s.sites[from].stakes.hear(context.Background(), s.names[to], &counted, a.Done[i].Said)
		}
	}
}

// take makes a region decide a charge, and records what it admits.
func (s *simulation) take(i int, c *counted, n int64) counter.Result {
	charges := []counter.Charge{{Counter: c.Counter, N: n}}
	var results [1]counter.Result
	s.sites[i].Take(context.Background(), charges, results[:])
	r := results[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Allowed && r.Err == nil {
		c.admit(s, n, r.Slot)
		c.let[i] += n
	}
	return r
}

// giveBack gives back what a region has admitted. It records that first, because another region may use the tokens at
// once.
func (s *simulation) giveBack(i int, c *counted, n, slot int64) {
	s.mu.Lock()
	c.admit(s, -n, slot)
	s.mu.Unlock()
	_ = s.sites[i].GiveBack(context.Background(), counter.Once{}, 0, []counter.Return{{Counter: c.Counter, N: n, Slot: slot}})
}

// step moves a clock.
func (s *simulation) step(i int, by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.counters {
		c.drain(s)
		c.meter = max(0, c.meter-c.rates[i]*max(0, by.Seconds()))
	}
	s.clocks[i].offset.Add(by.Microseconds())
	for _, c := range s.counters { // decoded again, because something that had ended by the clock may not have ended now
		c.stakes[i] = stake.Decode(c.written[i])
	}
}

func (s *simulation) breaks(c *counted, format string, args ...any) {
	if s.broken == "" {
		s.broken = fmt.Sprintf("%s %+v, after %v: ", c.Policy.Name, c.Policy.Limit, time.Since(s.clocks[0].start)) + fmt.Sprintf(format, args...)
	}
}

// watched wraps a region's cells and checks their changes.
type watched struct {
	*memoryCells
	sim *simulation
	i   int
}

func (w *watched) Update(ctx context.Context, keys []string, change func([][]byte, int64) []Cell) error {
	return w.memoryCells.Update(ctx, keys, func(values [][]byte, now int64) []Cell {
		cells := change(values, now)
		w.sim.mu.Lock()
		defer w.sim.mu.Unlock()
		if c := w.sim.counters[keys[0]]; c != nil {
			c.wrote(w.sim, w.i, values[0], &cells[0], now)
		}
		return cells
	})
}

// bug is a planted bug in what regions hear and write. Each function may be nil.
type bug struct {
	// heard changes a message before a region processes it.
	heard func(s *simulation, c *counted, by, from int, m *stake.Message)
	// served changes a region's response. It may also change its stake.
	served func(s *simulation, c *counted, by, from int, ask, answer *stake.Message)
	// wrote changes what a region writes.
	wrote func(s *simulation, c *counted, i int, before, after *stake.Stake, now int64)
}
