package client

import "strings"

// item is a member of a structured field (RFC 9651): "name";key=value in a list, name=value in a dictionary.
type item struct {
	name   string
	quoted bool
	value  string
	params map[string]string // at most maxParams
}

// maxParams is how many parameters of an item are kept.
const maxParams = 8

// number returns the value of a parameter that is a number.
func (it *item) number(key string) (float64, bool) {
	n, ok := number(it.params[key])
	return n, ok && n <= maxNumber
}

// parseList parses the lines of a header. A header with an error counts as absent, as the RFC demands, and so does one that
// is too long.
func parseList(lines []string) []item {
	p := parser{rest: strings.Join(lines, ",")}
	if len(p.rest) > maxField {
		return nil
	}
	var items []item
	for p.blank(); p.rest != ""; p.blank() {
		it, ok := p.item()
		if !ok {
			return nil
		}
		if len(items) < maxPolicies {
			items = append(items, it)
		}
		p.blank()
		if p.rest != "" && !p.skip(',') {
			return nil
		}
	}
	return items
}

type parser struct{ rest string }

func (p *parser) blank() { p.rest = strings.TrimLeft(p.rest, " \t") }

func (p *parser) skip(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *parser) item() (it item, ok bool) {
	if it.name, it.quoted, ok = p.bare(); !ok || len(it.name) > maxName {
		return it, false
	}
	if !it.quoted && p.skip('=') {
		if it.value, _, ok = p.bare(); !ok {
			return it, false
		}
	}
	for p.blank(); p.skip(';'); p.blank() {
		p.blank()
		key, quoted, ok := p.bare()
		if !ok || quoted {
			return it, false
		}
		value := ""
		if p.skip('=') {
			if value, _, ok = p.bare(); !ok {
				return it, false
			}
		}
		if it.params == nil {
			it.params = map[string]string{}
		}
		if len(it.params) < maxParams {
			it.params[key] = value
		}
	}
	return it, true
}

// bare reads a quoted string, or else everything up to the next delimiter: a token, a number, bytes.
func (p *parser) bare() (s string, quoted, ok bool) {
	if !p.skip('"') {
		end := strings.IndexAny(p.rest, "=;, \t\"")
		if p.rest != "" && p.rest[0] == ':' { // bytes in base64, which has = at its end
			if end = strings.IndexByte(p.rest[1:], ':') + 2; end < 2 {
				return "", false, false
			}
		}
		if end < 0 {
			end = len(p.rest)
		}
		s, p.rest = p.rest[:end], p.rest[end:]
		return s, false, s != ""
	}
	for i := 0; i < len(p.rest); i++ {
		switch p.rest[i] {
		case '\\':
			i++
		case '"':
			s, p.rest = p.rest[:i], p.rest[i+1:]
			if strings.IndexByte(s, '\\') >= 0 {
				s = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(s)
			}
			return s, true, true
		}
	}
	return "", true, false
}
