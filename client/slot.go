package client

import (
	"context"
	"errors"
	"sync"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/renew"
)

// Slot is a request's place among the requests that may be in flight. It is renewed until it is released. Make one with
// [Client.Hold].
type Slot struct {
	lost    chan struct{}
	release func() error
}

// Hold keeps renewing the slot that a check has taken, three times within its SlotTTL, until it is released:
//
//	slot := checks.Hold(&d)
//	defer slot.Release()
//
// Slots that are due at about the same time are renewed in one call. If this process dies, its slots end by themselves. For a
// decision without a slot, Hold does nothing.
func (c *Client) Hold(d *Decision) *Slot {
	s := &Slot{lost: make(chan struct{}), release: func() error { return nil }}
	held, receipt := d.held, d.Receipt
	if d.SlotTTL <= 0 || receipt == "" && held == nil {
		return s
	}
	lose := sync.OnceFunc(func() { close(s.lost) })
	stop := renew.Every(context.Background(), d.SlotTTL, func(ctx context.Context) error {
		if held != nil {
			return c.fallback.Renew(ctx, held)
		}
		return c.renewed(ctx, receipt)
	}, func(err error) {
		if errors.Is(err, weir.ErrSlotLost) || errors.Is(err, weir.ErrReceiptInvalid) || errors.Is(err, weir.ErrReceiptExpired) {
			lose()
		}
	})
	s.release = sync.OnceValue(func() error {
		stop() // a renewal that reached the store after the release would take the slot again
		if held != nil {
			return c.fallback.Release(context.Background(), held)
		}
		return c.Release(context.Background(), receipt)
	})
	return s
}

// Lost returns a channel that is closed if the slot expired before it could be renewed, and no other slot was free. Then more
// requests may be in flight than the limit allows. The client keeps trying to renew the slot, so that the request is counted
// again once there is room. While Weir can't be reached, no slot counts as lost.
func (s *Slot) Lost() <-chan struct{} { return s.lost }

// Release ends the renewals and frees the slot, even if the request's own context is done. If that fails, the slot ends by
// itself after its SlotTTL. Only the first call does anything; the others return the same error.
func (s *Slot) Release() error { return s.release() }
