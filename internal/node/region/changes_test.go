package region

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

// secondNode returns another node of a region with the same cells. It doesn't run, so it reads nothing by itself.
func secondNode(t *testing.T, s *site) *Link {
	t.Helper()
	peers := map[string][]string{}
	for name, p := range s.link.peers {
		peers[name] = p.addresses
	}
	link, err := NewLink(Options{Name: s.link.name, Home: s.link.home, Secret: secret, Peers: peers})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range link.peers {
		p.client.Transport = s.link.peers[name].client.Transport
	}
	NewStore(s.own, link, s.stakes.cells)
	return link
}

func move(t *testing.T, l *Link, from, to string) {
	t.Helper()
	if err := l.Move(t.Context(), from, to, false); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * beatEvery)
}

// TestOneTopologyHolds checks that of two different topologies, exactly one is newer, in whichever regions they meet.
// When a region adopted a home doesn't matter, because regions don't tell each other.
func TestOneTopologyHolds(t *testing.T) {
	eu, ap := map[string]string{"us": "eu"}, map[string]string{"us": "ap"}
	drained, forgotten := map[string]string{"sa": Drained}, map[string]string{"sa": Forgotten}
	list := []*Topology{
		{Epoch: 2},
		{Epoch: 2, Away: drained},
		{Epoch: 2, Away: forgotten},
		{Epoch: 2, Homes: eu, Adopted: map[string]int64{"us": 7}},
		{Epoch: 2, Homes: eu, Away: drained, Adopted: map[string]int64{"us": 9}},
		{Epoch: 2, Homes: ap, Away: drained, Adopted: map[string]int64{"us": 8}},
		{Epoch: 3, Homes: eu, Adopted: map[string]int64{"us": 7}},
		{Epoch: 3, Adopted: map[string]int64{}},
	}
	for i, a := range list {
		if a.told().newer(a) {
			t.Errorf("%s is newer than itself", a.text())
		}
		for _, b := range list[:i] {
			if a.told().newer(b) == b.told().newer(a) {
				t.Errorf("%s and %s: regions that have one of them don't agree", a.text(), b.text())
			}
		}
	}
}

// TestConflictingChanges makes a change on each side of a partition. When it heals, all regions have the same one of
// the two changes, and one home.
func TestConflictingChanges(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		eu.cut.Store(true)
		time.Sleep(2 * silentAfter)
		if err := us.link.Move(t.Context(), "us", "ap", false); err != nil {
			t.Fatal(err)
		}
		if err := eu.link.Move(t.Context(), "us", "eu", true); err != nil {
			t.Fatal(err)
		}
		eu.cut.Store(false)
		time.Sleep(3 * beatEvery)
		want := us.link.Here()
		for _, s := range []*site{us, eu, ap} {
			if h := s.link.Here(); h.Epoch != 2 || h.Home != want.Home || h.Home == "us" || h.Grace != (s.link.name == want.Home) {
				t.Errorf("%s: %+v, and us: %+v", s.link.name, h, want)
			}
		}
	})
}

// TestConcurrentChanges makes different changes on two nodes of a region at the same time. One node reports that its
// change failed.
func TestConcurrentChanges(t *testing.T) {
	inTime(t, func(t *testing.T, us, _, _ *site) {
		other := secondNode(t, us)
		drain := func(seen *Topology) error {
			seen.Away["eu"] = Drained
			return us.link.SetState(t.Context(), "ap", Drained, false)
		}
		if err := other.change(t.Context(), drain, "eu"); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "try again") {
			t.Errorf("%v", err)
		}
		if away := other.topology().Away; away["ap"] != Drained || away["eu"] != "" {
			t.Errorf("the other node knows of %v", away)
		}
		if err := other.SetState(t.Context(), "eu", Drained, false); err != nil || other.topology().Away["ap"] != Drained {
			t.Errorf("again: %v, %v", err, other.topology().Away)
		}
	})
}

