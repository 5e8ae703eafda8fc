package checkapi

import (
	"errors"
	"net/http"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
)

// check serves /v1/check.
func (h *handler) check(w http.ResponseWriter, r *http.Request, c *call) error {
	if err := c.parse(c.in).document((*checkBody)(&c.body)); err != nil {
		return err
	}
	if err := c.request(); err != nil {
		return err
	}
	now := time.Now() // before the check, so that the times it answers with, added to this, are never late
	d, err := h.limiter.Check(r.Context(), &c.req)
	h.report(r, err)
	h.respond(w, c, &d, now)
	return nil
}

// DecodeCheck reads the body of a check for whoever else takes one, to explain it
// instead of deciding it. The error is a *[jsonerror.Error].
func DecodeCheck(src []byte) (weir.Request, error) {
	c := newCall().(*call)
	err := c.parse(src).document((*checkBody)(&c.body))
	if err == nil {
		err = c.request()
	}
	if err != nil {
		var e *jsonerror.Error
		errors.As(err, &e)
		return weir.Request{}, e
	}
	return c.req, nil
}
