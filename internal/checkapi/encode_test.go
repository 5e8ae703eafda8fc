package checkapi

import (
	"encoding/json"
	"testing"
)

func TestAppendTextEscapesAsEncodingJSON(t *testing.T) {
	for _, s := range []string{"", "orders", "a-b_c", `"`, `\`, "\x00\n\x7f", "é", "\u2028", "<&>", "\xff", "👩‍👩‍👧"} {
		want, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendText(nil, s); string(got) != string(want) {
			t.Errorf("%q is written %s, want %s", s, got, want)
		}
	}
}
