package engine

import (
	"fmt"
	"strconv"
	"time"

	"github.com/weirhq/weir/counter"
)

// Frame is what there is to draw. Arrivals, marks and points come once; a fresh frame has all of them again.
type Frame struct {
	At    float64 `json:"at"`
	Fresh bool    `json:"fresh"`
	// Arrivals are the moments of requests that have been decided, Coming of those that are still to come.
	Arrivals []float64   `json:"arrivals"`
	Coming   []float64   `json:"coming"`
	Lanes    []LaneFrame `json:"lanes"`
	// Whole is what became of requests under all of the user's rules together: marks, counts, and the last answer as its Text.
	Whole LaneFrame `json:"whole"`
	// Text explains what a demonstration shows, Done says that it is over.
	Text string `json:"text"`
	Done bool   `json:"done"`
	// Full says that no more arrivals can be kept, or is "".
	Full string `json:"full"`
}

// LaneFrame is what there is to draw of one lane.
type LaneFrame struct {
	// Marks are three numbers for each request: that of the arrival; 0 refused, 1 admitted, 2 delayed, 3 refused by another
	// limit; and the delay. Points are three, too: a moment, the value from there on in a straight line to the next point, and
	// the part of it that is the weighted window before's.
	Marks  []float64 `json:"marks"`
	Points []float64 `json:"points"`
	// Value and Base are those of this moment.
	Value float64 `json:"value"`
	Base  float64 `json:"base"`
	// Text says the value with all that it is made of.
	Text string `json:"text"`
	// From is where the time begins that counts: the window's beginning, of a log a window's length ago, of a bucket now.
	From float64 `json:"from"`
	Counts
}

// Counts are what became of requests. Delayed ones are among those admitted.
type Counts struct {
	Sent     int `json:"sent"`
	Admitted int `json:"admitted"`
	Refused  int `json:"refused"`
	Delayed  int `json:"delayed"`
	// Peak is how many were let go within any one window's length, Waiting how many are admitted and not let go yet.
	Peak    int `json:"peak"`
	Waiting int `json:"waiting"`
}

// Lane describes a lane.
type Lane struct {
	ID        string `json:"id"`
	Algorithm string `json:"algorithm"`
	Limit     string `json:"limit"`
	// Rule is that of the user's which the lane is of, or "".
	Rule   string  `json:"rule"`
	Shadow bool    `json:"shadow"`
	Max    float64 `json:"max"`
	Window float64 `json:"window"`
	// Offset is when a window begins, for windows that have edges, otherwise -1.
	Offset float64 `json:"offset"`
}

// Lanes describes the lanes, in the order of frames.
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

// Span is how much time a page should show, µs.
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
	if e.demo != nil {
		f.Text, f.Done = e.story()
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

// unseen are the marks that frames haven't had.
func (t *trace) unseen(fresh bool) []float64 {
	if fresh {
		t.shown = 0
	}
	marks := t.marks[t.shown:]
	t.shown = len(t.marks)
	return marks
}

// now is how the counts stand at a moment.
func (t *trace) now(at int64) Counts {
	t.pass(at)
	c := Counts{
		Admitted: t.counts[admitted] + t.counts[delayed], Refused: t.counts[refused] + t.counts[elsewhere],
		Delayed: t.counts[delayed], Peak: t.peak, Waiting: len(t.leaves) - t.left,
	}
	c.Sent = c.Admitted + c.Refused
	return c
}

// text says how a counter stands, and from when on requests count in it.
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

// seconds is a time as people read it: 9 s, 0.7 s, 40 ms.
func seconds(d time.Duration) string {
	if d < 100*time.Millisecond {
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return short(d.Seconds()) + " s"
}

// short is a number with one digit after the point, if that isn't 0.
func short(x float64) string {
	s := strconv.FormatFloat(x, 'f', 1, 64)
	if n := len(s) - 2; s[n:] == ".0" {
		return s[:n]
	}
	return s
}
