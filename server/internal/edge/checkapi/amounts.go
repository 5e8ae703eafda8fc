package checkapi

import (
	"cmp"
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

// amountsOf reads amounts by their names, or a null as none.
func (c *call) amountsOf() error {
	if c.json.PeekKind() == 'n' {
		return c.json.SkipValue()
	}
	c.amounts = true
	return c.object("amounts", nil, nil, c.amountField)
}

func (c *call) amountField(name string) error {
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

// reserveOf reads for how long amounts are reserved, or a null as not at all.
func (c *call) reserveOf() error {
	value, err := c.value()
	if err != nil || value == "null" {
		return err
	}
	kind := jsontext.Value(value).Kind()
	if kind == '"' {
		value, err = c.text(value)
	}
	switch {
	case err != nil:
		return err
	case kind != '"' && kind != '0':
		return mismatch("reserve", "a time", value, nil)
	}
	d, ok := parseReserve(value, kind == '0')
	if !ok {
		return jsonerror.Bad(`reserve: must be a time from 1ms to 24h such as "2m", or that many seconds as a number`)
	}
	c.req.Reserve = d
	return nil
}

// parseReserve reads a time as it is written, or a number of seconds.
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

// idOf reads the id of a check, or a null as none. An empty one is refused: a caller that has none would not be safe from being
// charged twice, and not know it.
func (c *call) idOf() error {
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

// repeat names a check for the store: by its id, and by all that decides who is charged, and how much. So another request under an
// id that was used before is charged as any other. However a check is written, its name is the same, on every node.
func (c *call) repeat() (name counter.Once) {
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
	attrs := make([]attribute, 0, len(c.attrs)-c.first)
	for _, a := range c.attrs[c.first:] {
		if a.value != "" { // to rules, one that is empty isn't there
			attrs = append(attrs, attribute{plainName(a.name), a.value})
		}
	}
	slices.SortFunc(attrs, func(a, b attribute) int { return cmp.Compare(a.name, b.name) })
	for _, a := range attrs {
		text(a.name)
		text(a.value)
	}
	c.scratch = b
	sum := sha256.Sum256(b)
	copy(name[:], sum[:])
	return name
}

// plainName is the same for names that answer one question of the rules: see sameAttribute.
func plainName(name string) string {
	name = strings.TrimPrefix(name, "attr:")
	if strings.HasPrefix(name, "header:") {
		return strings.ToLower(name)
	}
	return name
}
