package rulestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

func entries(b *Blocks) (all []string) {
	for _, block := range b.List() {
		all = append(all, block.Entry)
	}
	slices.Sort(all)
	return all
}

// blocksOver opens an emergency list that is kept in Redis and in a file.
func blocksOver(t testing.TB, url, file string) *Blocks {
	t.Helper()
	return OpenBlocks(t.Context(), BlockOptions{Redis: overRedis(t, url).store, File: file})
}

// synced syncs lists until they have exactly the wanted entries.
func synced(t testing.TB, want string, lists ...*Blocks) {
	t.Helper()
	until(t, func(ctx context.Context) error {
		var failed []error
		for _, b := range lists {
			inFile, inRedis := b.Sync(ctx)
			failed = append(failed, inFile, inRedis)
		}
		for i, b := range lists {
			if got := strings.Join(entries(b), " "); got != want {
				failed = append(failed, fmt.Errorf("list %d has %q, want %q", i, got, want))
			}
		}
		return errors.Join(failed...)
	})
}

func TestNodesShareTheEmergencyList(t *testing.T) {
	t.Run("Server", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{})
		shareBlocks(t, "redis://"+r.Addr)
	})
	t.Run("Cluster", func(t *testing.T) {
		shareBlocks(t, clusterURL(redistest.NewCluster(t, redistest.Options{})))
	})
}

func shareBlocks(t *testing.T, url string) {
	a, b := blocksOver(t, url, ""), blocksOver(t, url, "")
	told := 0
	b.OnChange(func() { told++ })
	if !a.Put("sk_leaked", "ada", "on a paste site") || a.Put("sk_leaked", "bob", "again") {
		t.Error("an entry is blocked once")
	}
	b.Put("203.0.113.0/24", "bob", "")
	synced(t, "203.0.113.0/24 sk_leaked", a, b, a)
	if told != 2 {
		t.Errorf("the node was notified %d times of 2 changes", told)
	}
	if got := b.all[blockID("sk_leaked")]; got.By != "ada" || got.Message != "on a paste site" {
		t.Errorf("the other node has %+v", got)
	}
	if !b.Remove("sk_leaked", "bob") || b.Remove("sk_leaked", "bob") || b.Has("sk_leaked") {
		t.Error("an entry is taken off once")
	}
	synced(t, "203.0.113.0/24", b, a)
	// Blocking the key again creates a new entry.
	a.Put("sk_leaked", "ada", "")
	synced(t, "203.0.113.0/24 sk_leaked", a, b)
}

// Nodes poll often enough to follow changes within two seconds.
func TestTheEmergencyListIsFollowedInTime(t *testing.T) {
	if blocksPoll > time.Second {
		t.Errorf("they look every %s", blocksPoll)
	}
	r := redistest.New(t, redistest.Options{})
	a, b := blocksOver(t, "redis://"+r.Addr, ""), blocksOver(t, "redis://"+r.Addr, "")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	a.Put("sk_leaked", "ada", "")
	synced(t, "sk_leaked", a)
	until(t, func(context.Context) error {
		if !b.Has("sk_leaked") {
			return errors.New("the other node doesn't have it")
		}
		return nil
	})
}

// A block that was made while Redis was down is kept on disk, applies after a restart, and reaches other nodes once
// Redis is back. Blocks that Redis has lost are restored.
func TestBlocksWithoutRedis(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	url, file := "redis://"+r.Addr, filepath.Join(t.TempDir(), "data", "blocks.json")
	a, b := blocksOver(t, url, file), blocksOver(t, url, "")
	a.Put("sk_first", "ada", "")
	synced(t, "sk_first", a, b)
	r.Kill()
	a.Put("sk_leaked", "ada", "")
	if inFile, inRedis := a.Sync(t.Context()); inFile != nil || inRedis == nil {
		t.Errorf("in the file %v, in Redis %v", inFile, inRedis)
	}
	a = OpenBlocks(t.Context(), BlockOptions{File: file})
	if got := entries(a); !slices.Equal(got, []string{"sk_first", "sk_leaked"}) {
		t.Errorf("after a restart without Redis %q", got)
	}
	if err := r.RestartEmpty(); err != nil {
		t.Fatal(err)
	}
	a = blocksOver(t, url, file)
	synced(t, "sk_first sk_leaked", a, b, blocksOver(t, url, ""))
}

// The file has no keys that were unblocked, and only its owner can read it.
func TestTheFileOfTheEmergencyList(t *testing.T) {
	file := filepath.Join(t.TempDir(), "blocks.json")
	now := time.Now()
	o := BlockOptions{File: file, Now: func() time.Time { return now }}
	a, b := OpenBlocks(t.Context(), o), OpenBlocks(t.Context(), o)
	a.Put("sk_leaked", "ada", "")
	synced(t, "sk_leaked", a, b) // processes may share the folder
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	now = now.Add(-time.Hour) // if the clock is set back, removing a block still works
	b.Remove("sk_leaked", "bob")
	synced(t, "", b, a)
	text, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(text), "sk_leaked") {
		t.Errorf("%s, %v", text, err)
	}
	if now = now.Add(removedFor + 2*time.Hour); len(a.snapshot()) > 0 {
		t.Error("the removal is never forgotten")
	}
	if err := os.WriteFile(file, []byte("no JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.Put("sk_other", "ada", "")
	if inFile, _ := a.Sync(t.Context()); !errors.Is(inFile, ErrDamaged) || !a.Has("sk_other") {
		t.Errorf("a damaged file: %v", inFile)
	}
}
