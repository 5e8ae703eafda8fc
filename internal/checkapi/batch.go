package checkapi

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
)

// batch is the body of /v1/checks. All of it is read before anything is
// decided: what turns out at its end not to be JSON must not have charged anyone.
type batch struct {
	c     *call
	seen  bool
	items []item
	attrs []attribute // of all items
}

// item is a check of a batch, or what is wrong with it.
type item struct {
	req         weir.Request
	first, last int // in attrs
	err         *jsonerror.Error
}

func (x *batch) reset() {
	clear(x.items)
	clear(x.attrs)
	x.items, x.attrs, x.seen = x.items[:0], x.attrs[:0], false
}

func (x *batch) field(p *parser, name []byte) error {
	if string(name) != "checks" {
		return unknownField(name, batchFields)
	}
	if x.seen {
		return jsonerror.Bad("checks: is given twice")
	}
	x.seen = true
	if p.peek() != '[' {
		return p.mismatch("checks", "a list")
	}
	p.pos++
	if p.peek() == ']' {
		p.pos++
		return nil
	}
	for {
		if len(x.items) == MaxChecks {
			return jsonerror.Bad("checks: there may be at most %d: send the rest in another call", MaxChecks)
		}
		if err := x.item(p); err != nil {
			return err
		}
		switch p.peek() {
		case ',':
			p.pos++
		case ']':
			p.pos++
			return nil
		default:
			return p.syntax("expected , or ]")
		}
	}
}

// item reads a check. One that can't be read is an error of its own, as long as it is JSON.
func (x *batch) item(p *parser) error {
	p.peek()
	from, c := p.pos, x.c
	c.body.reset()
	err := p.object("check", (*checkBody)(&c.body))
	if err == nil {
		err = c.request()
	}
	if err != nil {
		p.pos = from
		if err := p.skip(); err != nil {
			return err
		}
	}
	if p.pos-from > MaxBody {
		err = tooLarge(MaxBody)
	}
	if err != nil {
		var f *jsonerror.Error
		errors.As(err, &f)
		x.items = append(x.items, item{err: f})
		return nil
	}
	first := len(x.attrs)
	x.attrs = append(x.attrs, c.attrs...)
	x.items = append(x.items, item{req: c.req, first: first, last: len(x.attrs)})
	return nil
}

// checks serves /v1/checks.
func (h *handler) checks(w http.ResponseWriter, r *http.Request, c *call) error {
	if c.batch == nil {
		c.batch = &batch{c: c}
	}
	x := c.batch
	defer x.reset()
	if err := c.parse(c.in).document(x); err != nil {
		return err
	}
	if !x.seen {
		return jsonerror.Bad(`checks: is missing: send {"checks": [{"key": …}, …]}`)
	}
	c.out = append(c.out[:0], `{"results":[`...)
	var err error
	if workers := min(h.opts.Parallel, len(x.items)); workers > 1 {
		err = h.decideParallel(r, c, workers)
	} else {
		err = h.decideAll(r, c, x, x.items)
	}
	c.out = append(c.out, "]}\n"...)
	h.report(r, err)
	w.Header()["Content-Type"] = jsonType
	h.leave(c) // a client that takes a long answer slowly holds nobody up
	send(w, http.StatusOK, c.out)
	return nil
}

// decideAll decides items of x in their order and appends the results to c.out.
// The error is the first that the store had.
func (h *handler) decideAll(r *http.Request, c *call, x *batch, items []item) (first error) {
	for i := range items {
		it := &items[i]
		if i > 0 {
			c.out = append(c.out, ',')
		}
		if it.err != nil {
			c.out = append(it.err.Append(appendStatus(c.out, it.err.Status)), '}')
			continue
		}
		if it.last > it.first { // the request looks them up in the call that read it: show it to this one
			c.attrs = append(c.attrs[:0], x.attrs[it.first:it.last]...)
			it.req.Attr = c.attr
		}
		d, err := h.limiter.Check(r.Context(), &it.req)
		refused := httplimit.Refused{Status: http.StatusOK}
		if !d.Allowed {
			refused = httplimit.Describe(&it.req, &d, time.Time{}) // nobody is told the time of day
		}
		c.out = appendDecision(appendStatus(c.out, refused.Status), &d, &refused)
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

func appendStatus(b []byte, status int) []byte {
	b = strconv.AppendInt(append(b, `{"status":`...), int64(status), 10)
	return append(b, ',')
}

// decideParallel has several workers decide a stretch of the batch each. A panic of
// one is raised again here, where net/http looks after it.
func (h *handler) decideParallel(r *http.Request, c *call, workers int) error {
	type stretch struct {
		c        *call
		err      error
		panicked any
	}
	x, n := c.batch, len(c.batch.items)
	stretches := make([]stretch, workers)
	var wg sync.WaitGroup
	for i := range stretches {
		s := &stretches[i]
		s.c = h.singles.Get().(*call)
		s.c.out = s.c.out[:0]
		part := x.items[i*n/workers : (i+1)*n/workers]
		wg.Go(func() {
			defer func() { s.panicked = recover() }()
			s.err = h.decideAll(r, s.c, x, part)
		})
	}
	wg.Wait()
	var first error
	for i := range stretches {
		s := &stretches[i]
		if s.panicked != nil {
			panic(s.panicked)
		}
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = append(c.out, s.c.out...)
		if first == nil {
			first = s.err
		}
		release(&h.singles, s.c)
	}
	return first
}
