package checkapi

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
)

// receiptField reads the fields of requests about receipts.
func (c *workspace) receiptField(name string) error {
	switch name {
	case "receipt":
		return c.textOf("", name, MaxBody, &c.receipt)
	case "receipts":
		c.many = true
		return c.elements(name, '[', c.receiptOf)
	case "amounts":
		return c.amountsOf()
	case "status":
		return c.wholeOf(name, 100, 599, &c.status)
	}
	return c.boolOf(name, &c.unknown)
}

func (c *workspace) receiptOf() error {
	if len(c.receipts) == MaxReceipts {
		return jsonerror.Bad("receipts: there may be at most %d: send the rest in another call", MaxReceipts)
	}
	value, err := c.value()
	if err != nil || jsontext.Value(value).Kind() != '"' {
		return mismatch(fmt.Sprintf("receipts[%d]", len(c.receipts)), "a string", value, err)
	}
	text, err := c.text(value)
	c.receipts = append(c.receipts, text)
	return err
}

func (c *workspace) readReceipt(fields []string) error {
	err := c.document(c.in.Bytes(), fields, c.receiptField)
	if err == nil && c.receipt == "" && !c.many {
		return jsonerror.Bad(`receipt: is missing: ask for one with "receipt": true in a check`)
	}
	return err
}

// receiptError turns an error of a receipt into an answer, and reports an error of the store.
func (h *handler) receiptError(r *http.Request, err error) error {
	switch {
	case errors.Is(err, weir.ErrReceiptInvalid):
		return jsonerror.New(http.StatusBadRequest, jsonerror.ReceiptInvalid,
			"this is not a receipt of this limiter: send it unchanged, to a node that shares the secret of the node that made it, as all nodes of a region do; with counters in memory, to that node itself, unless it has restarted")
	case errors.Is(err, counter.ErrUsed):
		return jsonerror.New(http.StatusConflict, jsonerror.ReceiptUsed, "this receipt has already been settled or given back")
	case errors.Is(err, weir.ErrReceiptExpired):
		return jsonerror.New(http.StatusGone, jsonerror.ReceiptExpired, "the receipt has expired: the limits have forgotten the check it stands for")
	case errors.Is(err, weir.ErrSlotLost):
		return jsonerror.New(http.StatusConflict, jsonerror.SlotLost, "the slot ended before it was renewed, and all others are taken: check again")
	}
	h.report(r, err)
	return err
}

// done sends a fixed answer.
func done(w http.ResponseWriter, body string) error {
	w.Header()["Content-Type"] = jsonType
	send(w, http.StatusOK, []byte(body))
	return nil
}

func (h *handler) refund(w http.ResponseWriter, r *http.Request, c *workspace) error {
	if err := c.readReceipt(receiptFields); err != nil {
		return err
	}
	if err := h.limiter.Finish(r.Context(), &weir.Decision{Receipt: c.receipt}, weir.Outcome{Abandoned: true}); err != nil {
		return h.receiptError(r, err)
	}
	return done(w, "{\"refunded\":true}\n")
}

func (h *handler) settle(w http.ResponseWriter, r *http.Request, c *workspace) error {
	if err := c.readReceipt(settleFields); err != nil {
		return err
	}
	switch known := c.amounts || c.status != 0; {
	case !known && !c.unknown:
		return jsonerror.Bad(`amounts: is missing: say what was used, as in {"tokens": 812}, or "status": 200, or that it is "unknown": true`)
	case known && c.unknown:
		return jsonerror.Bad("unknown: can't stand beside amounts and status: it says that nothing is known, and keeps the estimate")
	case c.amounts && len(c.req.Amounts) == 0:
		return jsonerror.Bad(`amounts: has none: say what was used, as in {"tokens": 812}, or leave it out`)
	}
	if c.amounts && !h.limiter.Reserves(c.receipt) {
		return jsonerror.Bad(`amounts: the check of this receipt has reserved none, so there is nothing to settle: what it took is final; send "reserve": "2m" with the check`)
	}
	o := weir.Outcome{Status: int(c.status), Amounts: c.req.Amounts}
	err := h.limiter.Finish(r.Context(), &weir.Decision{Receipt: c.receipt}, o)
	switch {
	case errors.Is(err, counter.ErrUsed): // the caller missed the answer to its first attempt
		return done(w, "{\"settled\":false,\"already\":true}\n")
	case err != nil:
		return h.receiptError(r, err)
	}
	return done(w, "{\"settled\":true}\n")
}

func (h *handler) release(w http.ResponseWriter, r *http.Request, c *workspace) error {
	if err := c.readReceipt(receiptFields); err != nil {
		return err
	}
	if err := h.limiter.Release(r.Context(), &weir.Decision{Receipt: c.receipt}); err != nil {
		return h.receiptError(r, err)
	}
	return done(w, "{\"released\":true}\n")
}

func (h *handler) renew(w http.ResponseWriter, r *http.Request, c *workspace) error {
	c.receipts = c.receipts[:0]
	if err := c.readReceipt(renewFields); err != nil {
		return err
	}
	switch {
	case c.many && c.receipt != "":
		return jsonerror.Bad("receipts: can't stand beside receipt: send one of them")
	case !c.many:
		if err := h.limiter.Renew(r.Context(), &weir.Decision{Receipt: c.receipt}); err != nil {
			return h.receiptError(r, err)
		}
		return done(w, "{\"renewed\":true}\n")
	}
	errs := make([]error, len(c.receipts))
	one := func(i int) { errs[i] = h.limiter.Renew(r.Context(), &weir.Decision{Receipt: c.receipts[i]}) }
	if h.opts.Parallel {
		together(len(errs), one)
	} else {
		for i := range errs {
			one(i)
		}
	}
	c.out = append(c.out[:0], `{"results":[`...)
	var first error
	for i, err := range errs {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		if err == nil {
			c.out = append(c.out, `{"renewed":true}`...)
			continue
		}
		reason := whyLost(err)
		c.out = append(append(append(c.out, `{"renewed":false,"reason":"`...), reason...), `"}`...)
		if reason == "unavailable" && first == nil {
			first = err
		}
	}
	c.out = append(c.out, "]}\n"...)
	h.report(r, first)
	w.Header()["Content-Type"] = jsonType
	h.leave(c)
	send(w, http.StatusOK, c.out)
	return nil
}

// whyLost returns the reason why a slot in a list wasn't renewed.
func whyLost(err error) string {
	switch {
	case errors.Is(err, weir.ErrSlotLost):
		return "slot_lost"
	case errors.Is(err, weir.ErrReceiptInvalid):
		return "receipt_invalid"
	case errors.Is(err, weir.ErrReceiptExpired):
		return "receipt_expired"
	}
	return "unavailable"
}

// together calls do for 0 to n-1, each on a goroutine of its own. It raises a panic of one again on
// this goroutine, where net/http handles it.
func together(n int, do func(i int)) {
	panicked := make([]any, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			defer func() { panicked[i] = recover() }()
			do(i)
		})
	}
	wg.Wait()
	for _, p := range panicked {
		if p != nil {
			panic(p)
		}
	}
}
