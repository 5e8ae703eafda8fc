package weir_test

import (
	"math"
	"strconv"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
)

// An observer that samples one decision in eight sees each client in proportion to its requests. This holds even if clients
// take turns in groups of eight, or of a Fibonacci number, which is the worst case for steps by the golden ratio.
func TestSpreadIsInStepWithNoPattern(t *testing.T) {
	const oneIn, each = 8, 8_000
	for _, clients := range []int{2, 8, 55} {
		seen := make([]int, clients)
		l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, weir.Rules{}), weir.Options{Observe: func(o *weir.Observation) {
			if o.Spread <= math.MaxUint64/oneIn {
				i, _ := strconv.Atoi(o.Request.APIKey)
				seen[i]++
			}
		}})
		for i := range clients * each {
			_, _ = l.Check(t.Context(), &weir.Request{APIKey: strconv.Itoa(i % clients)})
		}
		for i, n := range seen {
			if want := each / oneIn; n < want*5/6 || n > want*7/6 {
				t.Errorf("%d clients, one decision in %d: client %d was seen %d times, want about %d", clients, oneIn, i, n, want)
			}
		}
	}
}
