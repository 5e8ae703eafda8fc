package weir

import "github.com/weirhq/weir/counter"

import "time"

// checkAbuse finds what can't be meant. Nil and the zero value are none.
func checkAbuse(a *counter.Abuse, path string, bad *problems) {
	const year = 366 * 24 * time.Hour
	switch {
	case a == nil || *a == (counter.Abuse{}):
	case a.Refusals < 1 || a.Refusals > counter.MaxTokens:
		bad.addf(path+".refusals", "must be from 1 to %d, got %d", int64(counter.MaxTokens), a.Refusals)
	case a.Window < time.Second || a.Window > 24*time.Hour:
		bad.addf(path+".refusals", "must be within a second to a day, got %s", a.Window)
	case a.Cooldown < time.Second || a.Cooldown > year:
		bad.addf(path+".cooldown", "must be from 1s to 366d, got %s", a.Cooldown)
	case !(a.Grow >= 1 && a.Grow <= 100):
		bad.addf(path+".grow", "must be from 1, which is no growth, to 100, got %v", a.Grow)
	case a.Most < a.Cooldown || a.Most > year:
		bad.addf(path+".most", "must be from the first cooldown, %s, to 366d, got %s", a.Cooldown, a.Most)
	case a.Forgive < 0 || a.Forgive > year:
		bad.addf(path+".forgive", "must be from 0 to 366d, got %s", a.Forgive)
	case a.DropAfter < 0:
		bad.addf(path+".drop_after", "must be at least 1 refusal, or left out, got %d", a.DropAfter)
	}
}
