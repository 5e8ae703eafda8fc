package rulefile

import (
	"fmt"
	"strings"
	"testing"
)

// TestHomeless: a home that is no region that the node knows is told, with the name that may have been meant.
func TestHomeless(t *testing.T) {
	f, err := Parse("rules.yaml", []byte(`rules:
  - {id: own, by: [ip], limit: 100/minute}
  - {id: common, by: [user], limit: 100/minute, scope: global}
  - {id: known, by: [user], limit: 100/minute, scope: global, home: us-east}
  - {id: typo, by: [user], limit: 100/minute, scope: global, home: us-eats}
  - {id: far, by: [user], limit: 100/minute, scope: global, home: mars}
`))
	if err != nil {
		t.Fatal(err)
	}
	found := Homeless(f, []string{"us-east", "ap", "eu"})
	var text []string
	for _, p := range found {
		text = append(text, fmt.Sprintf("%s; %s", p.Path, p.String()))
	}
	want := []string{
		`rules[3].home; rules.yaml:5:68: rules[3] "typo": home: no region is named "us-eats": the regions that this node knows are ap, eu, us-east; did you mean "us-east"?`,
		`rules[4].home; rules.yaml:6:67: rules[4] "far": home: no region is named "mars": the regions that this node knows are ap, eu, us-east`,
	}
	if got := strings.Join(text, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s", got)
	}
	if found := Homeless(f, nil); len(found) > 0 {
		t.Errorf("without regions: %v", found)
	}
}
