package serve

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weirhq/weir/redisstore"
)

// What a node has kept is found with other credentials, and under the name that the folder had when they were part of it.
func TestTheFolderOfARedis(t *testing.T) {
	data := t.TempDir()
	folder := func(url string) string {
		s, err := redisstore.New(redisstore.Options{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return copyFolder(data, s)
	}
	// The hash of "redis://ann@127.0.0.1:1 weir".
	old := filepath.Join(data, "redis-dda597b5")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(old, "1.yaml"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := folder("redis://ann:x@127.0.0.1:1")
	if text, err := os.ReadFile(filepath.Join(first, "1.yaml")); err != nil || string(text) != "kept" {
		t.Errorf("what was kept: %q, %v", text, err)
	}
	if other := folder("redis://bob:y@127.0.0.1:1/0"); other != first {
		t.Errorf("%s and %s are of one Redis", first, other)
	}
	if other := folder("redis://ann:x@127.0.0.1:1/1"); other == first {
		t.Errorf("%s is of two databases", first)
	}
}
