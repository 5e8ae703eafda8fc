package storetest

import (
	"embed"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// The files in contract hold the test cases. Each case sends an empty store one request per line, and says what the store must
// answer:
//
//	case Slots/costs                        a case; "for $a in LIST" runs it once for each value, and "and $b in LIST" for each pair
//	limit p concurrency 5/30s               a limit with a name; "low=p" is named low here, but uses the counters of p
//	take s 3 p #1 : ok 2 reset=30s          subject s asks p for 3 with hold 1: this is allowed, 2 are left, all are free in 30s
//	3x take s 1 p #new, 1 q : no 0, ok      the same request three times, against two limits: p refuses it, q would allow it
//	peek s 1 p : no 0 retry=27s
//	left s 0 p, 98 q                        what a peek says is left
//	step 27s-1us                            time passes; "step retry" waits for the last RetryAfter, and "at TIME" sets the clock
//	return s 3 p #1 used=1.5 once=7 : used  tokens go back; the answer is [counter.ErrUsed]
//	reset s p, q
//
// A charge must be allowed, and a return must succeed, unless the line says otherwise. A refusal must have a RetryAfter, which
// is Never only if the line says "retry=never". Amounts of Decimal limits are decimals. "~5" means 5 to 5.2, and "-4" means 4
// less than the last answer. "@t" names another subject. "as=x" names a charge, and a return with "from=x" uses the slot of
// that charge.
//
// The order of a request's charges must not matter, so cases whose requests have several charges run in both orders.
//
//go:embed contract/*.txt
var contract embed.FS

// scene is one test case.
type scene struct {
	name   string
	values [2][]string // the values of $a and $b
	lines  []string    // each with its file and line number in front
	orders []bool      // the orders of charges to run: false as written, true reversed
}

func scenes() (all []*scene) {
	files, _ := contract.ReadDir("contract")
	for _, f := range files {
		text, _ := contract.ReadFile(path.Join("contract", f.Name()))
		number := 0
		for line := range strings.Lines(string(text)) {
			number++
			line = strings.TrimSpace(line)
			head, isCase := strings.CutPrefix(line, "case ")
			switch {
			case line == "" || line[0] == '#':
			case isCase:
				all = append(all, newScene(head))
			default:
				s := all[len(all)-1]
				s.lines = append(s.lines, fmt.Sprintf("%s:%d: %s", f.Name(), number, line))
				if strings.Contains(line, "take ") && strings.Contains(line, ",") {
					s.orders = []bool{false, true}
				}
			}
		}
	}
	return all
}

func newScene(head string) *scene {
	s := &scene{orders: []bool{false}, values: [2][]string{{""}, {""}}}
	var lists string
	s.name, lists, _ = strings.Cut(head, " for $a in ")
	if lists == "" {
		return s
	}
	for i, list := range strings.Split(lists, " and $b in ") {
		switch list {
		case "algorithms":
			s.values[i] = names(Algorithms)
		case "amounts":
			s.values[i] = names(amounts)
		default:
			s.values[i] = strings.Fields(list)
		}
	}
	return s
}

func names(algorithms []counter.Algorithm) (all []string) {
	for _, a := range algorithms {
		all = append(all, a.String())
	}
	return all
}

// amounts are the algorithms that can count amounts.
var amounts = []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow}

func runContract(t *testing.T, open Open) {
	for _, s := range scenes() {
		for _, a := range s.values[0] {
			for _, b := range s.values[1] {
				for _, reversed := range s.orders {
					name := strings.Trim(s.name+"/"+a+"+"+b, "/+")
					if reversed {
						name += " reversed"
					}
					t.Run(name, func(t *testing.T) {
						p := &player{test: t, reversed: reversed, limits: map[string]*counter.Policy{}, slots: map[string]int64{}, times: map[string]time.Time{}}
						p.harness = start(p, open)
						for _, p.line = range s.lines {
							_, text, _ := strings.Cut(p.line, ": ")
							p.play(strings.NewReplacer("$a", a, "$b", b).Replace(text))
						}
					})
				}
			}
		}
	}
}
