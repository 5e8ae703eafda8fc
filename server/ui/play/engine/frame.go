package engine

import (
	"fmt"
	"strconv"
	"time"

	"github.com/weirhq/weir/counter"
)

// Frame is what to draw next. It contains only marks, points and arrivals that earlier frames didn't contain. A fresh
// frame contains all of them again.
type Frame struct {
	At    float64 `json:"at"`
	Fresh bool    `json:"fresh"`
	// Arrivals are the times of requests that have been decided. Coming are the times of future requests.
	Arrivals []float64   `json:"arrivals"`
	Coming   []float64   `json:"coming"`
	Lanes    []LaneFrame `json:"lanes"`
	// Whole has the results of requests under all of the user's rules together: the marks, the counts, and, in Text,
	// the response to the last request.
	Whole LaneFrame `json:"whole"`
	// Text explains what a demonstration shows. Done reports that the demonstration has ended.
	Text string `json:"text"`
	Done bool   `json:"done"`
	// Full says why no more arrivals can be added. It is "" if more can be added.
	Full string `json:"full"`
}

// LaneFrame is what to draw next in one lane.
type LaneFrame struct {
	// Marks has three numbers for each request: the index of its arrival; 0 for refused, 1 for admitted, 2 for delayed, or
	// 3 for refused by another limit; and its delay. Points has three numbers for each point: a time; the value, which
	// changes in a straight line until the next point; and the part of the value that comes from the previous window.
	Marks  []float64 `json:"marks"`
	Points []float64 `json:"points"`
	// Value is the value at the time of the frame, and Base is the part of it that comes from the previous window.
	Value float64 `json:"value"`
	Base  float64 `json:"base"`
	// Text describes the value and its parts.
	Text string `json:"text"`
	// From is the time from which on requests count: the beginning of a window; for a log, one window's length before
	// the frame's time; for a bucket, the frame's time.
	From float64 `json:"from"`
	Counts
}

// Counts has the numbers of requests by result. Delayed requests are also included in the admitted ones.
type Counts struct {
	Sent     int `json:"sent"`
	Admitted int `json:"admitted"`
	Refused  int `json:"refused"`
	Delayed  int `json:"delayed"`
	// Peak is the largest number of requests that passed within one window's length. Waiting is the number of requests
	// that are admitted but still delayed.
	Peak    int `json:"peak"`
	Waiting int `json:"waiting"`
}

// Lane describes a lane, which is the drawing of one counter.
type Lane struct {
	ID        string `json:"id"`
	Algorithm string `json:"algorithm"`
	Limit     string `json:"limit"`
	// Rule is the user's rule that the lane belongs to. It is "" if algorithms are compared.
	Rule   string  `json:"rule"`
	Shadow bool    `json:"shadow"`
	Max    float64 `json:"max"`
	Window float64 `json:"window"`
	// Offset is when the first window begins. It is -1 if windows have no fixed edges.
	Offset float64 `json:"offset"`
}

// Lanes returns the lanes, in the order that frames use.
func (e *Engine) Lanes() []Lane {
	out := []Lane{}
	for _, l := range e.lanes {
		p := l.policy
		d := Lane{
			ID: p.Name, Algorithm: p.Limit.Algorithm.String(), Limit: p.Limit.String(), Shadow: p.Shadow,
			Max: float64(p.Limit.Max()), Window: float64(l.window), Offset: -1,
		}
		if p.Limit.Burst > 0 && p.Limit.Burst != p.Limit.Count {
			d.Limit += ", burst " + strconv.FormatInt(p.Limit.Burst, 10)
		}
		if e.own != nil {
			d.Rule = p.Rule
		}
		if a := p.Limit.Algorithm; a == counter.FixedWindow || a == counter.SlidingCounter {
			w, _ := p.Windows(counter.State{}, e.begin)
			d.Offset = float64(w.Time - e.begin)
		}
		out = append(out, d)
	}
	return out
}

// Span returns how much time the page should show, in µs.
func (e *Engine) Span() float64 { return 2.5 * float64(e.scale()) }

