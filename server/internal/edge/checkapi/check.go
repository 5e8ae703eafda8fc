package checkapi

import (
	"net/http"

	"github.com/weirhq/weir"
)

func (c *call) readCheck(src []byte) error {
	c.attrs, c.first = c.attrs[:0], 0
	if err := c.document(src, checkFields, c.checkField); err != nil {
		return err
	}
	c.show(&c.req, c.attrs)
	return c.complete()
}

func (h *handler) check(w http.ResponseWriter, r *http.Request, c *call) error {
	if err := c.readCheck(c.in.Bytes()); err != nil {
		return err
	}
	now := h.limiter.Now() // before the check, so that the times it answers with, added to this, are never late
	d, err := h.ask(r, &c.req)
	h.report(r, err)
	h.respond(w, c, &d, now)
	return nil
}

// DecodeCheck reads the body of a check for other handlers that take one, to explain it instead of
// deciding it. The error is a *[jsonerror.Error].
func DecodeCheck(src []byte) (weir.Request, error) {
	c := newCall().(*call)
	if err := c.readCheck(src); err != nil {
		return weir.Request{}, err
	}
	return c.req, nil
}
