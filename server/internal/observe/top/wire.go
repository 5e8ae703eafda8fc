package top

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Nodes tell each other what they know in lines of JSON, compressed. The first is about the node. Each of the others begins with a letter that
// says what it is.
//
// Whoever can write to Redis can put anything there. So a reader holds one line at a time, of a bounded length, looks at it before the
// next, and stops at the first that no node has written. What it keeps is bounded by what all lines weigh.
const (
	longestLine = 64 << 10
	// perLine is what a line weighs at least: what is made of it takes so much memory, however short it is.
	perLine = 320
)

var (
	// errBadList is a list that no node has written.
	errBadList  = errors.New("makes no sense")
	errTooLarge = errors.New("it is too large")
	// errUnwanted ends the reading after the first line.
	errUnwanted = errors.New("it is old")
)

// packer writes lines.
type packer struct {
	b      bytes.Buffer
	z      *gzip.Writer
	weight int
	err    error
}

func newPacker(head any) *packer {
	p := &packer{}
	p.z, p.err = gzip.NewWriterLevel(&p.b, gzip.BestSpeed)
	p.line("", head)
	return p
}

func (p *packer) line(kind string, v any) {
	if p.err != nil {
		return
	}
	var text []byte
	if text, p.err = json.Marshal(v); p.err != nil {
		return
	}
	line := append(append([]byte(kind), text...), '\n')
	p.weight += max(len(line), perLine)
	_, p.err = p.z.Write(line)
}

// done returns all of it, and what it weighs.
func (p *packer) done() ([]byte, int, error) {
	if p.err == nil {
		p.err = p.z.Close()
	}
	return p.b.Bytes(), p.weight, p.err
}

// unpack reads lines that weigh no more than what is left, and takes their weight from that.
func unpack(b []byte, left *int, head func(text []byte) error, line func(kind byte, text []byte) error) error {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, longestLine)
	first := true
	for ; lines.Scan(); first = false {
		text := lines.Bytes()
		if *left -= max(len(text)+1, perLine); *left < 0 {
			return errTooLarge
		}
		switch {
		case first:
			err = head(text)
		case len(text) == 0:
			err = errors.New("a line is empty")
		default:
			err = line(text[0], text[1:])
		}
		if err != nil {
			return err
		}
	}
	if err = lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		*left -= longestLine
		return errTooLarge
	}
	if err == nil && first {
		return io.ErrUnexpectedEOF
	}
	return err
}

// another reads a line into a list that has room for more.
func another[T any](to *[]T, most int, text []byte, good func(*T) bool) error {
	var v T
	switch {
	case len(*to) >= most:
		return fmt.Errorf("it has more than %d", most)
	case json.Unmarshal(text, &v) != nil || !good(&v):
		return errors.New("a line is none")
	}
	*to = append(*to, v)
	return nil
}

// packed is what the node tells.
func (t *told) packed() ([]byte, int, error) {
	p := newPacker(t)
	for i := range t.Names {
		p.line("n", &t.Names[i])
	}
	for i := range t.Rules {
		r := &t.Rules[i]
		if !clean(r.Rule) {
			continue // others wouldn't believe it
		}
		p.line("r", r)
		for j := range r.Rows {
			p.line("k", &r.Rows[j])
		}
	}
	return p.done()
}

// unpackTold reads an answer to a question, unless it was given before some time.
func unpackTold(b []byte, left *int, q question, now, since time.Time) (t told, err error) {
	rules := map[string]bool{}
	err = unpack(b, left, func(text []byte) error {
		switch err := json.Unmarshal(text, &t); {
		case err != nil:
			return err
		case t.At.IsZero() || !been(t.At, now) || !once(t.Since, now):
			return errors.New("its time is not of now")
		case !(t.OneIn >= 1 && t.OneIn <= mostOne):
			return errors.New("one_in must be 1 or more")
		case t.Left < 0:
			return errors.New("it has left out less than none")
		case t.At.Before(since):
			return errUnwanted
		}
		return nil
	}, func(kind byte, text []byte) error {
		switch kind {
		case 'n':
			return another(&t.Names, mostNames, text, func(n *toldName) bool { return n.sane(q) })
		case 'r':
			return another(&t.Rules, hourRules, text, func(r *toldRule) bool {
				known := rules[r.Rule]
				rules[r.Rule] = true
				return !known && r.sane(now)
			})
		case 'k':
			if len(t.Rules) == 0 {
				return errors.New("it has a key of no rule")
			}
			return another(&t.Rules[len(t.Rules)-1].Rows, perRule, text, (*toldRow).sane)
		}
		return fmt.Errorf("a line begins with %q", kind)
	})
	return t, err
}

// packed is what the node tells.
func (l *List) packed() ([]byte, int, error) {
	p := newPacker(l)
	for i := range l.Clients.Hot {
		p.line("c", &l.Clients.Hot[i])
	}
	for i := range l.Pairs.Hot {
		if c := &l.Pairs.Hot[i]; clean(c.Rule) {
			p.line("p", c)
		}
	}
	for i := range l.Rules {
		if r := &l.Rules[i]; clean(r.Rule) {
			p.line("r", r)
		}
	}
	return p.done()
}

// unpackList reads a list, unless it is of the time of the one that is there already.
func unpackList(b []byte, left *int, now, there time.Time) (l List, err error) {
	err = unpack(b, left, func(text []byte) error {
		switch err := json.Unmarshal(text, &l); {
		case err != nil:
			return err
		case !been(l.At, now) || !been(l.Began, now):
			return errors.New("its times are not of now")
		case !(l.OneIn >= 1 && l.OneIn <= mostOne):
			return errors.New("one_in must be 1 or more")
		case !l.Clients.Missing.sane() || !l.Pairs.Missing.sane():
			return errors.New("missing must be rates")
		case l.At.Equal(there):
			return errUnwanted
		}
		return nil
	}, func(kind byte, text []byte) error {
		switch kind {
		case 'c':
			return another(&l.Clients.Hot, 2*listed, text, (*listClient).sane)
		case 'p':
			return another(&l.Pairs.Hot, 2*listed, text, (*listClient).sane)
		case 'r':
			return another(&l.Rules, maxRules, text, func(r *listRule) bool { return r.sane(now) })
		}
		return fmt.Errorf("a line begins with %q", kind)
	})
	return l, err
}
