package top

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Nodes send each other compressed lines of JSON. The first line describes the node. Each of the other lines begins
// with a letter for its type.
//
// Anybody who can write to Redis can put anything there. So a reader reads one line of bounded length at a time,
// validates it before it reads the next, and stops at the first invalid line. The total size of all lines is bounded,
// too.
const (
	longestLine = 64 << 10
	// perLine is the smallest size that is counted for a line, because a decoded line takes at least that much memory.
	perLine = 320
)

var (
	// errBadList means that an answer is invalid.
	errBadList  = errors.New("makes no sense")
	errTooLarge = errors.New("it is too large")
	// errUnwanted says that the rest of the answer, after the first line, isn't needed.
	errUnwanted = errors.New("it is old")
)

// packed returns the lines of the answer in compressed form, and their uncompressed size.
func (t *told) packed() (b []byte, weight int, err error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, 0, err
	}
	line := func(kind string, v any) {
		text, failed := json.Marshal(v)
		n, _ := fmt.Fprintf(z, "%s%s\n", kind, text) // can't fail: z writes to memory
		weight, err = weight+max(n, perLine), cmp.Or(err, failed)
	}
	line("", t)
	for i := range t.Names {
		line("n", &t.Names[i])
	}
	for i := range t.Clients.Hot {
		line("c", &t.Clients.Hot[i])
	}
	for i := range t.Pairs.Hot {
		if c := &t.Pairs.Hot[i]; clean(c.Rule) { // other nodes would reject a line with an unclean name
			line("p", c)
		}
	}
	for i := range t.Rules {
		r := &t.Rules[i]
		if !clean(r.Rule) {
			continue // other nodes would reject this line
		}
		line("r", r)
		for j := range r.Rows {
			line("k", &r.Rows[j])
		}
	}
	err = cmp.Or(err, z.Close()) // Close writes the rest of the compressed data
	return out.Bytes(), weight, err
}

// unpackTold decodes an answer to a question. It returns errUnwanted if the answer is too old, or if its time is there,
// which means that it is already known. It subtracts the sizes of the lines from left, and fails if they exceed it.
func unpackTold(b []byte, left *int, q question, now, there time.Time) (t told, err error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return t, err
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, longestLine)
	rules := map[string]bool{}
	first := true
	for ; lines.Scan(); first = false {
		text := lines.Bytes()
		if *left -= max(len(text)+1, perLine); *left < 0 {
			return t, errTooLarge
		}
		if first {
			err = t.readHead(text, now, there)
		} else {
			err = t.readLine(text, q, now, rules)
		}
		if err != nil {
			return t, err
		}
	}
	switch err = lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		*left -= longestLine
		return t, errTooLarge
	case err == nil && first:
		return t, io.ErrUnexpectedEOF
	}
	return t, err
}

// readHead decodes the first line.
func (t *told) readHead(text []byte, now, there time.Time) error {
	switch err := json.Unmarshal(text, t); {
	case err != nil:
		return err
	case t.At.IsZero() || !been(t.At, now) || !been(t.Since, now):
		return errors.New("its times are not of now")
	case !(t.OneIn >= 1 && t.OneIn <= mostOne):
		return errors.New("one_in must be 1 or more")
	case t.Left < 0:
		return errors.New("it has left out less than none")
	case !t.Clients.Missing.sane() || !t.Pairs.Missing.sane():
		return errors.New("missing must be rates")
	case t.At.Equal(there) || now.Sub(t.At) > oldest:
		return errUnwanted
	}
	return nil
}

// readLine decodes a line after the first one. rules has the names of the rules that have been decoded.
func (t *told) readLine(text []byte, q question, now time.Time, rules map[string]bool) error {
	if len(text) == 0 {
		return errors.New("a line is empty")
	}
	kind, text := text[0], text[1:]
	switch kind {
	case 'n':
		return another(&t.Names, mostNames, text, func(n *toldName) bool { return n.sane(q) })
	case 'c':
		return another(&t.Clients.Hot, 2*listed, text, (*hotClient).sane)
	case 'p':
		return another(&t.Pairs.Hot, 2*listed, text, (*hotClient).sane)
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
}

// another decodes a line and appends the result to a list. If the list is full, or good returns false, it returns an
// error.
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

// The methods named sane reject values that no node would send. A single infinite or absurd number would spoil the
// merged answer.
const (
	mostRate = 1e12 // per second
	mostOne  = 1e9  // the highest sampling weight
	longest  = 1024 // maximum length of a name, in bytes
	aCentury = 100 * 365 * 24 * time.Hour
	// mostSum is the highest number that a node can count in an hour.
	mostSum = HourSlots * mostCount
)

// been reports whether a time is zero, or is plausible as a time in the past. It allows for differences between clocks.
func been(at, now time.Time) bool {
	return at.IsZero() || !at.After(now.Add(oldest)) && now.Sub(at) < aCentury
}

// clean reports whether a name is short and printable, so that it may be shown.
func clean(name string) bool {
	return len(name) <= longest && strings.IndexFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) < 0
}

func (r Rates) sane() bool {
	return r.Requests >= 0 && r.Requests <= mostRate && r.Refused >= 0 && r.Refused <= mostRate
}

func (n *named) sane() bool { return clean(n.Client) && clean(n.Kind) }

func (c *hotClient) sane() bool {
	return c.named.sane() && slices.Contains(kindNames[:], c.Kind) && clean(c.Rule) && c.Rates.sane()
}

func (s sum) sane() bool { return s.Refused <= s.Requests && s.Requests <= mostSum }

func (s *sketched) sane() bool {
	return s.N >= len(s.Low) && s.N <= hourRows && len(s.Low) <= perRule && slices.IsSorted(s.Low)
}

func (n *toldName) sane(q question) bool {
	return q.kind == ofClient && uint32(n.ID>>32) == q.print() && n.ID != 0 && n.named.sane() && len(n.Sealed) <= longest
}

func (r *toldRule) sane(now time.Time) bool {
	return clean(r.Rule) && been(r.Hit, now) && been(r.Refusal, now) && r.Sum.sane() && r.Kept <= r.Sum.Requests && r.Would <= mostSum &&
		r.Keys.sane() && r.Above.sane() && tells(r.Past, nil) && r.Rates.sane() && r.Shadow >= 0 && r.Shadow <= mostRate
}

func (w *toldRow) sane() bool {
	return w.named.sane() && w.Used <= usedAll && tells(w.Past, &w.Sum)
}

// tells reports whether an encoded history is well-formed and, if of isn't nil, whether it adds up to that sum.
func tells(past []byte, of *sum) bool {
	if len(past) > 32*HourSlots {
		return false
	}
	var all sum
	ok := readPast(past, func(t tick) { all.add(sum{t.requests, t.refused}) })
	return ok && (of == nil || all == *of)
}
