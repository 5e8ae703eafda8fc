package test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

const (
	slotsOfAUser = 20
	slotTTL      = 15 * time.Second // a node that is stalled for two thirds of this rightly loses its slots
)

// streamRules count everybody's tokens, each org's spending, and each user's requests in flight. The months don't begin
// during the test.
func streamRules() string {
	return fmt.Sprintf(`
abuse: false # the clients ask again sooner than they are told to
prices: {"*": {input: 1/1M, output: 3/1M}}
rules:
  - {id: tokens, by: [], amount: tokens, limit: 1000000000/month, calendar: {day: %[1]d}}
  - {id: spend, by: ["header:X-Org"], amount: usd, limit: 1000000/month, calendar: {day: %[1]d}}
  - {id: in-flight, by: ["header:X-User"], algorithm: concurrency, limit: %[2]d, slot_ttl: %[3]s}
`, (time.Now().UTC().Day()+13)%28+1, slotsOfAUser, slotTTL)
}

// These are the ways in which a stream can end.
const (
	finishes   = "finishes"    // normally, with its usage
	rejected   = "rejected"    // with status 400
	fails      = "fails"       // with status 500
	unanswered = "unanswered"  // the model closes the connection without a response
	silent     = "silent"      // normally, but without its usage
	breaks     = "breaks"      // the model closes the connection in the middle
	leaves     = "leaves"      // the client closes the connection in the middle
	leavesLate = "leaves late" // the client closes the connection after the usage, but before the end
	killed     = "killed"      // its node is killed in the middle
)

// fates says how many of each user's streams end in each way.
var fates = map[string]int{
	finishes: 13, rejected: 3, fails: 3, unanswered: 3, silent: 4, breaks: 4, leaves: 6, leavesLate: 4, killed: 10,
}

// used is what a model counts for a request.
type used struct{ input, output int64 }

func (u used) tokens() counter.Amount { return counter.Whole(u.input + u.output) }
func (u used) usd() counter.Amount    { return counter.Amount(u.input + 3*u.output) } // in millionths, by the prices in streamRules
func (u used) json() string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, u.input, u.output, u.input+u.output)
}

// modelCall is one stream. Everything about it is chosen beforehand.
type modelCall struct {
	id        int
	user, org string
	fate      string
	victim    int  // the node that is killed, if that is the stream's fate
	waits     bool // the stream waits, on another node, until the first node is dead
	events    int
	estimate  used  // charged if the stream doesn't report its usage; always more tokens than events
	told      *used // the usage in the first event, if any
	truth     used
	rnd       *rand.Rand // the client's source of randomness
}

// makeCalls chooses all streams.
func makeCalls(rnd *rand.Rand) (all []*modelCall) {
	upTo := func(n int64) int64 { return 1 + rnd.Int64N(n) }
	for _, user := range []string{"ada", "ben", "cy", "dee"} {
		for _, fate := range slices.Sorted(maps.Keys(fates)) {
			for i := range fates[fate] {
				c := &modelCall{
					user: user, org: fmt.Sprint("org-", rnd.IntN(3)), fate: fate, events: int(upTo(40)),
					estimate: used{upTo(50), 50 + upTo(400)}, truth: used{upTo(100), 4 + upTo(800)}, rnd: rand.New(rand.NewPCG(rnd.Uint64(), 1)),
				}
				switch told := rnd.IntN(3); {
				case fate == silent:
				case told == 0: // less than was reserved
					c.told = &used{rnd.Int64N(c.estimate.input), rnd.Int64N(c.estimate.output)}
				case told == 1: // more than was reserved
					c.told = &used{c.estimate.input + upTo(50), c.estimate.output + upTo(400)}
				}
				if fate == killed && i >= fates[killed]*6/10 {
					c.victim = 1
				}
				c.waits = fate == finishes && i < 5 // few enough to leave slots for the others
				all = append(all, c)
			}
		}
	}
	rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i := range all {
		all[i].id = i
	}
	return all
}

