package lease

import (
	"context"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/storetest"
)

// told keeps what a store was told to be spent, and what it lent, by slot.
type told struct {
	weir.Store
	lent, spent map[int64]int64
}

func (s *told) Take(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	s.Store.Take(ctx, charges, results)
	s.spent[charges[0].SpentSlot] += charges[0].Spent
	s.lent[results[0].Slot] += results[0].Lent
}

// TestSpentTokensAreToldOfOnce: of a slow lease, while the store lends and when it has none left to lend; and what it
// was told of can't be unspent.
func TestSpentTokensAreToldOfOnce(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		inner := &told{f.Store, map[int64]int64{}, map[int64]int64{}}
		f.Store = inner
		p := storetest.Policy(t, "p", weir.Limit{Count: 100, Window: time.Minute})
		for range 200 {
			take(s, charge(p, "s", 1))
			time.Sleep(300 * time.Millisecond)
		}
		all := int64(0)
		for slot, n := range inner.spent {
			if all += n; n > inner.lent[slot] {
				t.Errorf("%d spent of %d lent in slot %d", n, inner.lent[slot], slot)
			}
		}
		if all == 0 {
			t.Error("the store was told of nothing: the test shows nothing")
		}
		s.withHolding(&weir.Counter{Policy: p, Subject: []byte("s")}, func(x *holding) {
			x.held, x.out, x.until = 0, 1, s.now()+1
			if !x.unspend(s.now(), 1, x.slot) || x.unspend(s.now(), 1, x.slot) {
				t.Error("more is held than the store takes to be out, or less")
			}
			x.held = 0
		})
	})
}

// TestASlowLeaseTellsWhatIsLeft: also seconds after the store was asked, when some has refilled.
func TestASlowLeaseTellsWhatIsLeft(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := storetest.Policy(t, "p", weir.Limit{Count: 100, Window: time.Minute})
		take(s, charge(p, "s", 30))
		take(s, charge(p, "s", 30))
		asked := s.Asked()
		for range 20 {
			time.Sleep(time.Second)
			got := take(s, charge(p, "s", 1))[0].Remaining
			if there := remaining(f, p, "s") + holds(s, p, "s"); got < there-1 || got > there+1 {
				t.Errorf("says that %d are left, of %d", got, there)
			}
		}
		if s.Asked()-asked > 10 {
			t.Error("hardly any was decided here: the test shows nothing")
		}
	})
}
