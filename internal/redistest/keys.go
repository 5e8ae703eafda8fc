package redistest

import (
	"context"
	"fmt"
	"strings"
)

// Lasting lists the keys with a prefix that would never expire, on all the
// given servers: a limiter that leaves one may lock a user out for good. Keys for which
// allow returns true are left out; it may be nil.
func Lasting(ctx context.Context, prefix string, allow func(key string) bool, servers ...*Server) ([]string, error) {
	var lasting []string
	for _, s := range servers {
		for cursor := "0"; ; {
			reply, err := s.list(ctx, "SCAN", cursor, "COUNT", "1000")
			if err != nil {
				return nil, err
			}
			var keys []string
			var ask [][]string
			for _, k := range reply[1].([]any) {
				key := k.(string)
				if strings.HasPrefix(key, prefix) && (allow == nil || !allow(key)) {
					keys, ask = append(keys, key), append(ask, []string{"PTTL", key})
				}
			}
			ttls, err := s.pipeline(ctx, ask...)
			if err != nil {
				return nil, err
			}
			for i, ttl := range ttls {
				if refusal, is := ttl.(Error); is {
					return nil, fmt.Errorf("%s: PTTL %q: %w", s.Addr, keys[i], refusal)
				}
				if ttl == int64(-1) { // -2: it has expired since
					lasting = append(lasting, keys[i])
				}
			}
			if cursor = reply[0].(string); cursor == "0" {
				break
			}
		}
	}
	return lasting, nil
}
