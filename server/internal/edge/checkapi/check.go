package checkapi

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
)

func (h *handler) check(w http.ResponseWriter, r *http.Request, c *workspace) error {
	if err := c.complete(); err != nil {
		return err
	}
	now := private.Now(h.limiter) // read the time before the check, so that times in the response, which are computed from it, are never late
	d, err := h.ask(r, &c.req)
	h.report(r, err)
	h.respond(w, c, &d, now)
	return nil
}

// Text is a text in the body of another endpoint, beside the fields of a check.
type Text struct {
	Name  string
	Value *string
}

// DecodeCheck reads a body with the fields of a check, and more, for other handlers. The error is a *[jsonerror.Error].
func DecodeCheck(src []byte, more ...Text) (weir.Request, error) {
	c, fields := new(workspace), slices.Clone(checkFields)
	for _, m := range more {
		fields = append(fields, textField(m.Name, MaxText, func(*body) *string { return m.Value }))
	}
	err := c.document(src, fields)
	if err == nil {
		err = c.complete()
	}
	return c.req, err
}

type item struct {
	req   weir.Request
	fault *jsonerror.Error // why it can't be decided; nil if it can
	d     weir.Decision
	err   error // the store's error
}

// readItem reads one check of a batch. If it is JSON but invalid, the error belongs to this check
// alone, and the others are still decided.
func (c *workspace) readItem() error {
	if len(c.items) == MaxChecks {
		return jsonerror.Bad("checks: there may be at most %d: send the rest in another call", MaxChecks)
	}
	from, depth := c.json.InputOffset(), c.json.StackDepth()
	c.body, c.first = body{cost: 1}, len(c.attrs)
	err := c.object("check", checkFields, nil)
	if err == nil {
		err = c.complete()
	}
	bad, ok := errors.AsType[*jsonerror.Error](err)
	if err != nil && !ok {
		return err // the body isn't JSON
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
	}
	c.items = append(c.items, item{req: c.req, fault: bad})
	return nil
}

func (h *handler) checks(w http.ResponseWriter, r *http.Request, c *workspace) error {
	if !c.many {
		return jsonerror.Bad(`checks: is missing: send {"checks": [{"key": …}, …]}`)
	}
	now := private.Now(h.limiter)
	h.each(len(c.items), func(i int) {
		if it := &c.items[i]; it.fault == nil {
			it.d, it.err = h.ask(r, &it.req)
		}
	})
	c.out = append(c.out[:0], `{"results":[`...)
	var first error
	for i := range c.items {
		it := &c.items[i]
		if i > 0 {
			c.out = append(c.out, ',')
		}
		if it.fault != nil {
			c.out = append(it.fault.Append(appendStatus(c.out, it.fault.Status)), '}')
			continue
		}
		refused := httplimit.Refused{Status: http.StatusOK}
		if !it.d.Allowed {
			refused = httplimit.Describe(&it.req, &it.d, time.Time{}) // the time of day isn't shown
		}
		c.out = appendDecision(appendStatus(c.out, refused.Status), &it.d, &refused, now)
		if first == nil {
			first = it.err
		}
	}
	h.report(r, first)
	h.sendResults(w, c)
	return nil
}

func appendStatus(b []byte, status int) []byte {
	return append(appendInt(append(b, `{"status":`...), int64(status)), ',')
}

func (h *handler) sendResults(w http.ResponseWriter, c *workspace) {
	c.out = append(c.out, "]}\n"...)
	w.Header()["Content-Type"] = jsonType
	h.leave(c) // from here on, a client that reads slowly delays nobody
	send(w, http.StatusOK, c.out)
}