func (e *Engine) frame() Frame {
	f := Frame{At: float64(e.at), Fresh: e.fresh, Lanes: []LaneFrame{}, Arrivals: []float64{}, Coming: []float64{}}
	if e.fresh {
		e.sent = 0
	}
	for _, a := range e.schedule[e.sent:e.next] {
		f.Arrivals = append(f.Arrivals, float64(a.at))
	}
	e.sent = e.next
	for _, a := range e.schedule[e.next:min(len(e.schedule), e.next+maxComing)] {
		if a.at <= e.at+e.ahead() {
			f.Coming = append(f.Coming, float64(a.at))
		}
	}
	for _, l := range e.lanes {
		f.Lanes = append(f.Lanes, e.laneFrame(l))
	}
	f.Whole = LaneFrame{Marks: e.whole.unseen(e.fresh), Counts: e.whole.now(e.at), Text: e.answer}
	if f.Text, f.Done = e.seen, e.seen != ""; e.demo != nil && !f.Done {
		f.Text = e.demo.watch(e, e.numbers)
	}
	if e.full && e.next == len(e.schedule) {
		f.Full = e.errFull().Error()
	}
	e.fresh = false
	return f
}

func (e *Engine) laneFrame(l *lane) LaneFrame {
	now := e.begin + e.at
	l.draw(now)
	if e.fresh {
		l.drew = 0
	}
	f := LaneFrame{Marks: l.unseen(e.fresh), Points: l.points[l.drew:], Counts: l.now(e.at)}
	l.drew = len(l.points)
	f.Value, f.Base = l.value(now)
	var from int64
	f.Text, from = l.text(now)
	f.From = float64(from - e.begin)
	return f
}

// unseen returns the marks that earlier frames didn't contain.
func (t *trace) unseen(fresh bool) []float64 {
	if fresh {
		t.shown = 0
	}
	marks := t.marks[t.shown:]
	t.shown = len(t.marks)
	return marks
}

// now returns the counts at a time.
func (t *trace) now(at int64) Counts {
	t.pass(at)
	c := Counts{
		Admitted: t.counts[admitted] + t.counts[delayed], Refused: t.counts[refused] + t.counts[elsewhere],
		Delayed: t.counts[delayed], Peak: t.peak, Waiting: len(t.leaves) - t.left,
	}
	c.Sent = c.Admitted + c.Refused
	return c
}

// text describes the state of a counter. from is the time from which on requests count.
func (l *lane) text(now int64) (text string, from int64) {
	p, r := l.policy, l.report(now)
	from = now
	value, _ := l.value(now)
	most := p.Limit.Max()
	switch p.Limit.Algorithm {
	case counter.TokenBucket:
		text = fmt.Sprintf("%.1f of %d tokens", value, most)
	case counter.LeakyBucket:
		text = fmt.Sprintf("%.1f of %d full", value, most)
	case counter.LeakyQueue:
		text = "the next leaves at once"
		if !r.Allowed {
			text = "no place free"
		} else if r.Delay > 0 {
			text = "the next waits " + seconds(r.Delay)
		}
		text = fmt.Sprintf("%d waiting, %s", len(l.leaves)-l.left, text)
	case counter.SlidingLog:
		text, from = fmt.Sprintf("%.0f of %d", value, most), now-l.window
		for at := range l.log.Entries() {
			text += ", the oldest goes in " + seconds(micros(at+l.window-now))
			break
		}
	default:
		w, weight := p.Windows(l.state, now)
		from = w.Time
		if p.Limit.Algorithm == counter.FixedWindow {
			text = fmt.Sprintf("%d of %d, at 0 again in %s", w.Level, most, seconds(micros(w.Time+l.window-now)))
			break
		}
		text = fmt.Sprintf("%d × %s %% + %d = %s of %d", w.Prev, short(weight*100), w.Level, short(value), most)
	}
	return text, from
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// seconds formats a time for people, for example 9 s, 0.7 s or 40 ms.
func seconds(d time.Duration) string {
	if d < 100*time.Millisecond {
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return short(d.Seconds()) + " s"
}

// short formats a number with one decimal, which it leaves out if it is 0.
func short(x float64) string {
	s := strconv.FormatFloat(x, 'f', 1, 64)
	if n := len(s) - 2; s[n:] == ".0" {
		return s[:n]
	}
	return s
}