// TestNodesOfARegion checks that nodes of a region agree. A node that is behind neither makes its region the home again
// nor undoes changes made on another node.
func TestNodesOfARegion(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		deaf, behind := secondNode(t, us), secondNode(t, us)
		for _, p := range deaf.peers {
			p.client.Transport = roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route") })
		}
		go func() { _ = deaf.Run(ctx) }()
		move(t, us.link, "us", "eu")
		if h := deaf.Here(); h.Home != "eu" {
			t.Errorf("a node that hears no region: %+v", h)
		}
		if err := us.link.SetState(t.Context(), "ap", Drained, false); err != nil {
			t.Fatal(err)
		}
		old := &Topology{Epoch: 2, Homes: map[string]string{"us": "ap"}}
		if err := behind.learn(t.Context(), old, 0); err != nil || behind.Here().Home != "eu" || behind.Here().Epoch != 3 {
			t.Errorf("the node learned an old topology instead of its region's: %+v, %v", behind.Here(), err)
		}
		time.Sleep(3 * beatEvery)
		if h := us.link.Here(); h.Home != "eu" || h.Epoch != 3 {
			t.Errorf("%+v", h)
		}

		for _, c := range []struct {
			says string
			do   func(*Link) error
		}{
			{"eu is the home", func(l *Link) error { return l.SetState(t.Context(), "eu", Drained, false) }},
			{"eu is the home", func(l *Link) error { return l.SetState(t.Context(), "eu", Forgotten, true) }},
			{"us is no longer a home", func(l *Link) error { return l.Move(t.Context(), "us", "eu", true) }},
			{"ap is drained", func(l *Link) error { return l.Move(t.Context(), "eu", "ap", true) }},
			{`no region is named "x"`, func(l *Link) error { return l.SetState(t.Context(), "x", Drained, false) }},
			{`no region is named "x"`, func(l *Link) error { return l.SetState(t.Context(), "x", "", false) }},
		} {
			node := secondNode(t, us) // this node hasn't read the topology yet
			if err := c.do(node); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		}
		behind = secondNode(t, us)
		if err := behind.SetState(t.Context(), "us", Drained, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * beatEvery)
		for _, s := range []*site{us, eu, ap} {
			if top := s.link.topology(); top.Epoch != 4 || top.Away["ap"] != Drained || top.Away["us"] != Drained || top.home("us") != "eu" {
				t.Errorf("%s: %s", s.link.name, top.text())
			}
		}
		behind = secondNode(t, us)
		if err := behind.SetState(t.Context(), "ap", "", false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * beatEvery)
		if top := ap.link.topology(); top.Away["ap"] != "" || top.Away["us"] != Drained {
			t.Errorf("a node that is behind has restored ap: %s", top.text())
		}
	})
}

// TestStoreThatForgetsTheTopology checks that if the store loses the topology, nodes keep the one they know, and an old
// home doesn't become home again.
func TestStoreThatForgetsTheTopology(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		move(t, us.link, "us", "eu")
		cells := us.stakes.cells.(*memoryCells)
		cells.mu.Lock()
		clear(cells.values)
		cells.mu.Unlock()
		time.Sleep(3 * beatEvery)
		if h := us.link.Here(); h.Home != "eu" || h.Epoch != 2 {
			t.Errorf("us: %+v", h)
		}
		again := secondNode(t, us) // a node that starts now learns the topology from other regions
		if _, err := again.peers["ap"].say(t.Context(), &message{}); err != nil || again.Here().Home != "eu" {
			t.Errorf("a node that starts: %+v, %v", again.Here(), err)
		}
	})
}

