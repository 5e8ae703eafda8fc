package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// scriptCall is one as Weir's store sent it.
type scriptCall struct {
	sha        string
	keys, args []string
}

// maxSeen is how many calls are recorded. More keys than that share them.
const maxSeen = 100_000

// openBare sends what the store was seen to send, without anything around it.
func openBare(ctx context.Context, e *env) (*instance, error) {
	client, err := newRueidis(e)
	if err != nil {
		return nil, err
	}
	if err := loadSeen(ctx, e); err != nil {
		client.Close()
		return nil, err
	}
	return &instance{
		worker: func() check {
			return func(n uint32) error {
				c := &e.seen[int(n)%len(e.seen)]
				cmd := client.B().Evalsha().Sha1(c.sha).Numkeys(int64(len(c.keys))).Key(c.keys...).Arg(c.args...).Build()
				return client.Do(background, cmd).Error()
			}
		},
		close: client.Close,
	}, nil
}

// loadSeen makes the store load its scripts into the server and, the first time, records what the store sends.
func loadSeen(ctx context.Context, e *env) error {
	in, err := openCharges(ctx, e, time.Minute, wide.tokens)
	if err != nil {
		return err
	}
	defer in.close()
	check := in.worker()
	if err := insist(check, 0); err != nil {
		return err
	}
	if e.seen != nil {
		return nil
	}
	e.seen, err = record(ctx, e, check, min(e.used, maxSeen))
	return err
}

// record checks the first n keys one after the other, and listens to the server meanwhile.
func record(ctx context.Context, e *env, check check, n int) ([]scriptCall, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", e.server.Socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(conn)
	if ok, err := lines.ReadString('\n'); err != nil || ok != "+OK\r\n" {
		return nil, fmt.Errorf("MONITOR: %q, %w", ok, err)
	}
	checked := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < n && err == nil && ctx.Err() == nil; i++ {
			err = check(uint32(i))
		}
		checked <- err
		// What was sent is told at once. If it isn't, something else was sent than one script call a check.
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	}()
	seen, err := listen(lines, n)
	_ = conn.Close()
	return seen, errors.Join(err, <-checked, ctx.Err())
}

// listen reads n calls of one script. The store's heartbeat is a script, too, but comes seldom.
func listen(lines *bufio.Reader, n int) ([]scriptCall, error) {
	groups := map[string][]scriptCall{}
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil, err
		}
		c, is, err := parseMonitor(line)
		if err != nil {
			return nil, err
		}
		if !is {
			continue
		}
		groups[c.sha] = append(groups[c.sha], c)
		if len(groups[c.sha]) == n {
			return groups[c.sha], nil
		}
	}
}

// parseMonitor reads a line of MONITOR, and says whether it is an EVALSHA:
//
//	+1339518083.107412 [0 127.0.0.1:60866] "EVALSHA" "a94a…" "1" "key" "\x00…"
func parseMonitor(line string) (c scriptCall, is bool, err error) {
	from, rest, _ := strings.Cut(line, "] ")
	if strings.HasSuffix(from, " lua") { // what a script itself calls
		return c, false, nil
	}
	var words []string
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return c, false, fmt.Errorf("MONITOR: %q: %w", line, err)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return c, false, fmt.Errorf("MONITOR: %q: %w", line, err)
		}
		words, rest = append(words, word), rest[len(quoted):]
	}
	if len(words) < 3 || !strings.EqualFold(words[0], "EVALSHA") {
		return c, false, nil
	}
	n, err := strconv.Atoi(words[2])
	if err != nil || n < 0 || n > len(words)-3 {
		return c, false, fmt.Errorf("MONITOR: %q: how many keys?", line)
	}
	return scriptCall{words[1], words[3 : 3+n], words[3+n:]}, true, nil
}
