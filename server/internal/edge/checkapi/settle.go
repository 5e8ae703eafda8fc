package checkapi

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
)

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

// receiptErrors maps errors about receipts to responses.
var receiptErrors = []struct {
	err    error
	answer *jsonerror.Error
}{
	{weir.ErrReceiptInvalid, jsonerror.New(http.StatusBadRequest, jsonerror.ReceiptInvalid,
		"this is not a receipt of this limiter: send it unchanged, to a node that shares the secret of the node that made it, as all nodes of a region do; with counters in memory, to that node itself, unless it has restarted")},
	{counter.ErrUsed, jsonerror.New(http.StatusConflict, jsonerror.ReceiptUsed, "this receipt has already been settled or given back")},
	{weir.ErrReceiptExpired, jsonerror.New(http.StatusGone, jsonerror.ReceiptExpired, "the receipt has expired: the limits have forgotten the check it stands for")},
	{weir.ErrSlotLost, jsonerror.New(http.StatusConflict, jsonerror.SlotLost, "the slot ended before it was renewed, and all others are taken: check again")},
}

// receiptError returns the response to an error about a receipt. For errors of the store, it returns nil.
func receiptError(err error) *jsonerror.Error {
	for _, e := range receiptErrors {
		if errors.Is(err, e.err) {
			return e.answer
		}
	}
	return nil
}

// answer responds to a call about one receipt. If err is nil, the response is body.
func (h *handler) answer(c *workspace, r *http.Request, body string, err error) error {
	if err == nil {
		c.out = append(c.out, body...)
		return nil
	}
	if fault := receiptError(err); fault != nil {
		return fault
	}
	h.report(r, err)
	return err
}

func (h *handler) refund(_ http.Header, r *http.Request, c *workspace) error {
	err := h.limiter.Finish(r.Context(), &weir.Decision{Receipt: c.receipt}, weir.Outcome{Abandoned: true})
	return h.answer(c, r, "{\"refunded\":true}\n", err)
}

func (h *handler) settle(_ http.Header, r *http.Request, c *workspace) error {
	switch known := c.amounts || c.status != 0; {
	case !known && !c.unknown:
		return jsonerror.Bad(`amounts: is missing: say what was used, as in {"tokens": 812}, or "status": 200, or that it is "unknown": true`)
	case known && c.unknown:
		return jsonerror.Bad("unknown: can't stand beside amounts and status: it says that nothing is known, and keeps the estimate")
	case c.amounts && len(c.req.Amounts) == 0:
		return jsonerror.Bad(`amounts: has none: say what was used, as in {"tokens": 812}, or leave it out`)
	}
	if c.amounts && !private.Reserves(h.limiter, c.receipt) {
		return jsonerror.Bad(`amounts: the check of this receipt has reserved none, so there is nothing to settle: what it took is final; send "reserve": "2m" with the check`)
	}
	o := weir.Outcome{Status: int(c.status), Amounts: c.req.Amounts}
	err := h.limiter.Finish(r.Context(), &weir.Decision{Receipt: c.receipt}, o)
	if errors.Is(err, counter.ErrUsed) { // the caller missed the first response, and repeats the call
		return h.answer(c, r, "{\"settled\":false,\"already\":true}\n", nil)
	}
	return h.answer(c, r, "{\"settled\":true}\n", err)
}

func (h *handler) release(_ http.Header, r *http.Request, c *workspace) error {
	err := h.limiter.Release(r.Context(), &weir.Decision{Receipt: c.receipt})
	return h.answer(c, r, "{\"released\":true}\n", err)
}

func (h *handler) renew(_ http.Header, r *http.Request, c *workspace) error {
	switch {
	case c.many && c.receipt != "":
		return jsonerror.Bad("receipts: can't stand beside receipt: send one of them")
	case !c.many:
		err := h.limiter.Renew(r.Context(), &weir.Decision{Receipt: c.receipt})
		return h.answer(c, r, "{\"renewed\":true}\n", err)
	}
	errs := make([]error, len(c.receipts))
	h.each(len(errs), func(i int) { errs[i] = h.limiter.Renew(r.Context(), &weir.Decision{Receipt: c.receipts[i]}) })
	c.out = append(c.out, `{"results":[`...)
	var first error
	for i, err := range errs {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		if err == nil {
			c.out = append(c.out, `{"renewed":true}`...)
			continue
		}
		reason := "unavailable"
		if fault := receiptError(err); fault != nil {
			reason = strings.ToLower(fault.Code)
		} else if first == nil {
			first = err
		}
		c.out = append(append(append(c.out, `{"renewed":false,"reason":"`...), reason...), `"}`...)
	}
	h.report(r, first)
	c.out = append(c.out, "]}\n"...)
	return nil
}

// each calls do for 0 to n-1, concurrently if Options.Parallel is set. If do panics, each panics in this goroutine,
// where net/http recovers.
func (h *handler) each(n int, do func(i int)) {
	if !h.opts.Parallel || n == 1 {
		for i := range n {
			do(i)
		}
		return
	}
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
