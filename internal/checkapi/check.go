package checkapi

import (
	"errors"
	"net/http"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
)

// readCheck reads the body of a check.
func (c *call) readCheck(src []byte) error {
	c.attrs, c.first = c.attrs[:0], 0
	if err := c.document(src, checkFields, c.checkField); err != nil {
		return err
	}
	c.show(&c.req, c.attrs)
	return c.complete()
}

// check serves /v1/check.
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

// refund serves /v1/refund.
func (h *handler) refund(w http.ResponseWriter, r *http.Request, c *call) error {
	read := func(name string) error { return c.textOf("", name, MaxBody, &c.receipt) }
	if err := c.document(c.in.Bytes(), refundFields, read); err != nil {
		return err
	}
	if c.receipt == "" {
		return jsonerror.Bad(`receipt: is missing: ask for one with "receipt": true in a check`)
	}
	err := h.limiter.Finish(r.Context(), &weir.Decision{Receipt: c.receipt}, weir.Outcome{Abandoned: true})
	switch {
	case errors.Is(err, weir.ErrReceiptInvalid):
		return jsonerror.New(http.StatusBadRequest, jsonerror.ReceiptInvalid,
			"this is not a receipt of this limiter: send it exactly as it was handed out, to nodes that share one secret")
	case errors.Is(err, weir.ErrUsed):
		return jsonerror.New(http.StatusConflict, jsonerror.ReceiptUsed, "what this receipt stands for has been given back already")
	case errors.Is(err, weir.ErrReceiptExpired):
		return jsonerror.New(http.StatusGone, jsonerror.ReceiptExpired, "the receipt has expired: the limits have forgotten the check it stands for")
	case err != nil:
		h.report(r, err)
		return err
	}
	w.Header()["Content-Type"] = jsonType
	send(w, http.StatusOK, []byte("{\"refunded\":true}\n"))
	return nil
}
