package top

import (
	"cmp"
	"context"
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

const (
	// patience is how long a question waits for the answers of the other nodes, and pollEvery is how often it looks for
	// them.
	patience, pollEvery = 2 * time.Second, 50 * time.Millisecond
	// readAtOnce is how many answers are read at a time.
	readAtOnce = 16
	// old is the age above which an answer belongs to an earlier question. Such an answer is used if there is no newer
	// one, unless it is older than oldest.
	old, oldest = 3 * time.Second, asking * time.Second
	// unpacked is how many times larger than its packed form an answer may be. heard is how many bytes of other nodes'
	// answers a node keeps in memory.
	unpacked, heard = 4, 2 * 4 * allTold
	// atOnce is how many questions a node asks at a time. mostAsked also includes the questions that wait for their
	// turn. Further questions are refused, because each of them may wait for two seconds.
	atOnce, mostAsked = 4, 16
)

// asked is a question to the other nodes, and the answers to it.
type asked struct {
	done    chan struct{} // closed when all answers have arrived; the fields up to weight don't change after that
	all     []told
	missing []string
	err     error
	weight  int // size of all answers, in bytes

	// The fields below are guarded by Cluster.mu. waiting is how many callers wait for the answers.
	waiting int
	cancel  context.CancelFunc
}

// ErrBusy means that too many questions are being asked.
var ErrBusy = errors.New("the nodes are being asked many other questions: try again in a second")

// askOthers asks the other nodes a question, or joins the same question that was asked a moment ago. It cancels a
// question if no caller waits for it anymore.
func (c *Cluster) askOthers(ctx context.Context, q question) *asked {
	c.mu.Lock()
	a := c.asks[q]
	if a == nil {
		if c.asking >= mostAsked {
			c.mu.Unlock()
			return &asked{err: ErrBusy}
		}
		c.asking++
		life, cancel := context.WithCancel(context.WithoutCancel(ctx)) // not the caller's context, because other callers may wait for the question, too
		a = &asked{done: make(chan struct{}), cancel: cancel}
		c.asks[q] = a
		wait := patience
		if q.kind == hotNow && time.Since(c.hotAsked) < (asking-2)*time.Second {
			wait = 0 // every node that can answer has answered a moment ago
		}
		go c.askInTurn(life, q, wait, a)
	}
	a.waiting++
	c.mu.Unlock()
	select {
	case <-a.done:
		return a
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.waiting--; a.waiting == 0 {
		a.cancel()
		c.forgetLocked(q, a) // the next caller asks again
	}
	return &asked{err: ctx.Err()}
}

func (c *Cluster) forgetLocked(q question, a *asked) {
	if c.asks[q] == a {
		delete(c.asks, q)
	}
}

// askInTurn asks a question once fewer than atOnce other questions are being asked.
func (c *Cluster) askInTurn(life context.Context, q question, wait time.Duration, a *asked) {
	defer a.cancel()
	var began time.Time
	select {
	case c.seats <- struct{}{}:
		began = time.Now()
		err := c.collect(life, q, wait, a)
		a.err = cmp.Or(a.err, err)
		<-c.seats
	case <-life.Done():
		a.err = life.Err()
	}
	c.keep(q, a, began)
	c.mu.Lock()
	c.asking--
	if q.kind == hotNow && a.err == nil {
		c.hotAsked = began
	}
	c.mu.Unlock()
	close(a.done)
}

// keep keeps the answers for some seconds, for other callers with the same question. It doesn't if the question failed,
// or if the answers would leave little memory for others.
func (c *Cluster) keep(q question, a *asked, began time.Time) {
	serves := 3 * time.Second
	switch {
	case a.err != nil && !errors.Is(a.err, errBadList), q.kind != hotNow && a.weight > heard/8:
		serves = 0
	case q.kind == hotNow:
		serves = time.Second
	}
	time.AfterFunc(serves-time.Since(began), func() {
		c.room.Add(int64(a.weight))
		c.mu.Lock()
		defer c.mu.Unlock()
		c.forgetLocked(q, a)
	})
}

// collect asks the other nodes a question. It returns when all of them have answered, or when the wait is over.
func (c *Cluster) collect(ctx context.Context, q question, wait time.Duration, a *asked) error {
	if !slices.ContainsFunc(c.redis.Health().Shards, func(s redisstore.ShardHealth) bool { return s.Up }) {
		return redisstore.ErrUnavailable // if any server is up, it may be the one through which nodes exchange questions
	}
	ctx, cancel := context.WithTimeout(ctx, wait+callTime)
	defer cancel()
	client, err := c.redis.Client()
	if err != nil {
		return err
	}
	now, b := c.top.options.Now(), client.B()
	past := strconv.FormatInt(now.Add(-asking*time.Second).UnixMilli(), 10)
	for _, reply := range client.DoMulti(ctx,
		b.Zremrangebyscore().Key(c.questionsKey()).Min("-inf").Max(past).Build(),
		b.Zadd().Key(c.questionsKey()).ScoreMember().ScoreMember(float64(now.UnixMilli()), q.String()).Build(),
		b.Expire().Key(c.questionsKey()).Seconds(asking).Build(),
	) {
		if err := reply.Error(); err != nil {
			return err
		}
	}
	peers, err := c.redis.Peers(ctx)
	if err != nil {
		return err
	}
	var nodes []string
	for _, p := range peers {
		if p.Name != c.node {
			nodes = append(nodes, p.Name)
		}
	}
	answers := map[string]told{}
	for waiting, ends := nodes, time.Now().Add(wait); ; {
		waiting, err = c.readAll(ctx, client, q, waiting, answers, a)
		if err != nil || len(waiting) == 0 || time.Now().After(ends) || !rediscall.Sleep(ctx, pollEvery) {
			break
		}
	}
	for _, node := range nodes {
		if t, there := answers[node]; there {
			a.all = append(a.all, t)
		} else {
			a.missing = append(a.missing, node)
		}
	}
	return err
}

// readAll reads the answers that have arrived, a few at a time, so that checks on the same connection don't wait for
// megabytes. It returns the nodes whose answers haven't arrived. If an answer can't be read, a.err says why.
func (c *Cluster) readAll(
	ctx context.Context, client rueidis.Client, q question, nodes []string, answers map[string]told, a *asked,
) (waiting []string, err error) {
	most := 2 * budget(c.redis.Nodes()) // other nodes may know of fewer nodes, and send more than this node's budget
	for some := range slices.Chunk(nodes, readAtOnce) {
		var gets rueidis.Commands
		for _, node := range some {
			gets = append(gets, client.B().Getrange().Key(c.toldKey(q.String(), node)).Start(0).End(int64(most)).Build())
		}
		for i, reply := range client.DoMulti(ctx, gets...) {
			node := some[i]
			b, err := reply.AsBytes()
			if _, refused := rueidis.IsRedisErr(err); err != nil && !refused {
				return nil, err
			}
			if err == nil && len(b) > 0 {
				var t told
				var size int
				if t, size, err = c.unpackTold(b, q, most, answers[node].At); err == nil {
					t.Node = node
					answers[node] = t
					a.weight += size
				}
			}
			switch {
			case err != nil && err != errUnwanted: // the value may also not be a string, or this user may not read it
				a.err = cmp.Or(a.err, fmt.Errorf("the list of %q in Redis %w: %w", node, errBadList, err))
			case c.top.options.Now().Sub(answers[node].At) > old:
				waiting = append(waiting, node)
			}
		}
	}
	return waiting, nil
}

// unpackTold unpacks an answer and returns its size, which it subtracts from room. It unpacks one answer at a time,
// because answers may be large. there is the time of the answer from the same node that is already known.
func (c *Cluster) unpackTold(b []byte, q question, most int, there time.Time) (t told, size int, err error) {
	if len(b) > most {
		return t, 0, errTooLarge
	}
	c.reading.Lock()
	defer c.reading.Unlock()
	space := min(int(c.room.Load()), unpacked*most)
	left := space
	t, err = unpackTold(b, &left, q, c.top.options.Now(), there)
	if err != nil {
		return told{}, 0, err // discard the part that has been read
	}
	c.room.Add(int64(left - space))
	k := c.top.key.Load()
	t.open(c.sealer.box(k), k)
	return t, space - left, nil
}

// partial returns a text for people that says why nodes may be missing in an answer.
func partial(err error, nodes int) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errBadList), errors.Is(err, ErrBusy):
		return err.Error()
	}
	why := "Redis can't be reached"
	if said, ok := rueidis.IsRedisErr(err); ok {
		why = "Redis answers " + strconv.Quote(said.Error())
	} else if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rueidis.ErrNoSlot) {
		why = "Redis, or the part of it that nodes meet in, doesn't answer"
	}
	if nodes > 1 {
		return why + ", so not all nodes are in this"
	}
	return why + ", so this is what this node knows alone"
}

