package rulefile

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/guess"
)

// text reads a text. Nothing in the language may be "", because that would be a condition that always holds.
func (d *decoder) text(v value) string {
	switch {
	case !d.given(v):
	case v.kind != scalar:
		d.fail(v, "must be text, got %s", v.describe())
	case !v.quoted && (v.text == "true" || v.text == "false"):
		d.fail(v, "must be text, got %s", v.text).Hint = fmt.Sprintf("write %q if that is its name", v.text)
	case strings.TrimSpace(v.text) == "":
		d.fail(v, "must not be empty: write a text, or leave the field out")
	default:
		return v.text
	}
	return ""
}

func (d *decoder) texts(v value, example string) []string {
	var list []string
	for _, item := range d.items(v, example) {
		list = append(list, d.text(item))
	}
	return list
}

func (d *decoder) boolean(v value) bool {
	if !d.given(v) {
		return false
	}
	if !v.quoted {
		switch v.text {
		case "true", "True", "TRUE":
			return true
		case "false", "False", "FALSE":
			return false
		}
	}
	p := d.fail(v, "must be true or false, got %s", v.describe())
	switch strings.ToLower(v.text) {
	case "true", "yes", "on", "y", "1":
		p.Hint = "write true"
	case "false", "no", "off", "n", "0":
		p.Hint = "write false"
	}
	return false
}

// choice reads one of several words and returns its index. It returns 0 if there is no value, and -1 if the value is
// another word.
func (d *decoder) choice(v value, words ...string) int {
	if !d.given(v) {
		return 0
	}
	if i := slices.Index(words, v.text); i >= 0 {
		return i
	}
	p := d.fail(v, "must be %s, got %s", oneOf(words), v.describe())
	p.Hint = guess.Hint(v.text, words)
	other := otherWords[v.text]
	if word, _, _ := strings.Cut(other, ","); slices.Contains(words, word) {
		p.Hint = "write " + other
	}
	return -1
}

// otherWords maps other programs' words to those of the language.
var otherWords = map[string]string{
	"deny": "refuse", "reject": "refuse", "block": "refuse", "closed": "refuse", "fail_closed": "refuse",
	"open": "allow", "fail_open": "allow", "ignore": "skip",
	"release": "give_back", "refund": "give_back", "return": "give_back", "charge": "keep", "hold": "keep",
	"leaky_queue": "leaky_bucket, with mode: queue beside it", "calendar": "fixed_window, with calendar: {tz: Europe/Berlin} beside it",
	"semaphore": "concurrency", "in_flight": "concurrency", "slots": "concurrency",
	"mon": "monday", "tue": "tuesday", "wed": "wednesday", "thu": "thursday", "fri": "friday", "sat": "saturday", "sun": "sunday",
}

