package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/patient"
	"github.com/weirhq/weir/internal/rediscall"
)

var listSlots = rediscall.NewScript(files, "slots")

// maxSlots bounds what one look has Redis do.
const maxSlots = 1000

// Slots calls each for at most that many taken slots of a Concurrency limit, and for at most 1,000, in the order in which they
// end. The arguments are the hold that owns the slots, how many it has, when it took them, and when they end unless it renews
// them. Other algorithms have no slots. Slots is for operators, since checks wait behind it.
func (s *Store) Slots(ctx context.Context, c *counter.Counter, most int, each func(id counter.Once, n int64, since, ends time.Time)) error {
	found, err := s.lookForSlots(ctx, c, min(most, maxSlots), "")
	if err != nil {
		return err
	}
	for ; len(found) >= 3; found = found[3:] {
		n, since := readSlot(found[1])
		ends, err := strconv.ParseFloat(found[2], 64)
		if len(found[0]) != len(counter.Once{}) || n == 0 || err != nil || !(ends > 0 && ends < 1<<53) {
			continue // it isn't ours
		}
		at := time.UnixMicro(int64(ends))
		if latest := s.Now().Add(c.Policy.Limit.Window); at.After(latest) {
			at = latest // the clock has stepped back: see hold.lua
		}
		each(counter.Once([]byte(found[0])), n, time.UnixMicro(since), at)
	}
	return nil
}

// Slot is how many slots of a Concurrency limit a hold has taken: 0 if it isn't there, or has ended.
func (s *Store) Slot(ctx context.Context, c *counter.Counter, id counter.Once) (int64, error) {
	found, err := s.lookForSlots(ctx, c, maxSlots, string(id[:]))
	if err != nil || len(found) < 3 {
		return 0, err
	}
	n, _ := readSlot(found[1])
	return n, nil
}

func (s *Store) lookForSlots(ctx context.Context, c *counter.Counter, most int, id string) ([]string, error) {
	if c.Policy.Limit.Algorithm != counter.Concurrency || most <= 0 {
		return nil, nil
	}
	names := s.names.Load()
	if names == nil {
		return nil, s.joiners[0].shard.Load().unavailable()
	}
	key, tag := names.subject(c)
	if sh := s.joiner(tag).shard.Load(); sh.open.Load() {
		return nil, sh.unavailable()
	}
	records, ends := (&charge{policy: c.Policy, key: key}).holdNames()
	ctx, cancel := patient.WithTimeout(ctx, s.timeout)
	defer cancel()
	m, err := listSlots.Run(ctx, s, rediscall.Twice, []string{records, ends}, strconv.FormatInt(s.time(), 10), strconv.Itoa(most), id)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return m.AsStrSlice()
}

// readSlot reads a record as hold.lua writes it: a form, how many slots, and since when (µs). A record that makes no sense has
// no slots.
func readSlot(v string) (n, since int64) {
	const kept, returned, size = 246, 248, 1 + 7 + 7
	if len(v) != size || v[0] < kept || v[0] > returned {
		return 0, 0
	}
	for i := 7; i > 0; i-- {
		n, since = n<<8|int64(v[i]), since<<8|int64(v[i+7])
	}
	return n, since
}