// Asked says which nodes an answer includes.
type Asked struct {
	Covered
	NodesGone []Gone `json:"nodes_gone"`        // nodes that have ended within the last hour; what they had counted is lost
	Partial   string `json:"partial,omitempty"` // why other nodes may be missing
	// WholeSince is the time from which on the answer is complete. It is when the newest node began to count, or when
	// the last of the nodes in NodesGone ended. It is nil while the answers of live nodes are missing.
	WholeSince *time.Time `json:"whole_since"`
}

// Covered lists the nodes whose answers are included, and those that are missing.
type Covered struct {
	Nodes        []Node   `json:"nodes"`
	NodesMissing []string `json:"nodes_missing"` // live nodes that haven't answered
}

// Node is a node whose answer is included.
type Node struct {
	Name         string  `json:"name"`
	Self         bool    `json:"self"`
	AgeMS        int64   `json:"age_ms"`
	SampledOneIn float64 `json:"sampled_one_in"`
	// Since is when the node began to count.
	Since time.Time `json:"since"`
}

// ask returns this node's answer, followed by those of the other nodes. If too many questions are being asked, it
// returns ErrBusy.
func (c *Cluster) ask(ctx context.Context, q question) ([]told, Asked, error) {
	all := []told{c.top.tell(q, c.node, alone)}
	at := all[0].At
	out := Asked{Covered: Covered{NodesMissing: []string{}}, NodesGone: []Gone{}}
	others := &asked{}
	if c.redis != nil {
		others = c.askOthers(ctx, q)
		all = append(all, others.all...)
		out.NodesGone = c.roster.gone(c.redis.Heard().Peers, at)
		out.NodesMissing = append(out.NodesMissing, others.missing...)
		out.Partial = partial(others.err, len(all))
	}
	for i := range all {
		t := &all[i]
		if t.Since.IsZero() {
			t.Since = t.At // nodes with other releases don't send it
		}
		age := max(0, at.Sub(t.At).Milliseconds())
		out.Nodes = append(out.Nodes, Node{t.Node, i == 0, age, t.OneIn, t.Since.UTC().Truncate(time.Second)})
	}
	if others.err == ErrBusy {
		return all, out, ErrBusy
	}
	return all, out, nil
}

