package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// Refund gives back what a check with a receipt took, once. errors.Is recognizes the errors of weir.Limiter.Finish.
func (c *Client) Refund(ctx context.Context, receipt string) error {
	_, err := c.about(ctx, "/v1/refund", wireReceipt{Receipt: receipt})
	return err
}

// Settle ends a request whose check has reserved amounts: it charges what the request really used, and frees its slots. Amounts
// that the Outcome doesn't name stay as they were reserved. An Outcome that is Abandoned gives everything back. Settle may be
// repeated, on any node; settled is true for the call that took effect. If the receipt is "", there is nothing to settle.
func (c *Client) Settle(ctx context.Context, receipt string, o weir.Outcome) (settled bool, err error) {
	switch {
	case receipt == "":
		return false, nil
	case o.Abandoned:
		err := c.Refund(ctx, receipt)
		if errors.Is(err, counter.ErrUsed) {
			return false, nil
		}
		return err == nil, err
	}
	text, err := c.about(ctx, "/v1/settle", wireReceipt{
		Receipt: receipt, Amounts: o.Amounts, Status: o.Status, Unknown: len(o.Amounts) == 0 && o.Status == 0,
	})
	var answer struct{ Settled bool }
	return err == nil && json.Unmarshal(text, &answer) == nil && answer.Settled, err
}

// Release frees the slots of a request, and gives back nothing else. It may be repeated. The receipt "" has no slots.
func (c *Client) Release(ctx context.Context, receipt string) error {
	if receipt == "" {
		return nil
	}
	_, err := c.about(ctx, "/v1/release", wireReceipt{Receipt: receipt})
	return err
}

// Renew makes the slots of a request that is still in flight last for another SlotTTL. If a slot has ended and no other is
// free, the error is weir.ErrSlotLost. Wait until Renew returns before you release the slot, or Renew may take it again. See
// [Client.Hold].
func (c *Client) Renew(ctx context.Context, receipt string) error {
	if receipt == "" {
		return nil
	}
	_, err := c.about(ctx, "/v1/renew", wireReceipt{Receipt: receipt})
	return err
}

// renewed renews the slots of a request like [Client.Renew], in one call with others that are due.
func (c *Client) renewed(ctx context.Context, receipt string) error {
	item, err := json.Marshal(receipt)
	if err != nil {
		return err
	}
	result, err := c.renewals.join(ctx, item)
	if err != nil || result.Renewed {
		return err
	}
	return cmp.Or(receiptErrors[strings.ToUpper(result.Reason)], ErrUnreachable)
}

// wireRenewal is one result of /v1/renew.
type wireRenewal struct {
	Renewed bool
	Reason  string
}

// wireReceipt is the body of a call about a receipt.
type wireReceipt struct {
	Receipt string                    `json:"receipt,omitempty"`
	Amounts map[string]counter.Amount `json:"amounts,omitempty"`
	Status  int                       `json:"status,omitempty"`
	Unknown bool                      `json:"unknown,omitempty"`
}

// about makes a call about a receipt.
func (c *Client) about(ctx context.Context, path string, ask wireReceipt) ([]byte, error) {
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.post(ctx, path, body)
}
