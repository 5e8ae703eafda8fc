package checkapi

import "math/bits"

// maxDepth is how deep values may be nested. A check needs three levels.
const maxDepth = 32

// skip reads a value of any kind and keeps nothing of it. What a string holds
// isn't looked at: whoever reads the value does that. Depth costs a bit, not a stack frame.
func (p *parser) skip() error {
	var open uint64 // of each level, from the lowest bit up: whether it is an object; above them a 1
	open = 1
	for {
		c := p.peek()
		switch {
		case c == '{' || c == '[':
			if bits.Len64(open) > maxDepth {
				return p.syntax("nested too deep")
			}
			p.pos++
			open <<= 1
			if c == '{' {
				open |= 1
			}
			if closed := p.peek(); closed == c+2 { // } and ] both come two behind what opens them
				break
			}
			if c == '{' {
				if _, err := p.fieldName(); err != nil {
					return err
				}
			}
			continue
		case c == '"':
			if err := p.skipText(); err != nil {
				return err
			}
		case c == '-' || c >= '0' && c <= '9':
			end, ok := number(p.src, p.pos)
			if p.pos = end; !ok {
				return p.syntax("this is no number")
			}
		case c == 't' && p.literal("true"), c == 'f' && p.literal("false"), c == 'n' && p.literal("null"):
		default:
			return p.syntax("this begins no value")
		}
		more, err := p.close(&open)
		if err != nil || !more {
			return err
		}
	}
}

// close goes on behind a value: to the next one of the same list or object, or
// out of those that end here. It reports false when the outermost value has ended.
func (p *parser) close(open *uint64) (more bool, err error) {
	for *open > 1 {
		object := *open&1 == 1
		switch c := p.peek(); {
		case c == ',':
			p.pos++
			if object {
				_, err = p.fieldName()
			}
			return true, err
		case c == '}' && object, c == ']' && !object:
			p.pos++
			*open >>= 1
		case object:
			return false, p.syntax("expected , or }")
		default:
			return false, p.syntax("expected , or ]")
		}
	}
	return false, nil
}

func (p *parser) skipText() error {
	for i := p.pos + 1; i < len(p.src); i++ {
		switch p.src[i] {
		case '"':
			p.pos = i + 1
			return nil
		case '\\':
			i++
		}
	}
	p.pos = len(p.src)
	return p.syntax("a string has no end")
}
