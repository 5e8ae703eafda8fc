package top

import (
	"cmp"
	"context"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Nodes don't exchange the last hour until one of them is asked about it. That node writes the
// question to Redis, where all nodes look once a second, and each of them answers once, with what
// concerns the question alone. So an hour of all rules never travels.
const (
	// allTold is how many bytes all answers to one question may have together, compressed: Redis
	// keeps them for ten seconds. With more than a thousand nodes, each may still use leastTold.
	allTold, leastTold, mostTold = 16 << 20, 16 << 10, 2 << 20
	// unpacked is how many times larger an answer may be when it is unpacked, and heard is how many
	// bytes of answers a node holds.
	unpacked, heard = 4, 2 * 4 * allTold
	// questions is how many questions a node answers in a second, and looked is how many it looks
	// at: answered questions stay in Redis for a while.
	questions, looked = 8, 64
	// remembered is how long an answer also serves others who ask the same question, and kept is
	// how many such answers there are.
	remembered, kept = 3 * time.Second, 8
	// atOnce is how many questions a node asks at a time, and mostAsked includes those that wait
	// for their turn. Further questions are refused, because each may wait for two seconds.
	atOnce, mostAsked = 4, 16
)

// asked is a question to all nodes, and their answers.
type asked struct {
	done    chan struct{} // closed when the answers have arrived; the fields below don't change afterwards
	all     []told
	missing []string
	err     error
	weight  int // of all

	// Guarded by Shared.hour:
	at      time.Time // when they were asked
	over    bool
	waiting int // for the answers
	cancel  context.CancelFunc
}

func (q question) String() string {
	switch {
	case q.client != nil:
		return "client:" + fmt.Sprintf("%08x", *q.client)
	case q.rule != "":
		return "rule:" + q.rule
	}
	return "rules"
}

func parseQuestion(text string) (q question, ok bool) {
	kind, name, _ := strings.Cut(text, ":")
	switch {
	case text == "rules":
		return q, true
	case kind == "rule" && name != "" && clean(name):
		return question{rule: name}, true
	case kind == "client" && len(name) == 8:
		n, err := strconv.ParseUint(name, 16, 32)
		client := uint32(n)
		return question{client: &client}, err == nil
	}
	return q, false
}

func (s *Shared) questionsKey() string { return s.key("questions") }

func (s *Shared) toldKey(question, node string) string {
	sum := sha256.Sum256([]byte(question))
	return s.key("told:" + hex.EncodeToString(sum[:8]) + ":" + node)
}

// budget returns how many bytes an answer may have.
func budget(nodes int) int { return min(mostTold, max(leastTold, allTold/max(1, nodes))) }

// answer answers the questions that were asked since the last look.
func (s *Shared) answer(ctx context.Context, c rueidis.Client, asked []rueidis.ZScore) {
	answered := make(map[string]float64, len(asked))
	left := questions
	for _, q := range slices.Backward(asked) { // the oldest first
		if s.answered[q.Member] >= q.Score {
			answered[q.Member] = q.Score
			continue
		}
		parsed, ok := parseQuestion(q.Member)
		if !ok {
			continue
		}
		if left == 0 {
			continue // in a second
		}
		left--
		answered[q.Member] = q.Score
		b, err := s.top.packTold(parsed, s.node, budget(s.redis.Nodes()), s.sealer.box(s.top.key.Load()))
		if err == nil {
			err = c.Do(ctx, c.B().Set().Key(s.toldKey(q.Member, s.node)).Value(rueidis.BinaryString(b)).ExSeconds(asking).Build()).Error()
		}
		if err != nil {
			delete(answered, q.Member) // try again at the next look
		}
	}
	s.answered = answered
}

// packTold packs an answer into at most that many bytes. It leaves out what doesn't fit: for one
// rule, the keys with the fewest requests, and for all rules, the rules with the fewest.
func (t *Top) packTold(q question, node string, most int, box cipher.AEAD) ([]byte, error) {
	for space := most; ; space /= 2 {
		out := t.tell(q, node, room{space, space / 16})
		if q.rule == "" && q.client == nil && space < most {
			slices.SortFunc(out.Rules, func(a, b toldRule) int { return cmp.Compare(b.Sum.Requests, a.Sum.Requests) })
			left := len(out.Rules) * space / most
			out.Left, out.Rules = len(out.Rules)-left, out.Rules[:left]
		}
		out.seal(box)
		b, weight, err := out.packed()
		if err != nil || len(b) <= most && weight <= unpacked*most {
			return b, err
		}
		if space == 0 {
			return nil, errTooLarge
		}
	}
}

// ErrBusy means that too many questions are being asked.
var ErrBusy = errors.New("the nodes are being asked many other questions: try again in a second")

// askOthers asks the other nodes, unless the same question was asked a moment ago. It drops a
// question for which nobody waits any more.
func (s *Shared) askOthers(ctx context.Context, q question) *asked {
	text := q.String()
	s.hour.Lock()
	a := s.asks[text]
	if a == nil || a.over && time.Since(a.at) >= remembered {
		if s.asking >= mostAsked {
			s.hour.Unlock()
			return &asked{err: ErrBusy}
		}
		s.asking++
		life, cancel := context.WithCancel(context.WithoutCancel(ctx)) // others may wait for it, too
		s.forgetLocked(text)
		a = &asked{done: make(chan struct{}), cancel: cancel}
		s.asks[text] = a
		go s.askInTurn(life, q, a)
	}
	a.waiting++
	s.hour.Unlock()
	defer s.leave(text, a)
	select {
	case <-a.done:
		return a
	case <-ctx.Done():
		return &asked{err: ctx.Err()}
	}
}

// askInTurn asks a question when it is its turn.
func (s *Shared) askInTurn(life context.Context, q question, a *asked) {
	defer a.cancel()
	select {
	case s.seats <- struct{}{}:
		s.hour.Lock()
		a.at = time.Now()
		s.hour.Unlock()
		a.all, a.missing, a.weight, a.err = s.collect(life, q)
		<-s.seats
	case <-life.Done():
	}
	s.hour.Lock()
	s.asking--
	a.over = true
	if a.err != nil && !errors.Is(a.err, errBadList) {
		a.at = time.Time{} // the failure may be over, so the next caller asks again
	}
	if s.asks[q.String()] != a {
		s.room.Add(int64(a.weight)) // everybody has left
	}
	s.forgetOldLocked()
	s.hour.Unlock()
	close(a.done)
}

// leave notes that a caller no longer waits.
func (s *Shared) leave(text string, a *asked) {
	s.hour.Lock()
	defer s.hour.Unlock()
	if a.waiting--; a.waiting == 0 && !a.over {
		a.cancel()
		if s.asks[text] == a {
			delete(s.asks, text) // the next caller starts over
		}
	}
}

// forgetLocked forgets the answers to a question.
func (s *Shared) forgetLocked(text string) {
	if a := s.asks[text]; a != nil && a.over {
		s.room.Add(int64(a.weight))
		delete(s.asks, text)
	}
}

// forgetOldLocked forgets old answers, and then the oldest ones until the rest are few and small
// enough.
func (s *Shared) forgetOldLocked() {
	for {
		oldest, n, weight := "", 0, 0
		for text, a := range s.asks {
			if !a.over {
				continue
			}
			n, weight = n+1, weight+a.weight
			if oldest == "" || a.at.Before(s.asks[oldest].at) {
				oldest = text
			}
		}
		if n == 0 || n <= kept && weight <= heard/2 && time.Since(s.asks[oldest].at) < remembered {
			return
		}
		s.forgetLocked(oldest)
	}
}

// collect asks the other nodes a question, and waits for as long as they may need to see it and to
// answer.
func (s *Shared) collect(ctx context.Context, q question) (all []told, missing []string, weight int, err error) {
	now, answers := s.top.options.Now(), map[string]told{}
	most := 2 * budget(s.redis.Nodes()) // other nodes may count fewer
	nodes, err := s.inquire(ctx, inquiry{
		ask: func(b rueidis.Builder) []rueidis.Completed {
			return rueidis.Commands{
				b.Zremrangebyscore().Key(s.questionsKey()).Min("-inf").Max(strconv.FormatInt(now.Add(-asking*time.Second).UnixMilli(), 10)).Build(),
				b.Zadd().Key(s.questionsKey()).ScoreMember().ScoreMember(float64(now.UnixMilli()), q.String()).Build(),
				b.Expire().Key(s.questionsKey()).Seconds(asking).Build(),
			}
		},
		wait: patience + callTime, most: most,
		key: func(node string) string { return s.toldKey(q.String(), node) },
		read: func(node string, b []byte) (again bool, err error) {
			t, size, err := s.unpackTold(b, q, most, now.Add(-old)) // older answers belong to an earlier question
			if err == nil {
				t.Node, weight = node, weight+size
				answers[node] = t
			}
			return err != nil, err
		},
	})
	all, missing = sorted(nodes, answers)
	return all, missing, weight, err
}

// unpackTold unpacks an answer, and returns its size, which it takes from the room. It unpacks one
// at a time, because they may be large.
func (s *Shared) unpackTold(b []byte, q question, most int, since time.Time) (t told, size int, err error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	space := min(int(s.room.Load()), unpacked*most)
	left := space
	t, err = unpackTold(b, &left, q, s.top.options.Now(), since)
	if err != nil {
		return told{}, 0, err // and what was read of it is garbage
	}
	s.room.Add(int64(left - space))
	k := s.top.key.Load()
	t.open(s.sealer.box(k), k)
	return t, space - left, nil
}
