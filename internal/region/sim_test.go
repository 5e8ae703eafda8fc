package region

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
)

// network is what lies between the regions of a simulated world.
type network struct {
	rand     *rand.Rand
	rtt      time.Duration
	loss     float64 // of messages, each way
	double   float64
	late     float64 // up to 30 s
	cut      map[[2]string]bool
	messages int
	entries  int
}

// simulated makes regions in virtual time. The first one is home.
func simulated(t testing.TB, net *network, names ...string) []*site {
	sites := world(t, time.Now, names...)
	for i, s := range sites {
		s.link.timeout = DefaultTimeout
		for _, p := range s.link.peers {
			p.since, p.up, p.heard = time.Now(), true, time.Now()
			to := sites[slices.Index(names, p.name)]
			p.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) { return net.carry(names[i], to, r) })
		}
	}
	return sites
}

var errLost = errors.New("lost")

func (n *network) carry(from string, to *site, r *http.Request) (*http.Response, error) {
	n.messages++
	time.Sleep(n.rtt / 2)
	if n.cut[[2]string{from, to.link.name}] || n.rand.Float64() < n.loss {
		<-r.Context().Done()
		return nil, errLost
	}
	w := httptest.NewRecorder()
	to.link.ServeHTTP(w, r)
	time.Sleep(n.rtt / 2)
	if n.cut[[2]string{to.link.name, from}] || n.rand.Float64() < n.loss {
		<-r.Context().Done()
		return nil, errLost
	}
	return w.Result(), nil
}

func TestLossSmoke(t *testing.T) {
	for _, load := range []float64{0.5, 0.9, 1.5} {
		synctest.Test(t, func(t *testing.T) {
			net := &network{rand: rand.New(rand.NewPCG(1, 2)), rtt: 150 * time.Millisecond}
			sites := simulated(t, net, "us", "eu", "ap")
			p := policyOf(t, "q", weir.PerSecond(100), true)
			p.Travels, p.Floor = false, 5
			q := policyOf(t, "exact", weir.PerSecond(100), false)
			var state weir.State
			admitted, exact, asked := 0, 0, 0
			done := make(chan bool, 100000)
			outstanding := 0
			end := time.Now().Add(60 * time.Second)
			for time.Now().Before(end) {
				time.Sleep(time.Duration(net.rand.ExpFloat64() / (100 * load) * 1e9))
				asked++
				i := []int{0, 0, 0, 0, 0, 0, 1, 1, 1, 2}[net.rand.IntN(10)]
				var ok bool
				if state, ok = q.Try(state, time.Now().UnixMicro(), 1); ok {
					exact++
				}
				outstanding++
				go func() {
					var r [1]weir.Result
					sites[i].Take(t.Context(), []weir.Charge{{Counter: weir.Counter{Policy: p, Subject: []byte("s")}, N: 1}}, r[:])
					if r[0].Err != nil {
						t.Error(r[0].Err)
					}
					done <- r[0].Allowed
				}()
			}
			for range outstanding {
				if <-done {
					admitted++
				}
			}
			fmt.Println(load, "asked", asked, "exact", exact, "admitted", admitted, "lost", float64(exact-admitted)/float64(exact), "messages", net.messages)
			for _, s := range sites {
				s.stakes.close()
			}
		})
	}
}
