package checkapi

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/shown"
)

// amountsOf reads amounts by name, or null as none.
func (c *workspace) amountsOf() error {
	if c.json.PeekKind() == 'n' {
		return c.json.SkipValue()
	}
	c.amounts = true
	return c.object("amounts", nil, c.amountField)
}

func (c *workspace) amountField(name string) error {
	if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return jsonerror.Bad("amounts: a name must have from 1 to 64 of a-z, 0-9 and _, such as tokens")
	}
	field := "amounts." + shown.Name(name)
	if _, twice := c.req.Amounts[name]; twice {
		return jsonerror.Bad("%s: is given twice", field)
	}
	if len(c.req.Amounts) == MaxAmounts {
		return jsonerror.Bad("amounts: there may be at most %d", MaxAmounts)
	}
	value, err := c.value()
	if err != nil || jsontext.Value(value).Kind() != '0' {
		return mismatch(field, "a number", value, err)
	}
	var a counter.Amount
	if a.UnmarshalJSON([]byte(value)) != nil {
		return jsonerror.Bad("%s: must be from 0 to %d", field, int64(MaxCost))
	}
	if c.req.Amounts == nil {
		c.req.Amounts = map[string]counter.Amount{}
	}
	c.req.Amounts[name] = a
	return nil
}

// reserveOf reads for how long amounts are reserved; null means not at all.
func (c *workspace) reserveOf() error {
	value, err := c.value()
	kind := jsontext.Value(value).Kind()
	if err == nil && kind == '"' {
		value, err = c.text(value)
	}
	switch {
	case err != nil || kind == 'n':
		return err
	case kind != '"' && kind != '0':
		return mismatch("reserve", "a time", value, nil)
	}
	var ok bool
	if c.req.Reserve, ok = parseReserve(value, kind == '0'); !ok {
		return jsonerror.Bad(`reserve: must be a time from 1ms to 24h such as "2m", or that many seconds as a number`)
	}
	return nil
}

func parseReserve(text string, seconds bool) (d time.Duration, ok bool) {
	var err error
	if seconds {
		var s counter.Amount // in millionths
		err = s.UnmarshalJSON([]byte(text))
		d = time.Duration(s) * time.Microsecond
	} else {
		d, err = time.ParseDuration(text)
	}
	return d, err == nil && d >= time.Millisecond && d <= MaxReserve
}

// idOf reads the id of a check; null means none. An empty id is an error: its caller believes that a
// retry is charged once.
func (c *workspace) idOf() error {
	if c.json.PeekKind() == 'n' {
		return c.json.SkipValue()
	}
	if err := c.textOf("", "id", MaxBody, &c.id); err != nil {
		return err
	}
	if n := len(c.id); n < 1 || n > MaxID {
		return jsonerror.Bad("id: must have from 1 to %d bytes, got %d", MaxID, n)
	}
	return nil
}

// repeat names a check for the store, on every node alike: by its id and by everything that decides
// who is charged, and how much. So another request with a used id is charged like any other.
func (c *workspace) repeat() (name counter.Once) {
	b := append(c.scratch[:0], "weir check 1\x00"...)
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	for _, s := range []string{c.id, c.req.APIKey, c.req.Method, c.req.Path, c.req.User, c.req.Org, c.req.Tier} {
		text(s)
	}
	ip := [17]byte{}
	if c.req.IP.IsValid() {
		ip = [17]byte{1}
		all := c.req.IP.As16()
		copy(ip[1:], all[:])
	}
	b = append(b, ip[:]...)
	number(c.req.Cost)
	number(int64(c.req.Reserve))
	number(int64(len(c.req.Amounts)))
	for _, amount := range slices.Sorted(maps.Keys(c.req.Amounts)) {
		text(amount)
		number(int64(c.req.Amounts[amount]))
	}
	attrs := map[string]string{}
	for _, a := range c.attrs[c.first:] {
		if a.value != "" { // to rules, an empty attribute is missing
			attrs[plainName(a.name)] = a.value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		text(name)
		text(attrs[name])
	}
	c.scratch = b
	sum := sha256.Sum256(b)
	copy(name[:], sum[:])
	return name
}

// plainName maps names that mean the same to rules to one name: see sameAttribute.
func plainName(name string) string {
	name = strings.TrimPrefix(name, "attr:")
	if strings.HasPrefix(name, "header:") {
		return strings.ToLower(name)
	}
	return name
}
