package lease

import (
	"bytes"
	"context"

	"github.com/weirhq/weir"
)

// takeAll of a request with several charges: first what can be decided here, then the rest by the store.
// What was spent here goes back if the request is refused.
func (s *Store) takeAll(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	if repeats(charges) {
		s.pass(ctx, charges, results) // the store adds them up, and what it says is of the sum
		return
	}
	var few [8]layer
	layers := few[:0]
	refused, asks := false, 0
	now := s.now()
	for i := range charges {
		l := layer{charge: &charges[i], result: &results[i]}
		s.look(&l, now)
		if l.local {
			refused = refused || !l.result.Allowed && !l.charge.Policy.Shadow
		} else {
			asks++
		}
		layers = append(layers, l)
	}
	if asks > 0 && refused {
		// What is known to be refused needn't be asked for, if what to say of the others is known as well.
		s.undo(layers)
		if asks = s.recall(layers, now); asks > 0 {
			asks = len(layers)
			for i := range layers {
				layers[i].local = false
			}
		}
	}
	if asks > 0 {
		refused = s.askAll(ctx, layers, asks)
	}
	if refused {
		s.undo(layers)
	}
}

// repeats: two of the charges name one counter.
func repeats(charges []weir.Charge) bool {
	for i := range charges {
		for j := range i {
			a, b := &charges[i].Counter, &charges[j].Counter
			if a.Policy.ID == b.Policy.ID && bytes.Equal(a.Subject, b.Subject) {
				return true
			}
		}
	}
	return false
}

// layer is one charge of several.
type layer struct {
	charge *weir.Charge
	result *weir.Result
	x      *holding // nil: it is cold, or isn't lent
	hash   uint64
	local  bool // decided here
	spent  bool // of what is held,
	slot   int64
	slow   bool
}

// look decides a charge from what the node holds, if it can.
func (s *Store) look(l *layer, now int64) {
	c := l.charge
	if !s.lends(c) {
		return
	}
	l.hash = s.hash(&c.Counter)
	if l.x = s.table.find(l.hash); l.x == nil {
		if l.x = s.meet(l.hash, c, now); l.x == nil {
			return
		}
	}
	x := l.x
	x.mu.Lock()
	defer x.unlock()
	x.adopt(c.Policy)
	x.arrive(now, c.N, 1)
	l.spent = x.spend(now, c.N, l.result)
	l.slot, l.slow = x.slot, x.slow
	l.local = l.spent || x.refused(now, c.N, l.result)
}

// recall reports of charges that weren't decided what the store said of them a moment ago, and returns how many
// have no such answer.
func (s *Store) recall(layers []layer, now int64) (unknown int) {
	for i := range layers {
		l := &layers[i]
		if l.local {
			continue
		}
		if l.x != nil {
			l.x.mu.Lock()
			if l.local = l.x.knows(now, l.charge.N); l.local {
				l.x.fits(now, l.result)
			}
			l.x.unlock()
		}
		if !l.local {
			unknown++
		}
	}
	return unknown
}

// askAll asks the store for what couldn't be decided here, and reports whether the request is refused by it.
func (s *Store) askAll(ctx context.Context, layers []layer, asks int) (refused bool) {
	sent := s.now()
	questions, answers := make([]weir.Charge, 0, asks), make([]weir.Result, asks)
	for i := range layers {
		l := &layers[i]
		if l.local {
			continue
		}
		q := *l.charge
		if l.x != nil {
			l.x.mu.Lock()
			q.Loan = l.x.loan(sent)
			l.x.out -= q.Spent
			l.x.unlock()
		}
		questions = append(questions, q)
	}
	s.pass(ctx, questions, answers)
	at := 0
	for i := range layers {
		l := &layers[i]
		if l.local {
			continue
		}
		*l.result = answers[at]
		switch {
		case l.x != nil:
			s.learn(ctx, l.x, l.charge, questions[at].Loan, sent, l.result, nil)
		case l.hash != 0:
			s.remember(l.charge, l.result, l.hash, sent)
		default:
			s.addHeld(l.charge, l.result)
		}
		r := l.result
		refused = refused || r.Err == nil && !r.Allowed && !l.charge.Policy.Shadow
		at++
	}
	return refused
}

// undo puts back what was spent here for a request that is refused, once.
func (s *Store) undo(layers []layer) {
	now := s.now()
	var returns []weir.Return
	for i := range layers {
		l := &layers[i]
		if !l.spent {
			continue
		}
		l.spent = false
		x := l.x
		x.mu.Lock()
		if !x.unspend(now, l.charge.N, l.slot) && !l.slow { // the store may know already that those of a slow lease were spent
			back := x.back(l.charge.N)
			back.Slot, back.Slow = l.slot, false
			returns = append(returns, back)
		}
		x.fits(now, l.result)
		x.unlock()
	}
	s.giveBack(returns)
}
