package usage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// transcript records every call of a scanner.
type transcript struct{ bytes.Buffer }

func (tr *transcript) member(_ place, name []byte) place {
	fmt.Fprintf(tr, "%q:", name)
	return firstPlace
}
func (tr *transcript) element(place) place { return firstPlace }
func (tr *transcript) open(_ place, bracket byte, at int64) {
	fmt.Fprintf(tr, "%c@%d ", bracket, at)
}
func (tr *transcript) close(_ place, bracket byte) { fmt.Fprintf(tr, "%c ", bracket) }
func (tr *transcript) scalar(_ place, v scalar) {
	fmt.Fprintf(tr, "%c%q@%d-%d#%d ", v.kind, v.text, v.from, v.to, v.size)
}

// scan reads a document in parts, and reports whether it is valid.
func scan(parts ...[]byte) (string, bool) {
	var tr transcript
	s := scanner{visitor: &tr}
	for i, p := range parts {
		n := s.feed(p)
		if s.state >= finished {
			rest := slices.Concat(append([][]byte{p[n:]}, parts[i+1:]...)...)
			return tr.String(), s.state == finished && len(bytes.Trim(rest, " \t\r\n")) == 0
		}
	}
	s.feed([]byte{'\n'}) // ends a number
	return tr.String(), s.state == finished
}

func TestScanner(t *testing.T) {
	const doc = ` {"a":[1,-2.5e+3 ,"x\u00e9\n",true],"":{"b":null}} `
	const want = `{@2 "a":[@7 0"1"@7-8#1 0"-2.5e+3"@9-16#7 "` + `"xé\n"@18-29#4 t""@30-34#0 ] "":{@40 "b":n""@44-48#0 } } `
	if got, ok := scan([]byte(doc)); got != want || !ok {
		t.Errorf("%t\n%s\nwant\n%s", ok, got, want)
	}
	// The halves of a surrogate pair in two strings don't form a pair.
	if got, _ := scan([]byte(`["\ud83d","\ude00"]`)); got != "[@1 \"\"�\"@1-9#3 \"\"�\"@10-18#3 ] " {
		t.Error(got)
	}
}

// decoded is the text of a document that consists of one string.
type decoded struct {
	transcript
	text string
	size int64
}

func (d *decoded) scalar(_ place, v scalar) { d.text, d.size = string(v.text), v.size }

// FuzzScanner compares the scanner with encoding/json, and the result for a whole document with the result for three
// parts of it.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,2.5,-0,1e9,"x",true,false,null],"b":{}}`, `[[[]]]`, `"\ud83d\ude00\ud83d\u0041\ude00\ud83d\ud83d\ude00"`,
		`"\ud83dx\ude00"`, `"\ud83d\n\ude00"`, `01`, `-`, `1.`, `1e`, `1e+`, `.5`, `[1,]`, `{"a"}`, `{,}`, `"\x"`, `"\u12g4"`, "\"\t\"", "[\"a\n]", `nul`, `n ull`, `"\ n"`, `"\u0 041"`, `1e5e5`, `truex`, ``, ` 5 `,
		`{"a":1 "b":2}`, `[1 2]`, `{"a":1]`, `1 2`, `-0.0E-0`, `{1:2}`, "\xff", "\"\xff\"", `"\ud83`, `]`,
	} {
		f.Add([]byte(seed), uint(3), uint(5))
	}
	f.Fuzz(func(t *testing.T, doc []byte, cut, cut2 uint) {
		told, ok := scan(doc)
		if want := json.Valid(doc) && depth(doc) <= maxDepth; ok != want {
			t.Errorf("%q: valid %t, want %t", doc, ok, want)
		}
		a := int(cut % uint(len(doc)+1))
		b := a + int(cut2%uint(len(doc)-a+1))
		if split, okToo := scan(doc[:a], doc[a:b], doc[b:]); split != told || okToo != ok {
			t.Errorf("%q cut at %d and %d: %t\n%s\nwant %t\n%s", doc, a, b, okToo, split, ok, told)
		}
		var want string
		if ok && json.Unmarshal(doc, &want) == nil && bytes.ContainsRune(doc, '"') && bytes.Equal(doc, bytes.ToValidUTF8(doc, nil)) {
			d := &decoded{}
			s := scanner{visitor: d}
			s.feed(doc)
			if d.size != int64(len(want)) || len(want) <= maxKept && d.text != want {
				t.Errorf("%q: %q of %d bytes, want %q", doc, d.text, d.size, want)
			}
		}
	})
}

// depth returns how deeply a valid document is nested.
func depth(doc []byte) int {
	most, now, quoted := 0, 0, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '{' || c == '[':
			now++
			most = max(most, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return most
}

// FuzzReader compares the usage in a whole body with the usage in its parts.
func FuzzReader(f *testing.F) {
	types := []string{typeJSON, typeEvents, typeLines}
	for name := range recorded {
		contentType, body := load(f, name)
		f.Add(slices.Index(types, contentType), []byte(body), []byte{1, 7, 0, 200})
	}
	f.Add(1, []byte("data: [DO\rdata: NE]\r\n\n"), []byte{8})
	f.Fuzz(func(t *testing.T, kind int, body, sizes []byte) {
		contentType := types[uint(kind)%uint(len(types))]
		want := read(contentType, string(body))
		i := 0
		got := readParts(contentType, string(body), func() int {
			i++
			if len(sizes) == 0 || i%len(sizes) == 0 {
				return 1
			}
			return int(sizes[i%len(sizes)])
		})
		if got != want {
			t.Errorf("%s %q: %s in parts, %s at once", contentType, body, got, want)
		}
		r := NewReader(contentType, "")
		_, _ = r.Write(body)
		u, _ := r.Usage()
		for _, a := range []Amount{u.Input, u.Cached, u.Output, u.Tokens} {
			if a.N < 0 || !a.Known && a.N != 0 {
				t.Errorf("%q: %+v", body, u)
			}
		}
		if u.Input.Known && u.Output.Known && u.Tokens.Known && u.Tokens.N != u.Input.N+u.Cached.N+u.Output.N {
			t.Errorf("%q: the tokens aren't the sum: %+v", body, u)
		}
	})
}
