package rulefile_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/rulefile"
)

// TestRuleFilesAreYAML parses rule files, and thousands of texts that are almost rule files, with package rulefile and
// with a YAML library. If both accept a text, they get the same result.
func TestRuleFilesAreYAML(t *testing.T) {
	var seeds [][]byte
	for _, pattern := range []string{"../../rulefile/testdata/*.yaml", "../../rulefile/testdata/broken/*.yaml", "../../examples/*/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			seeds = append(seeds, text)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	pieces := []string{" ", "\n", "- ", ": ", ", ", "[", "]", "{", "}", `"`, "'", " # ", "\n  ", "\r\n", "null", "a: b", "é", "~", "---\n"}
	both := 0
	for i := range 10_000 {
		text := slices.Clone(seeds[i%len(seeds)])
		for range min(i/len(seeds), 1+r.IntN(3)) {
			at := r.IntN(len(text) + 1)
			if to := min(len(text), at+r.IntN(20)); r.IntN(2) == 0 {
				text = slices.Delete(text, at, to)
			} else {
				text = slices.Insert(text, at, []byte(pieces[r.IntN(len(pieces))])...)
			}
		}
		ours, err := rulefile.JSON(text)
		var theirs yaml.Node
		if err != nil || misread.Match(text) || yaml.Unmarshal(text, &theirs) != nil || len(theirs.Content) == 0 {
			continue
		}
		both++
		var got any
		if err := json.Unmarshal(ours, &got); err != nil {
			t.Fatalf("%q is written as %q: %v", text, ours, err)
		}
		if want := plainYAML(theirs.Content[0]); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is read as\n%v\nand by the library as\n%v", text, got, want)
		}
	}
	if both < 1000 {
		t.Errorf("only %d texts were read by both", both)
	}
}

// misread matches text that the library misreads and that people don't write: between brackets, it treats a "?" in a
// text as an indicator, and the colon in {name:[]} as part of the name.
var misread = regexp.MustCompile(`\?|:[\[\]{},]`)

// plainYAML converts a value to what encoding/json would return.
func plainYAML(n *yaml.Node) any {
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			m[n.Content[i].Value] = plainYAML(n.Content[i+1])
		}
		return m
	case yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			list = append(list, plainYAML(c))
		}
		return list
	}
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!bool":
		return n.Value[0] == 't' || n.Value[0] == 'T'
	case "!!int", "!!float":
		if f, err := strconv.ParseFloat(n.Value, 64); err == nil {
			return f
		}
	}
	return n.Value
}
