package checkapi

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
)

// item is a check of a batch, or what is wrong with it.
type item struct {
	req   weir.Request
	attrs []attribute
	err   *jsonerror.Error
}

// readBatch reads all checks before any is decided: what turns out at its end not to be JSON must not have
// charged anyone.
func (c *call) readBatch() error {
	c.attrs, c.items = c.attrs[:0], c.items[:0]
	given := false
	err := c.document(c.in.Bytes(), batchFields, func(name string) error {
		given = true
		return c.elements(name, '[', c.readItem)
	})
	if err == nil && !given {
		return jsonerror.Bad(`checks: is missing: send {"checks": [{"key": …}, …]}`)
	}
	return err
}

// readItem reads a check. One that can't be read is an error of its own, as long as it is JSON.
func (c *call) readItem() error {
	if len(c.items) == MaxChecks {
		return jsonerror.Bad("checks: there may be at most %d: send the rest in another call", MaxChecks)
	}
	from, depth := c.json.InputOffset(), c.json.StackDepth()
	c.body, c.first = body{cost: 1}, len(c.attrs)
	err := c.object("check", checkFields, c.checkField, nil)
	if err == nil {
		err = c.complete()
	}
	var bad *jsonerror.Error
	if err != nil {
		ok := false
		if bad, ok = errors.AsType[*jsonerror.Error](err); !ok {
			return err // it isn't JSON
		}
	}
	for c.json.StackDepth() > depth { // the rest of one that can't be read
		if _, err := c.json.ReadToken(); err != nil {
			return err
		}
	}
	if text := c.src[from:c.json.InputOffset()]; len(text) > MaxBody && len(strings.TrimLeft(text, ", \t\r\n")) > MaxBody {
		bad = tooLarge(MaxBody)
	}
	if bad != nil {
		c.attrs = c.attrs[:c.first]
		c.items = append(c.items, item{err: bad})
		return nil
	}
	c.items = append(c.items, item{req: c.req, attrs: c.attrs[c.first:]})
	return nil
}

func (h *handler) checks(w http.ResponseWriter, r *http.Request, c *call) error {
	if err := c.readBatch(); err != nil {
		return err
	}
	c.out = append(c.out[:0], `{"results":[`...)
	var err error
	if h.opts.Parallel && len(c.items) > 1 {
		err = h.decideParallel(r, c)
	} else {
		err = h.decideAll(r, c, c.items)
	}
	c.out = append(c.out, "]}\n"...)
	h.report(r, err)
	w.Header()["Content-Type"] = jsonType
	h.leave(c) // a client that takes a long answer slowly holds nobody up
	send(w, http.StatusOK, c.out)
	return nil
}

// decideAll decides items in their order and appends the results to c.out.
// The error is the first that the store had.
func (h *handler) decideAll(r *http.Request, c *call, items []item) (first error) {
	now := h.limiter.Now()
	for i := range items {
		it := &items[i]
		if i > 0 {
			c.out = append(c.out, ',')
		}
		if it.err != nil {
			c.out = append(it.err.Append(appendStatus(c.out, it.err.Status)), '}')
			continue
		}
		c.show(&it.req, it.attrs)
		d, err := h.ask(r, &it.req)
		refused := httplimit.Refused{Status: http.StatusOK}
		if !d.Allowed {
			refused = httplimit.Describe(&it.req, &d, time.Time{}) // nobody is told the time of day
		}
		c.out = appendDecision(appendStatus(c.out, refused.Status), &d, &refused, now)
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

// decideParallel decides every item on a goroutine of its own.
func (h *handler) decideParallel(r *http.Request, c *call) (first error) {
	calls, errs := make([]*call, len(c.items)), make([]error, len(c.items))
	together(len(calls), func(i int) {
		calls[i] = h.singles.Get().(*call)
		calls[i].out = calls[i].out[:0]
		errs[i] = h.decideAll(r, calls[i], c.items[i:i+1])
	})
	for i, one := range calls {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = append(c.out, one.out...)
		if first == nil {
			first = errs[i]
		}
		release(&h.singles, one)
	}
	return first
}