// books returns what must be charged for the stream, as docs/guides/ai.md describes it.
func (c *modelCall) books() used {
	switch c.fate {
	case finishes, leavesLate:
		if c.told != nil { // the highest counts in the stream
			return used{max(c.told.input, c.truth.input), max(c.told.output, c.truth.output)}
		}
		return c.truth
	case rejected:
		return used{}
	case breaks, leaves:
		if c.told != nil {
			return used{max(c.told.input, c.estimate.input), max(c.told.output, c.estimate.output)}
		}
	}
	return c.estimate
}

// says returns how many events the client gets before the stream is cut.
func (c *modelCall) says() int {
	if c.fate == leavesLate {
		return 1 + c.events + 2
	}
	return 1 + c.events
}

func (c *modelCall) body() string { // four bytes per token
	return fmt.Sprintf(`{"model": "m", "stream": true, "max_tokens": %d, "messages": [{"role": "user", "content": %q}]}`,
		c.estimate.output, strings.Repeat("word", int(c.estimate.input)))
}

// fakeModel is the server behind the gateways. It counts streams in flight: a stream never counts before it has a slot,
// nor after its slot was given back.
type fakeModel struct {
	t      *testing.T
	calls  []*modelCall
	opened chan struct{} // each value lets one stream continue; closed when all may
	killed chan struct{} // closed when the first node is dead

	mu       sync.Mutex
	begun    map[int]int // number of starts, by the stream's id
	over     map[int]bool
	passed   map[int]*modelCall // streams that were let through
	inFlight map[string]int64
}

func (m *fakeModel) begin(c *modelCall) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun[c.id]++; m.begun[c.id] > 1 {
		m.t.Errorf("stream %d (%s) came %d times", c.id, c.fate, m.begun[c.id])
		return
	}
	if m.inFlight[c.user]++; m.inFlight[c.user] > slotsOfAUser {
		m.t.Errorf("%d streams of %s are in flight, of %d", m.inFlight[c.user], c.user, slotsOfAUser)
	}
}

// end is called before the gateway can learn that the stream is over.
func (m *fakeModel) end(c *modelCall) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over[c.id] {
		m.over[c.id] = true
		m.inFlight[c.user]--
	}
}

// now returns the streams in flight by user, and how many streams were let through and have got as far as they can on
// their own.
func (m *fakeModel) now() (inFlight map[string]int64, gone int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.passed {
		if m.over[c.id] || c.fate == killed || c.waits {
			gone++
		}
	}
	return maps.Clone(m.inFlight), gone
}

