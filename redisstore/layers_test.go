package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/storetest"
)

// apart has three subjects, one for each primary of a Cluster.
func apart(s *Store, from string) []string {
	return []string{tagged(s, 10, from), tagged(s, tags/2, from), tagged(s, tags-10, from)}
}

// TestLayersInSeveralSlots checks requests whose client, organization and common limit lie in different hash slots. Concurrent
// requests never exceed a limit, and in the end each counter holds exactly what was admitted.
func TestLayersInSeveralSlots(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	var nodes []*Store
	for range 2 {
		nodes = append(nodes, open(t, Options{URL: clusterURL(c)}))
	}
	for _, a := range storetest.Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			const clients, orgs = 8, 2
			client := policy(t, fmt.Sprint("client", a), a, 60, year)
			org := policy(t, fmt.Sprint("org", a), a, 150, year)
			all := policy(t, fmt.Sprint("all", a), a, 250, year)
			shadow := policy(t, fmt.Sprint("shadow", a), a, 200, year)
			shadow = shadow.With(func(d *counter.Definition) { d.Shadow = true })
			everyone := tagged(nodes[0], 10, "everyone")
			names := map[string]string{}
			for i := range clients {
				for _, kind := range []string{"client", "org"} {
					names[fmt.Sprint(kind, i)] = tagged(nodes[0], tags/3*(1+i%2)+i, kind)
				}
			}
			name := func(kind string, i int) string { return names[fmt.Sprint(kind, i)] }
			var perClient [clients]atomic.Int64
			got := storm(64, 1500, func(i int) bool {
				who := rand.IntN(clients)
				ok := true
				for j, r := range take(t.Context(), nodes[i%2],
					charge1(client, name("client", who)), charge1(org, name("org", who%orgs)), charge1(all, everyone), charge1(shadow, everyone)) {
					if r.Err != nil {
						t.Errorf("take: %v", r.Err)
					}
					ok = ok && (r.Allowed || j == 3)
				}
				if ok {
					perClient[who].Add(1)
				}
				return ok
			})
			var perOrg [orgs]int64
			for who := range clients {
				n := perClient[who].Load()
				perOrg[who%orgs] += n
				if n > 60 || used(t, nodes[1], client, name("client", who)) != n {
					t.Errorf("client %d: %d admitted of 60, %d counted", who, n, used(t, nodes[1], client, name("client", who)))
				}
			}
			for i, n := range perOrg {
				if n > 150 || used(t, nodes[1], org, name("org", i)) != n {
					t.Errorf("org %d: %d admitted of 150, %d counted", i, n, used(t, nodes[1], org, name("org", i)))
				}
			}
			if got > 250 || used(t, nodes[0], all, everyone) != int64(got) {
				t.Errorf("%d admitted of 250, %d counted", got, used(t, nodes[0], all, everyone))
			}
			if n := used(t, nodes[0], shadow, everyone); n > min(200, int64(got)) {
				t.Errorf("%d admitted, %d counted in shadow of 200", got, n)
			}
			if got < 100 {
				t.Errorf("only %d of 250 admitted: layers refuse each other", got)
			}
		})
	}
	lasting(t, primaries(t, c)...)
}

// TestLayersInSeveralSlotsReport checks that a request that another hash slot refused gets the same results as from memory.
// Tokens that it was lent meanwhile have gone back, too.
func TestLayersInSeveralSlotsReport(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	now := storetest.Start
	clock := func() time.Time { return now }
	s := open(t, Options{URL: clusterURL(c), Now: clock})
	m := storetest.NewModel(clock)
	for _, a := range storetest.Algorithms {
		for _, b := range storetest.Algorithms {
			t.Run(fmt.Sprint(a, "+", b), func(t *testing.T) {
				// One token a second is a whole number of millionths per microsecond, so nothing is rounded when tokens go
				// back.
				wide := policy(t, fmt.Sprint("wide", a, b), a, 3600, time.Hour)
				narrow := policy(t, fmt.Sprint("narrow", a, b), b, 5, 5*time.Second)
				subjects := apart(s, fmt.Sprint("s", a, b))
				for i := range 40 {
					charges := []counter.Charge{charge1(wide, subjects[0]), charge1(narrow, subjects[1]), charge1(wide, subjects[2])}
					charges[0].N, charges[2].N, charges[2].Peek = 3, 2, i%7 == 0
					asks := []ledger.Ask{{Charge: charges[0], Want: int64(i % 3 * 20)}, {Charge: charges[1]}, {Charge: charges[2], Want: int64(i % 4 * 10)}}
					want, got := make([]ledger.Grant, 3), make([]ledger.Grant, 3)
					m.Lend(t.Context(), asks, want)
					s.Lend(t.Context(), asks, got)
					for j := range want {
						// After tokens were taken and given back, the account's time is newer.
						if got[j].Result != want[j].Result || got[j].Lent != want[j].Lent {
							t.Fatalf("take %d, charge %d:\n got %+v\nwant %+v", i, j, got[j], want[j])
						}
					}
					now = now.Add(time.Duration(i%5) * 97 * time.Millisecond)
				}
			})
		}
	}
}

// TestLayersAreGivenBackWhenTheCallerHasGone checks that no tokens are lost if a caller leaves as soon as it knows of the
// refusal.
func TestLayersAreGivenBackWhenTheCallerHasGone(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	for _, a := range storetest.Algorithms {
		p := policy(t, fmt.Sprint("p", a), a, 100, year)
		gone, leave := context.WithCancel(t.Context())
		c := charge1(p, "s")
		parts, err := s.split(nil, kindTake, 1, func(int) *counter.Counter { return &c.Counter })
		if err != nil {
			t.Fatal(err)
		}
		taken := parts[0]
		taken.charges[0].n = 1
		if err := taken.joiner.do(gone, &taken.act); err != nil {
			t.Fatal(err)
		}
		results := make([]counter.Result, 1)
		s.report(taken, outcomes{results: results}, true)
		leave()
		s.undo(gone, taken, outcomes{results: results}, time.Now())
		if r := results[0]; !r.Allowed || r.Remaining != 100 {
			t.Errorf("%s: %+v", a, r)
		}
		until(t, func(context.Context) error {
			if n := used(t, s, p, "s"); n != 0 {
				return fmt.Errorf("%s: %d are still taken", a, n)
			}
			return nil
		})
	}
}