// askHour asks all nodes about the last hour.
func (c *Cluster) askHour(ctx context.Context, kind, name string) ([]told, Span, error) {
	all, asked, err := c.ask(ctx, question{kind, name})
	s := Span{SlotSeconds: HourSlot.Seconds(), Slots: HourSlots, Asked: asked, At: all[0].At.UTC()}
	s.first = all[0].Slot - HourSlots + 1
	s.From = time.Unix(int64(s.first)*int64(HourSlot/time.Second), 0).UTC()
	if some := s.NodesMissing[:min(5, len(s.NodesMissing))]; len(some) > 0 {
		s.Partial = cmp.Or(s.Partial, strings.Join(some, ", ")+
			" didn't answer in time: they may hang, run another release, or have other questions to answer")
	}
	for i := range all {
		if t := &all[i]; t.Left > 0 {
			s.Partial = cmp.Or(s.Partial, fmt.Sprintf(
				"%s has more rules than it can tell at once: the %d that are used the least aren't in this", t.Node, t.Left))
		}
	}
	if s.Partial == "" {
		starts := []time.Time{s.From}
		for _, n := range s.Nodes {
			starts = append(starts, n.Since)
		}
		for _, g := range s.NodesGone {
			starts = append(starts, g.Seen)
		}
		s.WholeSince = new(slices.MaxFunc(starts, time.Time.Compare))
	}
	return all, s, err
}