func oneOf(words []string) string {
	if len(words) > 3 {
		return "one of " + strings.Join(words, ", ")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// parseNumber parses a decimal number as in YAML, with _ between digits.
func parseNumber(s string) (n float64, ok bool) {
	if strings.Trim(s, "0123456789_+-.eE") != "" || !strings.ContainsAny(s, "0123456789") {
		return 0, false
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return n, err == nil
}

// isNumber reports whether the value is a number, and not digits in quotes.
func (v value) isNumber() bool {
	if v.node == nil || v.kind != scalar || v.quoted {
		return false
	}
	_, ok := parseNumber(v.text)
	return ok
}

// integer reads a whole number of at least 1, as all counts in the language are. It returns 0 if there is none.
func (d *decoder) integer(v value) int64 {
	n, ok := d.whole(v)
	if ok && n < 1 {
		d.fail(v, "must be at least 1, got %d", n)
		return 0
	}
	return n
}

func (d *decoder) whole(v value) (int64, bool) {
	if _, ok := d.number(v, "a whole number"); !ok {
		return 0, false
	}
	digits := strings.TrimLeft(v.text, "+-")
	n, err := strconv.ParseInt(strings.ReplaceAll(v.text, "_", ""), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		d.fail(v, "is too large, got %s", shorten(v.text))
	case err != nil:
		d.fail(v, "must be a whole number, got %s", shorten(v.text))
	case len(digits) > 1 && digits[0] == '0':
		// Some programs read 010 as ten, others as eight.
		d.fail(v, "must be a whole number without a leading 0, got %s", shorten(v.text))
	default:
		return n, true
	}
	return 0, false
}

// defaultFloor is the part of a global rule's limit that each region owns if the rule doesn't say so, in percent.
const defaultFloor = 5

// percent reads a text such as 5%. It returns 0 if there is none.
func (d *decoder) percent(v value) int {
	if !d.given(v) {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSuffix(v.text, "%"))
	if v.kind != scalar || err != nil || n < 0 || n > 50 || !strings.HasSuffix(v.text, "%") {
		d.fail(v, "must be a whole number of percents from 0%% to 50%%, such as 5%%, got %s", v.describe())
		return 0
	}
	return n
}

// number reads a number. want says what it must be, for the message.
func (d *decoder) number(v value, want string) (n float64, ok bool) {
	if !d.given(v) {
		return 0, false
	}
	if v.isNumber() {
		return parseNumber(v.text)
	}
	p := d.fail(v, "must be %s, got %s", want, v.describe())
	digits, slash := strings.CutPrefix(v.text, "/")
	if _, ok := parseNumber(digits); ok && slash {
		p.Hint = "write it without the slash"
	} else if ok {
		p.Hint = "remove the quotes"
	}
	return 0, false
}

// maxSeconds is a number of seconds that a time.Duration can hold.
const maxSeconds = float64(math.MaxInt64/time.Second) / 2

// duration reads a time: a number of seconds, or a text such as 15m.
func (d *decoder) duration(v value) (time.Duration, bool) {
	if !d.given(v) {
		return 0, false
	}
	if v.isNumber() {
		seconds, _ := parseNumber(v.text)
		if math.Abs(seconds) > maxSeconds {
			d.fail(v, "is too long, got %s seconds", shorten(v.text))
			return 0, false
		}
		return time.Duration(math.Round(seconds*1e6)) * time.Microsecond, true
	}
	if v.kind != scalar {
		d.fail(v, "must be a number of seconds or a time such as 15m, got %s", v.describe())
		return 0, false
	}
	w, err := counter.ParseWindow(v.text)
	if err != nil {
		d.fail(v, "%v", err).Hint = guessWindow("", v.text)
		return 0, false
	}
	return w, true
}

var windowWords = []string{"second", "minute", "hour", "day", "week", "millisecond", "seconds", "minutes", "hours", "days", "weeks", "milliseconds"}

var otherCount = regexp.MustCompile(`^([0-9]+(?:[ .,'’\x{a0}\x{202f}][0-9]{3})*) ?(?:(k|K)|r|req|reqs|requests)?$`)

var thousands = strings.NewReplacer(",", "", ".", "", " ", "", "'", "", "’", "", "\u00a0", "", "\u202f", "")

// cutCount matches a limit whose number is cut in two by a comma: {limit: 1,000/minute}.
var cutCount = regexp.MustCompile(`^[0-9]{1,3}(?:,[0-9]{3})+(?:(?:/| per )[0-9a-zA-Z ]+)?`)

// guessCut returns a hint for a number that ends at a comma, because a comma ends a value between brackets and
// braces.
func (d *decoder) guessCut(v value) string {
	if whole := cutCount.FindString(d.src.text[v.at:d.src.lineEnd(v.at)]); whole != "" {
		return fmt.Sprintf("write %q: a comma ends the value here", strings.TrimSpace(strings.ReplaceAll(whole, ",", "")))
	}
	return ""
}

// guessCount returns the number that was meant by 1,000, 1.000, 1 000, 1k or nginx' 60r, or "".
func guessCount(s string) string {
	found := otherCount.FindStringSubmatch(strings.TrimLeft(strings.TrimSpace(s), "$€£"))
	if found == nil {
		return ""
	}
	number := thousands.Replace(found[1])
	if strings.HasPrefix(number, "0") {
		return ""
	}
	if found[2] != "" {
		number += "000"
	}
	return number
}

// guessWindow returns a hint for a misspelled time. before is the text before it.
func guessWindow(before, s string) string {
	word := strings.TrimLeft(s, "0123456789 ")
	number := s[:len(s)-len(word)]
	switch w := strings.ToLower(word); {
	case word == "M": // the problem itself says what to write
		return ""
	case w == "hr" || w == "hrs":
		return fmt.Sprintf("did you mean %q?", before+number+"hour")
	case (w == "months" || w == "mo") && before != "" && (number == "" || strings.TrimSpace(number) == "1"):
		return fmt.Sprintf("write %q, the calendar's, or %q", before+"month", before+"30d")
	case w == "month" || w == "months" || w == "mo":
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil || n < 1 || n > 12 {
			n = 1
		}
		return fmt.Sprintf("months differ in length: write %dd", 30*n)
	case w == "year" || w == "years" || w == "y":
		return "years differ in length: write 365d"
	case word == "" && s != "":
		return fmt.Sprintf("did you mean %q?", before+s+"s")
	case len(word) >= 3:
		if best := guess.Closest(word, windowWords); best != "" {
			return fmt.Sprintf("did you mean %q?", before+number+best)
		}
	}
	return ""
}
