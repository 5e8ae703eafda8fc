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

	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/redisstore"
)

// Nodes don't tell each other of the hour until one of them is asked. It writes the question down in Redis, where all look once a second, and
// each answers it once, with what concerns it alone: so an hour of all rules never travels.
const (
	// allTold is how many bytes all answers to a question have together, compressed: Redis keeps them for ten seconds. Of more than a thousand
	// nodes each still has leastTold.
	allTold, leastTold, mostTold = 16 << 20, 16 << 10, 2 << 20
	// unpacked is how many times as much an answer may weigh when it is unpacked, and heard how much all answers may that are held.
	unpacked, heard = 4, 2 * 4 * allTold
	// questions is how many of them a node answers in a second, and looked how many it looks at: those that it has answered stay for a while.
	questions, looked = 8, 64
	// remembered is how long an answer does for others who ask the same, and kept how many there are.
	remembered, kept = 3 * time.Second, 8
	// atOnce is how many a node asks at a time, and mostAsked with those that wait for their turn. What is beyond is refused: each may wait for
	// two seconds.
	atOnce, mostAsked = 4, 16
	// told at a time, so that checks on the same connection needn't wait for megabytes.
	toldAtOnce = 16
)

// asked is a question to all nodes, and their answers.
type asked struct {
	done    chan struct{} // closed when they are there, and what follows doesn't change any more
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

// budget is how many bytes an answer may have.
func budget(nodes int) int { return min(mostTold, max(leastTold, allTold/max(1, nodes))) }

// answer answers questions that somebody has asked since it last looked.
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
			delete(answered, q.Member) // it looks again
		}
	}
	s.answered = answered
}

// packTold is an answer of no more than so many bytes. What doesn't fit is left out: of a rule the keys that send the least, of all rules
// those that are used the least.
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

// askOthers asks the other nodes, unless somebody has just asked the same. A question that nobody waits for any more isn't asked.
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
		go s.ask1(life, q, a)
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

// ask1 asks a question when it is its turn.
func (s *Shared) ask1(life context.Context, q question, a *asked) {
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
		a.at = time.Time{} // it may be over: whoever asks next asks anew
	}
	if s.asks[q.String()] != a {
		s.room.Add(int64(a.weight)) // everybody has left
	}
	s.forgetOldLocked()
	s.hour.Unlock()
	close(a.done)
}

// leave notes that somebody waits no more.
func (s *Shared) leave(text string, a *asked) {
	s.hour.Lock()
	defer s.hour.Unlock()
	if a.waiting--; a.waiting == 0 && !a.over {
		a.cancel()
		if s.asks[text] == a {
			delete(s.asks, text) // whoever asks it next begins anew
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

// forgetOldLocked forgets answers that are old, and the oldest of the others, until there are few enough, and they weigh little enough.
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

// collect writes a question down, and waits for the answers for as long as nodes may need to see it and to answer.
func (s *Shared) collect(ctx context.Context, q question) (all []told, missing []string, weight int, err error) {
	if s.lost() {
		return nil, nil, 0, redisstore.ErrUnavailable
	}
	ctx, cancel := context.WithTimeout(ctx, patience+2*callTime)
	defer cancel()
	c, err := s.redis.Client()
	if err != nil {
		return nil, nil, 0, err
	}
	peers, err := s.redis.Peers(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	var waiting []string
	for _, p := range peers {
		if p.Name != s.node {
			waiting = append(waiting, p.Name)
		}
	}
	if len(waiting) == 0 {
		return nil, nil, 0, nil
	}
	now := s.top.options.Now()
	for _, r := range c.DoMulti(ctx,
		c.B().Zremrangebyscore().Key(s.questionsKey()).Min("-inf").Max(strconv.FormatInt(now.Add(-asking*time.Second).UnixMilli(), 10)).Build(),
		c.B().Zadd().Key(s.questionsKey()).ScoreMember().ScoreMember(float64(now.UnixMilli()), q.String()).Build(),
		c.B().Expire().Key(s.questionsKey()).Seconds(asking).Build()) {
		if err := r.Error(); err != nil {
			return nil, waiting, 0, err
		}
	}
	h := &hearing{q: q, since: now.Add(-old), waiting: waiting, most: 2 * budget(len(peers))} // they may count fewer nodes
	for ends := time.Now().Add(patience + callTime); ; {
		err = s.hear(ctx, c, h)
		if err != nil || len(h.waiting) == 0 || time.Now().After(ends) || !rediscall.Sleep(ctx, again) {
			return h.all, append(h.waiting, h.bad...), h.weight, cmp.Or(h.failed, err)
		}
	}
}

// hearing is what was heard of a question.
type hearing struct {
	q       question
	since   time.Time // what was told before is the answer to another question
	waiting []string  // nodes
	most    int       // bytes of an answer
	all     []told
	weight  int      // of all
	bad     []string // nodes whose answers can't be read: nobody looks at them again
	failed  error    // why not
}

// hear reads the answers that are there.
func (s *Shared) hear(ctx context.Context, c rueidis.Client, h *hearing) error {
	names := h.waiting
	h.waiting = nil
	for some := range slices.Chunk(names, toldAtOnce) {
		names = names[len(some):]
		var gets rueidis.Commands
		for _, name := range some {
			gets = append(gets, c.B().Getrange().Key(s.toldKey(h.q.String(), name)).Start(0).End(int64(h.most)).Build())
		}
		for i, reply := range c.DoMulti(ctx, gets...) {
			b, wrong, err := valueOf(reply, h.most)
			if err != nil {
				h.waiting = append(append(h.waiting, some[i:]...), names...)
				return err
			}
			var t told
			if len(b) > 0 {
				t, wrong = s.unpackTold(b, h)
			}
			switch {
			case len(b) == 0 && wrong == nil || wrong == errUnwanted:
				h.waiting = append(h.waiting, some[i])
			case wrong != nil:
				h.bad, h.failed = append(h.bad, some[i]), cmp.Or(h.failed, badList(some[i], wrong))
			default:
				t.Node = some[i]
				h.all = append(h.all, t)
			}
		}
	}
	return nil
}

// unpackTold reads an answer. One is read at a time: they may be large.
func (s *Shared) unpackTold(b []byte, h *hearing) (told, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	most := min(int(s.room.Load()), unpacked*h.most)
	left := most
	t, err := unpackTold(b, &left, h.q, s.top.options.Now(), h.since)
	if err != nil {
		return told{}, err // and what was read of it is garbage
	}
	h.weight += most - left
	s.room.Add(int64(left - most))
	k := s.top.key.Load()
	t.open(s.sealer.box(k), k)
	return t, nil
}
