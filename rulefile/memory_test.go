//go:build !race

package rulefile

import (
	"runtime"
	"testing"
)

// TestHostileMemory checks that parsing a hostile text allocates a limited amount of memory, and retains none of it.
func TestHostileMemory(t *testing.T) {
	heap := func() (held, asked uint64) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, m.TotalAlloc
	}
	texts := hostileTexts()
	held, _ := heap()
	for _, tt := range texts {
		_, before := heap()
		if _, err := Parse("rules.yaml", []byte(tt.text)); err == nil {
			t.Errorf("%s: taken", tt.name)
		}
		if _, after := heap(); after-before > 512<<20 {
			t.Errorf("%s: asks for %d MiB", tt.name, (after-before)>>20)
		}
	}
	if after, _ := heap(); after > held+16<<20 {
		t.Errorf("%d MiB stay", (after-held)>>20)
	}
	runtime.KeepAlive(texts)
}
