package checkapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// BenchmarkDecode compares the decoder with encoding/json, which is told to reject unknown fields. encoding/json is
// more lenient than a limiter can afford: it takes the last of two fields with the same name, ignores the case of
// names, and replaces invalid UTF-8 with U+FFFD, so that different keys would share a counter.
func BenchmarkDecode(b *testing.B) {
	const check = `{"key": "sk_prod_abc", "method": "GET", "path": "/v1/orders/17", "ip": "203.0.113.7",
 "attributes": {"user": "42", "org": "acme", "tier": "pro"}, "cost": 1}`
	batch := `{"checks": [` + check + strings.Repeat(","+check, 99) + `]}`
	b.Run("check", func(b *testing.B) {
		c := new(workspace)
		b.ReportAllocs()
		for b.Loop() {
			if err := errors.Join(c.document([]byte(check), checkFields), c.complete()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("check by encoding/json", func(b *testing.B) { decodeStandard[CheckRequest](b, check) })
	b.Run("batch of 100", func(b *testing.B) {
		c := new(workspace)
		c.in.WriteString(batch)
		b.ReportAllocs()
		for b.Loop() {
			if err := c.document(c.in.Bytes(), batchFields); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("batch of 100 by encoding/json", func(b *testing.B) { decodeStandard[BatchRequest](b, batch) })
}

func decodeStandard[T any](b *testing.B, text string) {
	b.ReportAllocs()
	for b.Loop() {
		var into T
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.DisallowUnknownFields()
		if err := d.Decode(&into); err != nil {
			b.Fatal(err)
		}
	}
}