// TestStoreGetsTheTopologyBack checks that nodes restore a topology that their store has lost, with the times at which
// they adopted homes. A node that starts then doesn't treat an old home as a new one.
func TestStoreGetsTheTopologyBack(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		cells := eu.stakes.cells.(*memoryCells)
		lose := func(then []byte) {
			cells.mu.Lock()
			defer cells.mu.Unlock()
			clear(cells.values)
			if then != nil {
				cells.values[topologyKey] = kept{then, cells.clock() + keepTopology.Microseconds()}
			}
		}
		restarted := func(epoch int64) *Link {
			t.Helper()
			l := secondNode(t, eu)
			for range 2 { // once from its store, once from another region
				if err := l.learn(t.Context(), nil, 0); err != nil {
					t.Fatal(err)
				}
				if _, err := l.peers["ap"].say(t.Context(), &message{}); err != nil {
					t.Fatal(err)
				}
			}
			if h := l.Here(); h.Home != "eu" || h.Epoch != epoch || h.Grace {
				t.Errorf("a node that starts: %+v, %s", h, l.topology().text())
			}
			return l
		}
		move(t, us.link, "us", "eu")
		time.Sleep(grace)
		adopted := eu.link.topology().Adopted["us"]
		moved := eu.link.topology().text()
		for _, then := range [][]byte{nil, []byte("{"), (&Topology{Epoch: 1}).text()} {
			lose(then)
			time.Sleep(2 * beatEvery)
			restarted(2)
		}

		// A change is made before the topology is restored.
		lose(nil)
		if err := eu.link.SetState(t.Context(), "ap", Drained, false); err != nil {
			t.Fatal(err)
		}
		restarted(3)

		// The store goes back to an older state. A node that is behind neither undoes the change nor makes one based on
		// the old state.
		behind := secondNode(t, eu)
		drain := func(seen *Topology) error {
			if err := eu.link.SetState(t.Context(), "ap", "", false); err != nil {
				return err
			}
			lose(moved)
			if err := behind.learn(t.Context(), nil, 0); err != nil {
				return err
			}
			time.Sleep(2 * beatEvery)
			seen.Away["us"] = Drained
			return nil
		}
		if err := behind.change(t.Context(), drain, "us"); !errors.Is(err, ErrRefused) {
			t.Errorf("a change of what is old: %v", err)
		}
		last := restarted(4).topology()
		if last.Adopted["us"] != adopted || len(last.Away) > 0 {
			t.Errorf("%s, and eu had learned of it at %d", last.text(), adopted)
		}
	})
}

// TestSharesAddUp checks that the regions' shares add up to the limit, whatever the topology and however large the
// floor. The home owns a forgotten region's share.
func TestSharesAddUp(t *testing.T) {
	sites := world(t, time.Now, "us", "eu", "ap", "sa")
	now := time.Now().UnixMicro()
	long := map[string]int64{"us": 1, "eu": 1}
	for _, c := range []struct {
		name string
		said *Topology
		less bool // a region still waits for its share
	}{
		{"nothing", &Topology{Epoch: 1}, false},
		{"drained", &Topology{Away: map[string]string{"ap": Drained}}, false},
		{"forgotten", &Topology{Away: map[string]string{"ap": Forgotten, "sa": Forgotten}}, false},
		{"moved", &Topology{Homes: map[string]string{"us": "eu"}, Adopted: long}, false},
		{"moved, and another is forgotten", &Topology{Homes: map[string]string{"us": "eu"}, Away: map[string]string{"ap": Forgotten}, Adopted: long}, false},
		{"moved there and back", &Topology{Homes: map[string]string{"us": "us", "eu": "us"}, Adopted: long}, false},
		{"moved just now", &Topology{Homes: map[string]string{"us": "eu"}, Adopted: map[string]int64{"us": now - grace.Microseconds() + 1}}, true},
	} {
		for _, floor := range []int{0, 5, 20, 50} {
			for _, l := range []counter.Limit{budget, counter.PerHour(1000)} {
				p := sharedPolicy(t, "p", l)
				p = p.With(func(d *counter.Definition) { d.Floor = floor })
				var own, rate int64
				for _, s := range sites {
					s.link.topo.Store(c.said)
					share := s.link.share(p, now)
					if own += share.Own; c.said.Away[s.link.name] == Forgotten && share.Own+share.Rate != 0 || share.Own < 0 || share.Rate < 0 {
						t.Errorf("%s: floor %d%%: %s owns %d, and %d of the rate", c.name, floor, s.link.name, share.Own, share.Rate)
					}
					rate += share.Rate
				}
				if c.less && (own >= 1000 && floor < 25 || rate > 1000) || !c.less && (own != stake.Whole(p) || rate != 1000) {
					t.Errorf("%s: floor %d%%: shares add up to %d of 1000, and rates to %d", c.name, floor, own, rate)
				}
			}
		}
	}
}

