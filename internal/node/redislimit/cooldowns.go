package redislimit

import (
	"context"
	"embed"
	"strconv"

	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/redisstore"
)

//go:embed lua
var files embed.FS

var (
	addUp    = rediscall.NewScript(files, "addup")
	announce = rediscall.NewScript(files, "announce")
)

// cooldowns shares cooldowns of clients between nodes, through Redis. All of its keys are in one hash slot, because
// cooldowns are few, and no check waits for them.
type cooldowns struct{ *redisstore.Store }

const (
	mostAnnounced = 100_000             // announcements that the stream keeps, roughly. Nodes that start later don't hear of older ones
	keptAnnounced = 2 * 366 * 24 * 3600 // seconds that the stream is kept after the last announcement
	page          = 1000                // announcements read in one call
)

func (s cooldowns) key(name string) string { return s.Prefix() + "{cooldowns}" + name }

// AddUp adds counts to the totals of all nodes, and returns the new totals. If Redis' answer is lost, a count may be
// added twice.
func (s cooldowns) AddUp(ctx context.Context, counts []cooldown.Count) ([]int64, error) {
	keys, args := make([]string, len(counts)), make([]string, 0, 2*len(counts))
	for i, c := range counts {
		keys[i] = s.key(":" + c.ID.String())
		args = append(args, strconv.FormatInt(c.N, 10), strconv.FormatInt(max(1, c.Window.Milliseconds()), 10))
	}
	m, err := addUp.Run(ctx, s.Store, rediscall.Once, keys, args...)
	if err != nil {
		return nil, err
	}
	return m.AsIntSlice()
}

// Announce tells all nodes about cooldowns. Repeating an announcement does no harm.
func (s cooldowns) Announce(ctx context.Context, about []cooldown.ID, words []string) error {
	keys, args := []string{s.key("said")}, []string{strconv.Itoa(mostAnnounced), strconv.Itoa(keptAnnounced)}
	for _, id := range about {
		keys = append(keys, s.key(":"+id.String()))
	}
	_, err := announce.Run(ctx, s.Store, rediscall.Twice, keys, append(args, words...)...)
	return err
}

// Announced returns the announcements after a position in the stream, and the next position.
func (s cooldowns) Announced(ctx context.Context, after string) (words []string, next string, err error) {
	c, err := s.Client()
	if err != nil {
		return nil, after, err
	}
	from := "-"
	if after != "" {
		from = after // include the last entry that was read, to see whether it still exists
	}
	entries, err := c.Do(ctx, c.B().Xrange().Key(s.key("said")).Start(from).End("+").Count(page).Build()).AsXRange()
	if err != nil {
		return nil, after, err
	}
	if after != "" {
		if len(entries) == 0 || entries[0].ID != after {
			return nil, "", cooldown.ErrLost
		}
		entries = entries[1:]
	}
	for _, e := range entries {
		words, after = append(words, e.FieldValues["c"]), e.ID
	}
	return words, after, nil
}
