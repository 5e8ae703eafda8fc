package redistest

import (
	"context"
	"slices"
)

const lasting = `
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if key:sub(1, #ARGV[1]) == ARGV[1] and redis.call('PTTL', key) == -1 then found[#found + 1] = key end
end
return found`

// Lasting lists the keys with a prefix that never expire, on all given servers. A limiter that
// leaves such a key may lock a user out forever. Keys for which allow returns true are left out;
// allow may be nil.
func Lasting(ctx context.Context, prefix string, allow func(key string) bool, servers ...*Server) (all []string, err error) {
	for _, s := range servers {
		found, err := ask[[]any](ctx, s, "EVAL", lasting, "0", prefix)
		if err != nil {
			return nil, err
		}
		for _, key := range found {
			all = append(all, key.(string))
		}
	}
	if allow != nil {
		all = slices.DeleteFunc(all, allow)
	}
	return all, nil
}
