package counter

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Amount is a decimal number, kept exactly in millionths: 1,500 tokens, or 0.012 dollars.
type Amount int64

// ParseAmount reads a decimal number with at most six decimals: "1500", "0.012".
func ParseAmount(s string) (Amount, error) {
	whole, part, point := strings.Cut(s, ".")
	if whole == "" || point && part == "" || strings.Trim(whole+part, "0123456789") != "" {
		return 0, fmt.Errorf(`must be a number such as 1500 or 0.012, got %q`, s)
	}
	if len(strings.TrimRight(part, "0")) > 6 {
		return 0, fmt.Errorf("has more than six digits behind the point: %s", s)
	}
	a, err := amountOfNumber(s)
	if err != nil {
		err = fmt.Errorf("%w, got %s", err, s)
	}
	return a, err
}

// Whole converts a number of tokens to an Amount.
func Whole(n int64) Amount { return Amount(min(max(n, 0), MaxTokens)) * micro }

// Tokens returns the amount without its fraction.
func (a Amount) Tokens() int64 { return int64(a / micro) }

// String returns the amount as people write it: 0.012.
func (a Amount) String() string { return string(a.append(nil)) }

func (a Amount) append(b []byte) []byte {
	n := uint64(a)
	if a < 0 {
		b, n = append(b, '-'), -n
	}
	b = strconv.AppendUint(b, n/micro, 10)
	if part := n % micro; part > 0 {
		digits := strconv.AppendUint(nil, micro+part, 10)
		b = append(append(b, '.'), strings.TrimRight(string(digits[1:]), "0")...)
	}
	return b
}

// MarshalJSON writes the amount as a JSON number.
func (a Amount) MarshalJSON() ([]byte, error) { return a.append(nil), nil }

// UnmarshalJSON reads a JSON number. It rounds up to a millionth, so that nothing is free.
func (a *Amount) UnmarshalJSON(b []byte) error {
	n, err := amountOfNumber(string(b))
	if err == nil {
		*a = n
	}
	return err
}

var (
	errAmount  = errors.New("must be a number from 0 on")
	errTooMuch = fmt.Errorf("must be at most %d", int64(MaxTokens))
)

// amountOfNumber reads a JSON number exactly: 1.2e-05 is 12 millionths.
func amountOfNumber(s string) (Amount, error) {
	number, exponent, e := strings.Cut(strings.ToLower(strings.TrimPrefix(s, "-")), "e")
	power := 0
	if e {
		var err error
		if power, err = strconv.Atoi(exponent); err != nil && !errors.Is(err, strconv.ErrRange) {
			return 0, errAmount
		}
	}
	whole, part, point := strings.Cut(number, ".")
	digits := strings.TrimLeft(whole+part, "0")
	switch {
	case whole == "" || point && part == "" || strings.Trim(digits, "0123456789") != "":
		return 0, errAmount
	case digits == "":
		return 0, nil
	case s[0] == '-':
		return 0, errAmount
	}
	// The first n digits are the amount in millionths. Any digits after those are rounded up.
	n := len(digits) - len(part) + 6 + min(max(power, -len(s)-len("1000000")), len(s)+20)
	switch {
	case n <= 0:
		return 1, nil
	case n > len("9000000000000000"):
		return 0, errTooMuch
	}
	rest := ""
	if n < len(digits) {
		digits, rest = digits[:n], strings.Trim(digits[n:], "0")
	}
	a, err := strconv.ParseInt(digits+strings.Repeat("0", n-len(digits)), 10, 64)
	if rest != "" {
		a++
	}
	if err != nil || a > MaxAmount {
		return 0, errTooMuch
	}
	return Amount(a), nil
}