// TestUntouchedBucketsAtANewHome checks buckets that the new home hasn't used. It doesn't know what the old home
// admitted, so they start with its floor.
func TestUntouchedBucketsAtANewHome(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		bucket := sharedPolicy(t, "b", counter.Limit{Count: 3600, Window: 20 * time.Minute, Burst: 1000})
		begun := time.Now()
		if r := take(us, asks(bucket, "a", 900))[0]; !r.Allowed { // all that us owns; the other regions don't learn of it
			t.Fatalf("%+v", r)
		}
		move(t, ap.link, "us", "eu")
		time.Sleep(grace)
		n := 900 + drainOf(t, eu, bucket, "a") + drainOf(t, us, bucket, "a") + drainOf(t, ap, bucket, "a")
		if most := 1000 + 3*int64(time.Since(begun).Seconds()) + 3; n > most || n < most-3*60 {
			t.Errorf("%d were admitted in %v, and the limit is %d", n, time.Since(begun), most)
		}
		time.Sleep(10 * time.Minute)
		if r := take(eu, asks(bucket, "later", 900))[0]; !r.Allowed {
			t.Errorf("ten minutes later a new client has less than all: %+v", r)
		}
	})
}

// TestHomesMoveOn checks that if the home moves twice, the last home has all limits.
func TestHomesMoveOn(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		window, bucket := sharedPolicy(t, "w", budget), sharedPolicy(t, "b", counter.PerHour(1000))
		own := func(p *counter.Policy, home int64) {
			t.Helper()
			for _, s := range []*site{us, eu, ap} {
				standing, err := s.link.Standing(t.Context(), &counter.Counter{Policy: p, Subject: []byte("a")})
				if want := map[*site]int64{us: 50, eu: 50, ap: home}[s]; err != nil || standing.Own != want || standing.Home != "ap" {
					t.Errorf("%s of %s: %+v, want %d: %v", s.link.name, p.Name, standing, want, err)
				}
			}
		}
		move(t, us.link, "us", "eu")
		time.Sleep(2 * grace)
		move(t, us.link, "eu", "ap")
		for _, s := range []*site{us, eu, ap} {
			if h := s.link.Here(); h.Home != "ap" || h.Grace != (s == ap) {
				t.Errorf("%s: %+v", s.link.name, h)
			}
		}
		own(window, 50)
		own(bucket, 50) // eu's loans haven't ended yet
		time.Sleep(grace)
		own(window, 50)
		own(bucket, 900)
		time.Sleep(budget.Window)
		own(window, 900)
	})
}

// TestHomeOfRulesMoves moves the home that some rules name, which isn't the home of the other rules.
func TestHomeOfRulesMoves(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		rules, err := weir.Compile(weir.Rules{Version: 1, Rules: []weir.Rule{{ID: "w", Global: true, Home: "ap", Limits: []counter.Limit{counter.PerMinute(100)}}}})
		if err != nil {
			t.Fatal(err)
		}
		us.link.Serve(weir.NewLimiter(us.own, rules, weir.Options{}), us.own)
		move(t, us.link, "ap", "eu")
		for _, s := range []*site{us, eu, ap} {
			if h, home := s.link.Here(), s.link.HomeOf(&weir.Rule{Home: "ap"}); h.Home != "us" || home != "eu" {
				t.Errorf("%s: rules that name ap have their home in %s, and others in %s", s.link.name, home, h.Home)
			}
		}
	})
}

// TestDrainedRegionsKeepWhatTheyUsed checks that a drained region's share stays reserved until it is forgotten or
// removed.
func TestDrainedRegionsKeepWhatTheyUsed(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		window := sharedPolicy(t, "w", budget)
		if r := take(ap, asks(window, "a", 50))[0]; !r.Allowed {
			t.Fatalf("%+v", r)
		}
		if err := us.link.SetState(t.Context(), "ap", Drained, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * beatEvery)
		if n := drainOf(t, us, window, "a"); n != 950 {
			t.Errorf("us has %d beside the 50 that ap had", n)
		}
		if s, err := ap.link.Standing(t.Context(), &counter.Counter{Policy: window, Subject: []byte("a")}); s != nil || err != nil {
			t.Errorf("the home decides, not what ap has: %+v, %v", s, err)
		}
		for i, how := range []string{Drained, Forgotten, ""} {
			var err error
			switch how {
			case Forgotten:
				err = us.link.SetState(t.Context(), "ap", Forgotten, true)
			case "":
				err = us.link.SetState(t.Context(), "ap", "", false)
			}
			time.Sleep(3 * beatEvery)
			if state := fmt.Sprint(us.link.Peers()[0].State, ap.link.Here().State); err != nil || state != how+how {
				t.Errorf("%d: ap is %q, want %q: %v", i, state, how, err)
			}
		}
	})
}
