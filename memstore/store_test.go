package memstore_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(_ storetest.TB, now func() time.Time) counter.Store {
		return memstore.New(memstore.Options{Now: now, MemoryCap: 64 << 20})
	})
}
