package checkapi

import (
	"errors"
	"net/http"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
)

// refund serves /v1/refund.
func (h *handler) refund(w http.ResponseWriter, r *http.Request, c *call) error {
	if err := c.parse(c.in).document((*refundBody)(&c.body)); err != nil {
		return err
	}
	receipt := string(c.body.texts[c.body.receiptText.from:c.body.receiptText.to])
	if receipt == "" {
		return jsonerror.Bad(`receipt: is missing: ask for one with "receipt": true in a check`)
	}
	err := h.limiter.Finish(r.Context(), &weir.Decision{Receipt: receipt}, weir.Outcome{Abandoned: true})
	switch {
	case errors.Is(err, weir.ErrReceiptInvalid):
		return jsonerror.New(http.StatusBadRequest, jsonerror.ReceiptInvalid, "this is not a receipt of this limiter: send it exactly as it was handed out, to nodes that share one secret")
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
