package main

import (
	"testing"

	toplist "github.com/weirhq/weir/server/internal/observe/top"
)

// A new request isn't in the rates yet, so an empty table says when it will be.
func TestAnEmptyTable(t *testing.T) {
	for want, a := range map[string]toplist.Answer{
		"No client in the last 10 seconds; a new request shows up after about 2 s.":             {WindowSeconds: 10, SlotSeconds: 2},
		"No client above 3.0/s in the last 10 seconds; a new request shows up after about 2 s.": {WindowSeconds: 10, SlotSeconds: 2, MissingBelow: 3},
	} {
		v := topView{answer: a}
		if got := v.table(0); len(got) != 1 || got[0] != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}
