package usage

import "testing"

// A body is refused if and only if it isn't valid UTF-8, however it is split into parts.
func TestBodiesAreInUTF8(t *testing.T) {
	for text, good := range map[string]bool{
		`{"model":"small","x":"é€😀"}`:          true,
		"{\"x\":\"\xff\",\"model\":\"small\"}": false,
		"{\"x\":\"\xc3\",\"model\":\"small\"}": false,
		"{\"x\":\"\xe2\x82\"}":                 false,
		"{\"x\":\"\xed\xa0\x80\"}":             false, // half of a surrogate pair
		"{\"x\":\"\xc0\xaf\"}":                 false, // an overlong encoding of a slash
		"{\"x\":1}\xe2":                        false,
		"{\"x\":\"\x80\x80\x80\x80\x80\x80\"}": false,
	} {
		for size := 1; size <= len(text); size++ {
			b := NewBody()
			var err error
			for at := 0; at < len(text) && err == nil; at += size {
				_, err = b.Read([]byte(text[at:min(at+size, len(text))]))
			}
			if err == nil {
				err = b.End()
			}
			if (err == nil) != good {
				t.Errorf("%q in parts of %d: %v", text, size, err)
			}
		}
	}
}
