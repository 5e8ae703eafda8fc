package rulefile

import (
	"fmt"
	"strings"
	"testing"
)

// TestInRegions checks the problems with homes that aren't known regions, including a suggestion, and with limits that
// are too small to be shared.
func TestInRegions(t *testing.T) {
	f, err := Parse("rules.yaml", []byte(`rules:
  - {id: own, by: [ip], limit: 100/minute}
  - {id: common, by: [user], limit: 100/minute, scope: global}
  - {id: known, by: [user], limit: 100/minute, scope: global, home: us-east}
  - {id: typo, by: [user], limit: 100/minute, scope: global, home: us-eats}
  - {id: far, by: [user], limit: 100/minute, scope: global, home: mars}
  - {id: small, by: [user], limit: 47/minute, scope: global}
  - {id: least, by: [user], limit: 48/minute, scope: global}
  - {id: told, by: [user], limit: 10/minute, scope: global}
  - {id: meant, by: [user], limit: 47/minute, scope: global, on_partition: refuse}
`))
	if err != nil {
		t.Fatal(err)
	}
	found := InRegions(f, []string{"us-east", "ap", "eu"}, 16)
	var text []string
	for _, p := range found {
		text = append(text, fmt.Sprintf("%s; %s", p.Path, p.String()))
	}
	want := []string{
		`rules[3].home; rules.yaml:5:68: rules[3] "typo": home: no region is named "us-eats": the regions that this node knows are ap, eu, us-east; did you mean "us-east"?`,
		`rules[4].home; rules.yaml:6:67: rules[4] "far": home: no region is named "mars": the regions that this node knows are ap, eu, us-east`,
		`rules[5].scope; rules.yaml:7:54: rules[5] "small": scope: it is too small to be shared by 3 regions, which takes 48 tokens: in other regions every check waits for its home; if that is what you want, write on_partition: refuse`,
	}
	if got := strings.Join(text, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s", got)
	}
	if found := InRegions(f, nil, 16); len(found) > 0 {
		t.Errorf("without regions: %v", found)
	}
}
