package bills

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf16"
)

// speller writes calls with odd spellings. Each choice is one byte, so that a fuzzer can change choices one by one.
type speller struct{ choices []byte }

func (s *speller) pick(n int) int {
	if len(s.choices) == 0 {
		return 0
	}
	c := int(s.choices[0])
	s.choices = s.choices[1:]
	return c % n
}

func (s *speller) of(list ...string) string { return list[s.pick(len(list))] }

// call is a client's request.
type call struct {
	method, path, contentType string
	body                      []byte
	chunked                   bool
	tells                     bool // the response reports its usage
}

func (s *speller) call() call {
	c := call{
		method:      s.of("POST", "POST", "POST", "post", "PUT", "GET", "PATCH", "QUERY"),
		path:        s.of("/v1/chat/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/openai/deployments/large/chat/completions", "/v1beta/models/large:generateContent", "/model/large/invoke"),
		contentType: s.of("application/json", "application/json", "", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "multipart/form-data; boundary=x", "application/json; charset=utf-16"),
		tells:       s.pick(2) == 0,
		chunked:     s.pick(4) == 3,
	}
	c.body = s.encode(s.document())
	return c
}

// document returns a call in JSON, or almost JSON.
func (s *speller) document() string {
	members := []string{s.name("model") + s.blank() + ":" + s.blank() + s.model()}
	for range s.pick(8) {
		members = append(members, s.member())
	}
	if s.pick(4) == 3 {
		members[0], members[len(members)-1] = members[len(members)-1], members[0]
	}
	text := s.of("", "", "", "", " \n", "\ufeff", "/* */", "// \n", "\f", "{}", "[") + "{" + s.blank() + strings.Join(members, s.blank()+","+s.blank())
	return text + s.of("", "", "", "", ",", " ", "\x00") + "}" + s.of("", "", "", "", "\n", "}", "{\"model\":\"large\"}", " {\"model\":\"large\",\"max_tokens\":1000000}", "x")
}

func (s *speller) member() string {
	colon := s.blank() + ":" + s.blank()
	switch s.pick(10) {
	case 0:
		return s.name("model") + colon + s.model()
	case 1, 2:
		return s.name(s.of("max_tokens", "max_completion_tokens", "max_output_tokens")) + colon + s.number()
	case 3:
		return s.name(s.of("n", "best_of")) + colon + s.number()
	case 4:
		return s.name("generationConfig") + colon + s.object("maxOutputTokens", "candidateCount", "MaxOutputTokens")
	case 5:
		return s.name("options") + colon + s.object("num_predict", "NUM_PREDICT")
	case 6:
		return s.name("stream") + colon + s.of("true", "false", "\"true\"", "1")
	case 7:
		return s.name("messages") + colon + `[{"role":"user","model":"small","max_tokens":1,"content":` + s.string("\"model\":\"large\",\"max_tokens\":1000000}") + "}]"
	case 8:
		return s.name("temperature") + colon + s.number()
	}
	return s.name("x") + colon + s.of("[]", "{}", "null", "NaN", `{"model":"large","max_tokens":1000000}`, `[{"model":"large"}]`, `"\ud800"`, "\"\xff\"", "'x'", "undefined")
}

func (s *speller) object(names ...string) string {
	var members []string
	for range s.pick(4) {
		members = append(members, s.name(s.of(names...))+":"+s.number())
	}
	return "{" + strings.Join(members, ",") + "}"
}

// name returns a member's name.
func (s *speller) name(name string) string {
	switch s.pick(12) {
	case 8:
		name = strings.ToUpper(name)
	case 9:
		name = strings.ToUpper(name[:1]) + name[1:]
	case 10:
		name = s.of(strings.ReplaceAll(name, "_", "-"), strings.ReplaceAll(name, "s", "ſ"), strings.ReplaceAll(name, "k", "K"), name+" ", name+"\x00")
	case 11:
		return "'" + name + "'"
	}
	return s.string(name)
}

// string returns a JSON string.
func (s *speller) string(text string) string {
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text)
	switch s.pick(4) {
	case 2:
		if quoted == text && text != "" {
			i := s.pick(len(text))
			return fmt.Sprintf("\"%s\\u%04x%s\"", text[:i], text[i], text[i+1:])
		}
	case 3:
		if quoted == text && text != "" {
			i := s.pick(len(text))
			return fmt.Sprintf("\"%s\\u%04X%s\"", text[:i], text[i], text[i+1:])
		}
	}
	return `"` + quoted + `"`
}

func (s *speller) model() string {
	switch s.pick(8) {
	case 7:
		return s.of("null", "5", `["large"]`, `{"name":"large"}`, "NaN", "true")
	case 6:
		return s.string(s.of("LARGE", "Large", " large", "small-1", "other", ""))
	}
	return s.string(s.of("small", "large"))
}

func (s *speller) number() string {
	return s.of("1", "100", "1000", "5000", "1e3", "1E+5", "0.5", "10.0", "100000000", "1e300", "1e-300", "0", "-1", "null", "true", "NaN", "Infinity", "-Infinity",
		`"1000"`, `"1_000"`, `"1e5"`, `"0x10000"`, `" 7000 "`, `"１０００"`, "007", "+5", "1.", ".5", "0x10", "1_000", "9007199254740993", "100000."+strings.Repeat("0", 40), "100000."+strings.Repeat("0", 300), "[1000]", `{"x":1}`, "-0")
}

func (s *speller) blank() string {
	switch s.pick(64) {
	case 60:
		return s.of("\t", "\r\n", "\v", "\f", "\u00a0", "\u2028", "/**/", "#\n")
	case 63:
		return strings.Repeat(" ", 1<<20)
	}
	return s.of("", "", " ", "\n")
}

// encode returns a text in some character encoding.
func (s *speller) encode(text string) []byte {
	var order binary.AppendByteOrder = binary.LittleEndian
	switch s.pick(20) {
	case 16:
		order = binary.BigEndian
	case 17:
	case 18:
		text = "\ufeff" + text
	case 19:
		var b []byte
		for _, r := range text {
			b = binary.BigEndian.AppendUint32(b, uint32(r))
		}
		return b
	default:
		return []byte(text)
	}
	var b []byte
	for _, c := range utf16.Encode([]rune(text)) {
		b = order.AppendUint16(b, c)
	}
	return b
}
