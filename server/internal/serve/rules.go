package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/redisstore"
)

//go:embed starter.yaml
var starter []byte

// StarterName is the name of the built-in rules in messages.
const StarterName = "starter.yaml"

func (c *Config) readRules() (doc *inforce.Document, message string, err error) {
	flag := ""
	switch {
	case c.Rules != "":
		flag = "--rules"
		doc, err = inforce.ReadFile(c.Rules, 1)
	case c.SeedRules != "":
		flag = "--seed-rules"
		doc, err = inforce.ReadFile(c.SeedRules, 0)
		message = "seeded from " + c.SeedRules
	default:
		doc, err = inforce.Parse(StarterName, starter, 0)
		message = rulestore.StarterMessage
	}
	var unread *fs.PathError
	if errors.As(err, &unread) { // errors about rules already name the file and the line
		err = fmt.Errorf("%s: %w", flag, err)
	}
	return doc, message, err
}

// patience is how long a node that starts waits for Redis, and then for the rules in Redis.
const patience = 500 * time.Millisecond

// openRules opens the source of the rules, and combines the rules with the emergency list.
func (n *node) openRules(ctx context.Context, seed *inforce.Document, message string) error {
	if err := n.openSource(ctx, seed, message); err != nil {
		return err
	}
	o := rulestore.BlockOptions{Redis: n.redis, Now: func() time.Time { return private.Now(n.limiter) }, Logger: n.log}
	if folder := n.config.Data; folder != "" {
		if n.redis != nil {
			folder = copyFolder(folder, n.redis)
		}
		o.File = filepath.Join(folder, "blocks.json")
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n.rules.Join(rulestore.OpenBlocks(ctx, o))
	return nil
}

func (n *node) openSource(ctx context.Context, seed *inforce.Document, message string) error {
	c := &n.config
	if c.Rules != "" {
		n.rules = inforce.FromFile(c.Rules, seed, n.limiter, n.log)
		return nil
	}
	start := inforce.Start{Seed: seed, Message: message, Given: c.SeedRules != "" || c.OnlyEnvoy} // with Envoy's configuration, the node doesn't need rules
	var store rulestore.Store
	if n.redis != nil {
		store = rulestore.OverRedis(n.redis)
		if c.Data != "" {
			start.Copy = &rulestore.Copy{Path: copyFolder(c.Data, n.redis)}
		}
	} else {
		dir, err := rulestore.OpenDir(c.Data)
		n.closeRules = func() error { return dir.Close() }
		if unwritable(err) {
			// The rules in --data still apply, but changes to them are lost when this node ends.
			n.log.Warn("--data can't be written: changes of rules are lost with the end of this node", "error", err)
			start.Copy = &rulestore.Copy{Path: c.Data, ReadOnly: true}
			dir, n.closeRules, err = openTemporary()
		}
		if err != nil {
			return fmt.Errorf("--data: %w", err)
		}
		head, err := dir.Head(ctx)
		start.Empty = err == nil && head.Number == 0
		store = dir
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n.rules = inforce.FromStore(ctx, rulestore.Options{
		Store: store, Node: n.self, Logger: n.log, Report: n.tellStore,
	}, start, n.limiter)
	return nil
}

func unwritable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOTDIR) ||
		errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// openTemporary opens a new temporary folder for rules. done removes the folder.
func openTemporary() (dir *rulestore.Dir, done func() error, err error) {
	path, err := os.MkdirTemp("", "weir-data-")
	if err != nil {
		return nil, nil, err
	}
	if dir, err = rulestore.OpenDir(path); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(path))
	}
	return dir, func() error { return errors.Join(dir.Close(), os.RemoveAll(path)) }, nil
}

// copyFolder returns the folder for a copy of the last good rules. Each Redis has its own folder, so that a node never
// uses the rules of another Redis. The folder's name depends on the address of the Redis. It doesn't depend on users,
// passwords or files, because they change.
func copyFolder(data string, s *redisstore.Store) string {
	sum := sha256.Sum256([]byte(s.Place() + " " + s.Prefix()))
	return filepath.Join(data, fmt.Sprintf("redis-%x", sum[:4]))
}

// nodeName makes up a name for this node that no other node has, neither on this machine nor elsewhere.
func nodeName() string {
	host, _ := os.Hostname()
	var id [3]byte
	_, _ = rand.Read(id[:]) // can't fail
	return fmt.Sprintf("%s-%x", cmp.Or(host, "node"), id)
}
