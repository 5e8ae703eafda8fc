package rulefile

import "testing"

// BenchmarkParse reads documents of the largest size: 60,000 keys on separate lines, and 10,000 rules.
func BenchmarkParse(b *testing.B) {
	for name, text := range map[string]string{
		"60000Keys":  numbered("tiers: {free: 5/minute}\nrules: [{id: quota}]\nkeys:\n", "  sk_%05d: free\n", 60_000),
		"10000Rules": numbered("rules:\n", "  - id: r%[1]d\n    match: {endpoint: \"/v1/orders/%[1]d\"}\n    limit: 5/minute\n", 10_000),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := Parse("rules.yaml", []byte(text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
