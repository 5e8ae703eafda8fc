package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Info returns a section of Redis' INFO.
func (s *Server) Info(ctx context.Context, section string) (map[string]string, error) {
	text, err := ask[string](ctx, s, "INFO", section)
	if err != nil {
		return nil, err
	}
	return fields(text), nil
}

// fields parses lines of name:value.
func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, is := strings.Cut(strings.TrimSpace(line), ":"); is {
			m[name] = value
		}
	}
	return m
}

// CPU returns the processor time that the server has used since it started.
func (s *Server) CPU(ctx context.Context) (time.Duration, error) {
	info, err := s.Info(ctx, "cpu")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		d, err := time.ParseDuration(info[name] + "s")
		if err != nil {
			return 0, fmt.Errorf("%s: %s: %w", s.Addr, name, err)
		}
		sum += d
	}
	return sum, nil
}

// Memory returns how many bytes the server has allocated: used_memory in INFO.
func (s *Server) Memory(ctx context.Context) (int64, error) {
	info, err := s.Info(ctx, "memory")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(info["used_memory"], 10, 64)
}

// linked returns nil if the server is a replica that is connected to its primary.
func (s *Server) linked(ctx context.Context) error {
	info, err := s.Info(ctx, "replication")
	if err != nil {
		return err
	}
	if info["master_link_status"] != "up" {
		return fmt.Errorf("%s: replication: %s, link %q", s.Addr, info["role"], info["master_link_status"])
	}
	return nil
}

// Follows returns nil if a replica has received everything that its primary had at the time of the call.
func (s *Server) Follows(ctx context.Context, primary *Server) error {
	from, err := primary.Info(ctx, "replication")
	if err != nil {
		return err
	}
	to, err := s.Info(ctx, "replication")
	if err != nil {
		return err
	}
	sent, _ := strconv.ParseInt(from["master_repl_offset"], 10, 64)
	if got, _ := strconv.ParseInt(to["slave_repl_offset"], 10, 64); got < sent || sent == 0 {
		return fmt.Errorf("%s: %d of %d bytes are replicated", s.Addr, got, sent)
	}
	return nil
}

const lasting = `
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if key:sub(1, #ARGV[1]) == ARGV[1] and redis.call('PTTL', key) == -1 then found[#found + 1] = key end
end
return found`

// Lasting returns the keys with a prefix, on all given servers, that never expire. A limiter that creates such a key
// may lock a user out forever. It leaves out keys for which allow returns true; allow may be nil.
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