func (m *fakeModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.Atoi(r.Header.Get("X-Stream"))
	text, _ := io.ReadAll(r.Body)
	if err != nil || !strings.Contains(string(text), `"include_usage":true`) {
		m.t.Errorf("the model was asked %s, %v", text, r.Header)
		panic(http.ErrAbortHandler)
	}
	c := m.calls[id]
	m.begin(c)
	defer m.end(c)
	await := func(what <-chan struct{}) {
		select {
		case <-what:
		case <-r.Context().Done():
		case <-m.t.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	goOn := func() {
		await(m.opened)
		m.mu.Lock()
		m.passed[c.id] = c
		m.mu.Unlock()
	}
	say := func(format string, args ...any) {
		fmt.Fprintf(w, "data: "+format+"\n\n", args...)
		_ = http.NewResponseController(w).Flush()
	}
	switch c.fate {
	case rejected, fails:
		goOn()
		w.WriteHeader(map[string]int{rejected: 400, fails: 500}[c.fate])
		return
	case unanswered:
		goOn()
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	usage := "null"
	if c.told != nil {
		usage = c.told.json()
	}
	say(`{"choices":[{"delta":{"role":"assistant"},"finish_reason":null}],"usage":%s}`, usage)
	goOn()
	for i := range c.events {
		if say(`{"choices":[{"delta":{"content":"word"},"finish_reason":null}]}`); c.waits && i == c.events/2 {
			await(m.killed)
		}
	}
	switch c.fate {
	case breaks:
		panic(http.ErrAbortHandler)
	case killed, leaves:
		await(nil)
	case finishes, leavesLate:
		say(`{"choices":[{"delta":{},"finish_reason":"stop"}]}`)
		if say(`{"choices":[],"usage":%s}`, c.truth.json()); c.fate == leavesLate {
			await(nil)
		}
	}
	say("[DONE]")
}

// mortal is a node that is killed once only the streams that are meant to die with it are in flight.
type mortal struct {
	*node
	busy sync.RWMutex // other streams hold it for reading; guards dead
	dead bool
}

// streaming is a test with 200 clients and the nodes that they use.
type streaming struct {
	*testing.T
	redis  *redistest.Server
	model  *fakeModel
	nodes  []*mortal
	client *http.Client
	mu     sync.Mutex
	held   map[int]int // by node: streams that only its death ends; guarded by mu
}

// finds chooses a live node for a stream. The node stays alive until done is called.
func (s *streaming) finds(c *modelCall) (n *mortal, done func()) {
	if c.fate == killed {
		return s.nodes[c.victim], func() {}
	}
	for {
		n = s.nodes[c.rnd.IntN(len(s.nodes))]
		if c.waits {
			n = s.nodes[1+c.rnd.IntN(len(s.nodes)-1)]
		}
		n.busy.RLock()
		if !n.dead {
			return n, n.busy.RUnlock
		}
		n.busy.RUnlock()
	}
}

// run is a client that sends its request until it is admitted.
func (s *streaming) run(c *modelCall) {
	for s.Context().Err() == nil {
		again, err := s.ask(c)
		if err != nil && s.Context().Err() == nil {
			s.Errorf("stream %d (%s): %v", c.id, c.fate, err)
		}
		if !again {
			return
		}
		select { // clients retry after a while
		case <-time.After(time.Duration(200+c.rnd.IntN(300)) * time.Millisecond):
		case <-s.Context().Done():
		}
	}
}

func (s *streaming) ask(c *modelCall) (again bool, err error) {
	n, done := s.finds(c)
	defer done()
	ctx, leave := context.WithTimeout(s.Context(), 2*time.Minute)
	defer leave()
	req, err := http.NewRequestWithContext(ctx, "POST", n.Gateway+"/v1/chat/completions", strings.NewReader(c.body()))
	if err != nil {
		return false, err
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "X-User": {c.user}, "X-Org": {c.org}, "X-Stream": {strconv.Itoa(c.id)}}
	res, err := s.client.Do(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	want, known := map[string]int{rejected: 400, fails: 500, unanswered: 502}[c.fate]
	if !known {
		want = 200
	}
	if res.StatusCode != want {
		text, err := io.ReadAll(res.Body)
		if res.StatusCode == http.StatusTooManyRequests && err == nil {
			return true, nil
		}
		return false, fmt.Errorf("%s, %v: %s", res.Status, err, text)
	}
	body := bufio.NewReader(res.Body)
	if c.fate == leaves || c.fate == leavesLate || c.fate == killed {
		for seen := 0; seen < c.says(); {
			line, err := body.ReadString('\n')
			if err != nil {
				return false, fmt.Errorf("after %d events: %w", seen, err)
			}
			if line == "\n" { // the gateway has seen everything that the client got
				seen++
			}
		}
	}
	if c.fate == leaves || c.fate == leavesLate {
		s.model.end(c)
		return false, nil
	}
	if c.fate == killed {
		s.mu.Lock()
		s.held[c.victim]++
		s.mu.Unlock()
	}
	text, err := io.ReadAll(body)
	switch cut := c.fate == breaks || c.fate == killed; {
	case cut && err == nil:
		return false, fmt.Errorf("the stream was cut off, and its client didn't notice: %s", text)
	case !cut && err == nil && known == strings.HasSuffix(string(text), "data: [DONE]\n\n"):
		return false, fmt.Errorf("the client got %s", text)
	case !cut:
		return false, err
	}
	return false, nil
}

// clock returns Redis' time.
func (s *streaming) clock() time.Time {
	s.Helper()
	reply, err := s.redis.Do(s.Context(), "TIME")
	var seconds, micros int64
	if err == nil {
		parts := reply.([]any)
		_, err = fmt.Sscan(fmt.Sprint(parts[0], " ", parts[1]), &seconds, &micros)
	}
	if err != nil {
		s.Fatal(err)
	}
	return time.Unix(seconds, 1000*micros)
}

// counters returns the state of a user's and an org's counters from the last node, which is never killed.
func (s *streaming) counters(user, org string) map[string]adminapi.Counter {
	s.Helper()
	status, text := admin(s.T, s.nodes[2].node, "POST", "/v1/counters",
		fmt.Sprintf(`{"method": "POST", "path": "/v1/chat/completions", "attributes": {"header:X-User": %q, "header:X-Org": %q}}`, user, org))
	var got adminapi.Counters
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 || len(got.Counters) != 3 {
		s.Fatalf("%d, %v: %s", status, err, text)
	}
	out := map[string]adminapi.Counter{}
	for _, c := range got.Counters {
		if c.Degraded || (c.InFlight == nil) == (c.Rule == "in-flight") {
			s.Fatalf("%s", text)
		}
		out[c.Rule] = c
	}
	return out
}

// inFlight returns the limiter's number of requests in flight for each user.
func (s *streaming) inFlight(of map[string]int64) map[string]int64 {
	s.Helper()
	out := map[string]int64{}
	for user := range of {
		out[user] = *s.counters(user, "org-0")["in-flight"].InFlight
	}
	return out
}

// idle waits until only the given number of streams is left on a node. All others are then settled, and their slots
// released.
func (s *streaming) idle(n *mortal, but int) {
	s.Helper()
	until(s, func() error {
		all, _ := scrape(s.T, n.Admin, asText, "")
		if got := series(all["weir_slots_in_use"])["in-flight"]; got != float64(but) {
			return fmt.Errorf("%v slots are in use on the node, want %d", got, but)
		}
		return nil
	})
}

// kill kills a node once only the streams that are meant to die with it are in flight. It returns the time by Redis'
// clock after which nothing from the node can reach Redis.
func (s *streaming) kill(i int) (at time.Time) {
	s.Helper()
	var last []*modelCall
	for _, c := range s.model.calls {
		if c.fate == killed && c.victim == i {
			last = append(last, c)
		}
	}
	until(s, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[i] != len(last) {
			return fmt.Errorf("%d of %d streams run on node %d", s.held[i], len(last), i)
		}
		return nil
	})
	n := s.nodes[i]
	n.busy.Lock()
	defer n.busy.Unlock()
	s.idle(n, len(last))
	for _, c := range last {
		s.model.end(c)
	}
	crash(n.node)
	n.dead = true
	s.clock() // by now, Redis has read everything that the node sent
	return s.clock()
}

// freed waits until the requests in flight are as wanted. After a node is killed, its slots must be free within their
// TTL, by Redis' clock.
func (s *streaming) freed(at time.Time, want map[string]int64) {
	s.Helper()
	until(s, func() error {
		now := s.clock()
		got := s.inFlight(want)
		if maps.Equal(got, want) {
			return nil
		}
		if over := now.Sub(at) - slotTTL; over >= 0 {
			s.Fatalf("%s after the slots of a dead node had to be free, %v are in flight, want %v", over, got, want)
		}
		return fmt.Errorf("%v are in flight, want %v", got, want)
	})
}

// booked compares the budgets with what all streams should have been charged.
func (s *streaming) booked() {
	s.Helper()
	tokens, usd := counter.Amount(0), map[string]counter.Amount{}
	for _, c := range s.model.calls {
		u := c.books()
		tokens += u.tokens()
		usd[c.org] += u.usd()
	}
	for org, want := range usd {
		got := s.counters("ada", org)
		if n := got["spend"].Max - got["spend"].Remaining; n != want {
			s.Errorf("%s: %s USD are booked, want %s: %s more", org, n, want, n-want)
		}
		if n := got["tokens"].Max - got["tokens"].Remaining; n != tokens {
			s.Errorf("%s tokens are booked, want %s: %s more", n, tokens, n-tokens)
		}
	}
}

// TestStreamsAreBookedToTheToken runs 200 concurrent streams on three nodes, and kills two nodes. No user ever exceeds the limit of streams in flight,
// and a dead node's slots are free in time. In the end, the charges are exact: what each settled stream used, and what
// was reserved for each other stream.
func TestStreamsAreBookedToTheToken(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	model := &fakeModel{
		t: t, calls: makeCalls(rand.New(rand.NewPCG(seed, 1))), opened: make(chan struct{}), killed: make(chan struct{}),
		begun: map[int]int{}, over: map[int]bool{}, passed: map[int]*modelCall{}, inFlight: map[string]int64{},
	}
	upstream := httptest.NewServer(model)
	t.Cleanup(upstream.Close)
	redis := redistest.New(t, redistest.Options{})
	s := &streaming{
		T: t, redis: redis, model: model, held: map[int]int{},
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, // a POST on a connection that is just being closed would fail
	}
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), streamRules())
	nodes := serveAll(t, 3, append(patient, "--rules", rules, "--store", "redis://"+redis.Addr,
		"--gateway", "127.0.0.1:0", "--upstream", upstream.URL)...)
	reached(t, nodes...)
	for _, n := range nodes {
		s.nodes = append(s.nodes, &mortal{node: n})
		t.Cleanup(func() {
			if n.mu.Lock(); t.Failed() {
				t.Logf("a node's log, which tells of slots that were lost:\n%s", n.text.String())
			}
			n.mu.Unlock()
		})
	}

	var others, doomed sync.WaitGroup
	t.Cleanup(doomed.Wait)
	t.Cleanup(others.Wait)
	for _, c := range model.calls {
		clients := &others
		if c.fate == killed {
			clients = &doomed
		}
		clients.Go(func() { s.run(c) })
	}

	// Users take all slots and hold them for longer than a slot lasts without renewal, while other streams wait.
	full := map[string]int64{"ada": slotsOfAUser, "ben": slotsOfAUser, "cy": slotsOfAUser, "dee": slotsOfAUser}
	fill := func(again int) {
		t.Helper()
		until(t, func() error {
			if t.Failed() {
				t.FailNow() // the counts can't be reached after a failure
			}
			if got, gone := model.now(); gone != again || !maps.Equal(got, full) {
				return fmt.Errorf("%v are in flight, %d have gone, of %d", got, gone, again)
			}
			return nil
		})
		if got := s.inFlight(full); !maps.Equal(got, full) {
			t.Fatalf("%v are in flight by the limiter, want %v", got, full)
		}
	}
	fill(0)
	for since := s.clock(); s.clock().Sub(since) < slotTTL*5/4; {
		fill(0)
	}
	// When streams end, exactly as many others start.
	for again := 8; again <= 64; again += 8 {
		for range 8 {
			model.opened <- struct{}{}
		}
		fill(again)
	}

	close(model.opened)
	first := s.kill(0)
	close(model.killed)
	others.Wait()
	last := map[string]int64{}
	for _, c := range model.calls {
		if c.fate == killed && c.victim == 1 {
			last[c.user]++
		}
	}
	s.idle(s.nodes[1], 4*int(last["ada"]))
	s.idle(s.nodes[2], 0)
	s.freed(first, last)
	second := s.kill(1)
	none := map[string]int64{"ada": 0, "ben": 0, "cy": 0, "dee": 0}
	s.freed(second, none)
	doomed.Wait()
	if got, _ := model.now(); len(model.begun) != len(model.calls) || !maps.Equal(got, none) {
		t.Errorf("%d of %d streams have begun, %v haven't ended", len(model.begun), len(model.calls), got)
	}
	s.booked()
}
