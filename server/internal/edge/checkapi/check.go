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
	"github.com/weirhq/weir/internal/private"
)

func (c *workspace) readCheck(src []byte) error {
	c.attrs, c.first = c.attrs[:0], 0
	if err := c.document(src, checkFields, c.checkField); err != nil {
		return err
	}
	c.show(&c.req, c.attrs)
	return c.complete()
}

func (h *handler) check(w http.ResponseWriter, r *http.Request, c *workspace) error {
	if err := c.readCheck(c.in.Bytes()); err != nil {
		return err
	}
	now := private.Now(h.limiter) // take the time before the check, so that the times in the answer, added to it, are never late
	d, err := h.ask(r, &c.req)
	h.report(r, err)
	h.respond(w, c, &d, now)
	return nil
}

// DecodeCheck reads the body of a check for handlers that don't decide it, for example to explain
// it. The error is a *[jsonerror.Error].
func DecodeCheck(src []byte) (weir.Request, error) {
	c := newWorkspace().(*workspace)
	if err := c.readCheck(src); err != nil {
		return weir.Request{}, err
	}
	return c.req, nil
}

type item struct {
	req   weir.Request
	attrs []attribute
	err   *jsonerror.Error
}

// readBatch reads all checks before any is decided: a body that turns out not to be JSON at its end
// must not have charged anyone.
func (c *workspace) readBatch() error {
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

// readItem reads one check. If it is JSON but not a valid check, the error belongs to that check
// alone.
func (c *workspace) readItem() error {
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
			return err // the body isn't JSON
		}
	}
	for c.json.StackDepth() > depth { // skip the rest of an invalid check
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

func (h *handler) checks(w http.ResponseWriter, r *http.Request, c *workspace) error {
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
	h.leave(c) // a client that reads a long answer slowly holds nobody up
	send(w, http.StatusOK, c.out)
	return nil
}

// decideAll decides items in order and appends the results to c.out. It returns the store's first
// error.
func (h *handler) decideAll(r *http.Request, c *workspace, items []item) (first error) {
	now := private.Now(h.limiter)
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
			refused = httplimit.Describe(&it.req, &d, time.Time{}) // the time of day isn't shown
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

// decideParallel decides each item on a goroutine of its own.
func (h *handler) decideParallel(r *http.Request, c *workspace) (first error) {
	calls, errs := make([]*workspace, len(c.items)), make([]error, len(c.items))
	h.each(len(calls), func(i int) {
		calls[i] = h.singles.Get().(*workspace)
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
