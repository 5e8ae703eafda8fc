package serve

import (
	"testing"

	"github.com/weirhq/weir/redisstore"
)

// The folder with a node's copy of the rules doesn't depend on the credentials for Redis.
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
	first := folder("redis://ann:x@127.0.0.1:1")
	if other := folder("redis://bob:y@127.0.0.1:1/0"); other != first {
		t.Errorf("%s and %s are folders of the same Redis", first, other)
	}
	if other := folder("redis://ann:x@127.0.0.1:1/1"); other == first {
		t.Errorf("%s is the folder of two databases", first)
	}
}
