package rulefile_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/rulefile"
)

const several = `# who may do how much
tiers: {free: 100/minute}
rules:
  - id: quota

  # the search cluster is small;
  # see the capacity plan
  - id: search # nightly jobs, too
    match: {endpoint: /v1/search}

    # raised in May
    limit: 30/minute
    override:
      sk_vip: {limit: 300/minute, expires: 2026-01-02T00:00:00Z}   # until the move

  - {id: one-line, limit: 5/second} # at the door
  -
    id: below
    limit: 7/second
blacklist: []
`

func find(t *testing.T, text, id string, now time.Time) *rulefile.One {
	t.Helper()
	one, err := rulefile.Find([]byte(text), id, now)
	if err != nil {
		t.Fatal(err)
	}
	return one
}

var newYear = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A single rule is found with its comments, as people wrote it, and can be put back unchanged.
func TestFindsOneRule(t *testing.T) {
	inJSON := `{"rules": [{"id": "a", "limit": "1/s"},` + "\n" + `{"id": "b", "limit": "2/s"}]}`
	for _, c := range []struct {
		doc, id, want string
		line          int
	}{
		{several, "quota", "id: quota\n", 4},
		{several, "Search", `# the search cluster is small;
# see the capacity plan
id: search # nightly jobs, too
match: {endpoint: /v1/search}

# raised in May
limit: 30/minute
override:
  sk_vip: {limit: 300/minute, expires: 2026-01-02T00:00:00Z}   # until the move
`, 8},
		{several, "one-line", "{id: one-line, limit: 5/second} # at the door\n", 16},
		{several, "below", "id: below\nlimit: 7/second\n", 18},
		{strings.ReplaceAll(several, "\n", "\r\n"), "below", "id: below\nlimit: 7/second\n", 18},
		{strings.TrimSuffix(several, "blacklist: []\n"), "below", "id: below\nlimit: 7/second\n", 18},
		{inJSON, "a", `{"id": "a", "limit": "1/s"}`, 1},
		{inJSON, "b", `{"id": "b", "limit": "2/s"}`, 2},
		{"rules: [{id: a, limit: 1/s}, {id: b, limit: 2/s}]", "b", "{id: b, limit: 2/s}", 1},
		{"rules:\n- id: a\n  limit: 1/s\n# of b\n- id: b\n  limit: 2/s", "b", "# of b\nid: b\nlimit: 2/s\n", 5},
	} {
		one := find(t, c.doc, c.id, newYear)
		if one.Text != c.want || one.Line != c.line {
			t.Errorf("%s: line %d\n%s", c.id, one.Line, one.Text)
		}
		again, err := rulefile.PutRule([]byte(c.doc), c.id, []byte(one.Text))
		if err != nil {
			t.Errorf("%s can't be put back: %v", c.id, err)
			continue
		}
		if !find(t, string(again), c.id, newYear).Same(one) {
			t.Errorf("%s has changed:\n%s", c.id, again)
		}
	}
	if _, err := rulefile.Find([]byte(several), "serch", newYear); !errors.Is(err, rulefile.ErrNotFound) || !strings.Contains(err.Error(), `did you mean "search"`) {
		t.Error(err)
	}
	if _, err := rulefile.Find([]byte("rules: ["), "search", newYear); err == nil {
		t.Error("found in what is no document")
	}
}

// Two rules are the same if they mean the same.
func TestTheSameRule(t *testing.T) {
	for _, c := range []struct {
		what, id, old, new string
		now                time.Time
		same               bool
	}{
		{"a comment", "search", "# raised in May", "# raised in June", newYear, true},
		{"another rule", "search", "5/second", "6/second", newYear, true},
		{"the layout", "search", "limit: 30/minute", "limit: 30 per minute", newYear, true},
		{"its limit", "search", "limit: 30/minute", "limit: 31/minute", newYear, false},
		{"its endpoint", "search", "/v1/search", "/v2/search", newYear, false},
		{"an override", "search", "300/minute", "301/minute", newYear, false},
		{"an override's end", "search", "2026-01-02", "2026-01-03", newYear, false},
		{"an override that has ended", "search", "300/minute, expires: 2026-01-02", "301/minute, expires: 2026-01-01", newYear.AddDate(1, 0, 0), true},
		{"a tier, of a rule that goes by tiers", "quota", "100/minute", "101/minute", newYear, false},
		{"a tier, of one that doesn't", "search", "100/minute", "101/minute", newYear, true},
	} {
		other := strings.Replace(several, c.old, c.new, 1)
		if other == several {
			t.Fatalf("%s: nothing has changed", c.what)
		}
		if same := find(t, several, c.id, c.now).Same(find(t, other, c.id, c.now)); same != c.same {
			t.Errorf("%s has changed: same is %t", c.what, same)
		}
	}
}
