package rulefile

import (
	"time"

	"github.com/weirhq/weir/counter"
)

var abuseFields = fieldSet{
	of:    "abuse",
	names: []string{"refusals", "cooldown", "grow", "most", "forgive", "drop_after", "shadow"},
	wrong: map[string]string{
		"limit": `write "refusals"`, "threshold": `write "refusals"`, "ban": `write "cooldown"`, "max": `write "most"`,
		"factor": `write "grow"`, "multiplier": `write "grow"`, "drop": `write "drop_after"`,
	},
}

// usualAbuse is what `abuse: true` means, and the defaults of the fields.
var usualAbuse = counter.Abuse{Refusals: 100, Window: time.Minute, Cooldown: time.Minute, Grow: 2, Most: 24 * time.Hour, Forgive: time.Hour}

// abuse reads how a rule treats clients that keep sending requests while they are refused. The value is true, false or a
// map. Fields that the map leaves out keep their defaults.
func (d *decoder) abuse(v value) *counter.Abuse {
	if !d.given(v) {
		return nil
	}
	a := usualAbuse
	if v.kind == scalar {
		if before := len(d.list); !d.boolean(v) {
			if len(d.list) > before {
				d.list[before].Text = "must be true, false, or fields such as {refusals: 100/minute, cooldown: 1m}, got " + v.describe()
			}
			a = counter.Abuse{}
		}
		return &a
	}
	f := d.fields(v, &abuseFields)
	if r := f["refusals"]; r.node != nil {
		l := d.limit(r, map[string]value{"limit": r}, scope{})
		if len(l) == 0 {
			return nil
		}
		if l[0].Calendar.Unit != counter.NoUnit {
			d.fail(r, "must be over a length of time, such as 100/minute or 1000/30d, got %s", l[0])
		}
		a.Refusals, a.Window = l[0].Count, l[0].Window
	}
	for name, to := range map[string]*time.Duration{"cooldown": &a.Cooldown, "most": &a.Most, "forgive": &a.Forgive} {
		if t, ok := d.duration(f[name]); ok {
			*to = t
		}
	}
	if f["most"].node == nil {
		a.Most = max(a.Most, a.Cooldown)
	}
	if n, ok := d.number(f["grow"], "a number from 1 to 100"); ok {
		a.Grow = n
	}
	a.DropAfter = d.integer(f["drop_after"])
	a.Shadow = d.boolean(f["shadow"])
	return &a
}
