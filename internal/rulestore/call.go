package rulestore

import (
	"context"
	"embed"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

//go:embed lua
var files embed.FS

func script(name string) string {
	body, err := files.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(body)
}

var (
	appendScript  = script("versions") + script("append")
	restoreScript = script("versions") + script("restore")
	getScript     = script("versions") + script("get")
	headScript    = rueidis.NewLuaScript(script("versions") + script("head"))
	beatScript    = rueidis.NewLuaScript(script("versions") + script("beat"))
	listScript    = rueidis.NewLuaScript(script("versions") + script("list"))
	nodesScript   = rueidis.NewLuaScript(script("nodes"))
)

const (
	silentFor  = "10000"                // ms, until a node counts as gone
	patience   = 5 * time.Second        // the longest that a call waits for Redis
	watchAgain = 200 * time.Millisecond // about, after a subscription was lost
)

// read runs a script that changes nothing, on the connection that checks use.
func (r *Redis) read(ctx context.Context, s *rueidis.Lua, keys []string, args ...string) (reply []string, err error) {
	err = r.again(ctx, func(ctx context.Context, c rueidis.Client) (err error) {
		reply, err = s.Exec(ctx, c, keys, args).AsStrSlice()
		return err
	})
	return reply, err
}

// carry runs a script that has to do with a document, on a connection of its own: no check waits
// behind it. The client takes it for a command that blocks, so it may take longer than others.
func (r *Redis) carry(ctx context.Context, script string, keys []string, args ...string) (reply []string, err error) {
	err = r.again(ctx, func(ctx context.Context, c rueidis.Client) (err error) {
		cmd := c.B().Arbitrary("EVAL", script, strconv.Itoa(len(keys))).Keys(keys...).Args(args...).Blocking()
		reply, err = c.Do(ctx, cmd).AsStrSlice()
		return err
	})
	return reply, err
}

var errReply = errors.New("redis: the script's reply makes no sense: is another version of it in use?")

// again calls f until Redis has answered, or patience ends: f is something that may happen
// twice. The client is asked for each time: Sentinels may have named another primary.
func (r *Redis) again(ctx context.Context, f func(context.Context, rueidis.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 300*time.Millisecond) {
		c, err := r.store.Client()
		if err != nil {
			return err
		}
		if err = f(ctx, c); err == nil || final(err) || !sleep(ctx, jittered(pause)) {
			return err
		}
	}
}

// final: asking again would bring the same answer.
func final(err error) bool {
	re, is := rueidis.IsRedisErr(err)
	if !is {
		return false
	}
	_, moved := re.IsMoved()
	_, ask := re.IsAsk()
	passing := moved || ask || re.IsTryAgain() || re.IsClusterDown() || re.IsLoading() ||
		strings.HasPrefix(re.Error(), "READONLY") || strings.HasPrefix(re.Error(), "MASTERDOWN")
	return !passing
}

// sleep waits, and reports false if the context ended instead.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// jittered is at most d: nodes shall not come in step, nor later than was promised.
func jittered(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
