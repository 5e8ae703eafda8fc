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

// maxSlots limits how much work one listing is for Redis.
const maxSlots = 1000

// Slots calls each once for every hold that has slots, the one that ends first before the others, for at most `most` holds and
// never more than 1,000. It passes the hold's id, its number of slots, when it took them, and when they end unless it renews
// them. Only Concurrency limits have slots. Slots is for operators, since checks wait while it runs.
func (s *Store) Slots(ctx context.Context, c *counter.Counter, most int, each func(id counter.Once, n int64, since, ends time.Time)) error {
	found, err := s.lookForSlots(ctx, c, min(most, maxSlots), "")
	if err != nil {
		return err
	}
	for ; len(found) >= 3; found = found[3:] {
		n, since := readSlot(found[1])
		ends, err := strconv.ParseFloat(found[2], 64)
		if len(found[0]) != len(counter.Once{}) || n == 0 || err != nil || !(ends > 0 && ends < 1<<53) {
			continue // Weir didn't write it
		}
		at := time.UnixMicro(int64(ends))
		if latest := s.Now().Add(c.Policy.Limit.Window); at.After(latest) {
			at = latest // the clock has stepped back: see hold.lua
		}
		each(counter.Once([]byte(found[0])), n, time.UnixMicro(since), at)
	}
	return nil
}

// Slot returns how many slots of a Concurrency limit a hold has: 0 if there is no such hold, or it has ended.
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

// readSlot parses a record as hold.lua writes it: a byte for its form, the number of slots, and when they were taken (µs). An
// invalid record has no slots.
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
