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

// cooldowns is what nodes tell each other of clients that are kept out: in one slot, since they are
// few and none of them is on the way of a check.
type cooldowns struct{ redis *redisstore.Store }

const (
	mostAnnounced = 100_000             // about; then the oldest are forgotten by nodes that start after that
	keptAnnounced = 2 * 366 * 24 * 3600 // s, after the last one
	page          = 1000                // announcements that are read in one call
)

func (s cooldowns) key(name string) string { return s.redis.Prefix() + "{cooldowns}" + name }

func (s cooldowns) countKey(id cooldown.ID) string { return s.key(":" + id.String()) }

// AddUp adds to what all nodes have counted. It may be added twice where Redis' answer is lost.
func (s cooldowns) AddUp(ctx context.Context, counts []cooldown.Count) ([]int64, error) {
	keys, args := make([]string, len(counts)), make([]string, 0, 2*len(counts))
	for i, c := range counts {
		keys[i] = s.countKey(c.ID)
		args = append(args, strconv.FormatInt(c.N, 10), strconv.FormatInt(max(1, c.Window.Milliseconds()), 10))
	}
	m, err := addUp.Run(ctx, s.redis, rediscall.Once, keys, args...)
	if err != nil {
		return nil, err
	}
	return m.AsIntSlice()
}

// Announce tells all nodes. Words that are told twice are as good as once.
func (s cooldowns) Announce(ctx context.Context, about []cooldown.ID, words []string) error {
	keys, args := []string{s.key("said")}, []string{strconv.Itoa(mostAnnounced), strconv.Itoa(keptAnnounced)}
	for _, id := range about {
		keys = append(keys, s.countKey(id))
	}
	_, err := announce.Run(ctx, s.redis, rediscall.Twice, keys, append(args, words...)...)
	return err
}

// Announced returns what was announced after a place.
func (s cooldowns) Announced(ctx context.Context, after string) (words []string, next string, err error) {
	c, err := s.redis.Client()
	if err != nil {
		return nil, after, err
	}
	from := "-"
	if after != "" {
		from = after // with what was there, to see whether it still is
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
