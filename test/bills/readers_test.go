package bills

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// bill is a server's interpretation of a body. The zero value means that the body isn't a valid call.
type bill struct {
	Model  string
	Tokens int64 // the most tokens that the response may have; 0 means no limit
}

const most = 1e9

// reader parses a body in the way of one kind of server.
type reader func(body []byte) (bill, error)

var readers map[string]reader

func TestMain(m *testing.M) {
	node, stopNode := process("node", "reader.js")
	python, stopPython := process("python3", "reader.py")
	readers = map[string]reader{"Node": node, "Python": python, "Go": goReader, "Go, by names as they are": goExact}
	status := m.Run()
	stopNode()
	stopPython()
	os.Exit(status)
}

// process starts a reader in another language. One process reads all bodies, so that fuzzing isn't slowed by process
// starts.
func process(name, script string) (r reader, stop func()) {
	cmd := exec.Command(name, script)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		panic(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		panic(err)
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "%v: make upstreams installs it\n", err)
		os.Exit(1)
	}
	lines := bufio.NewReader(out)
	return func(body []byte) (b bill, err error) {
			if _, err := in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
				return b, err
			}
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return b, err
			}
			return b, json.Unmarshal(line, &b)
		}, func() {
			_ = in.Close()
			_ = cmd.Wait()
		}
}

// goReader uses encoding/json with a struct: it ignores the case of names, and anything after the first document.
func goReader(body []byte) (bill, error) {
	var call struct {
		Model               any
		MaxTokens           any `json:"max_tokens"`
		MaxCompletionTokens any `json:"max_completion_tokens"`
		MaxOutputTokens     any `json:"max_output_tokens"`
		N                   any
		BestOf              any `json:"best_of"`
		GenerationConfig    struct {
			MaxOutputTokens any `json:"maxOutputTokens"`
			CandidateCount  any `json:"candidateCount"`
		} `json:"generationConfig"`
		Options struct {
			NumPredict any `json:"num_predict"`
		}
	}
	for body, ok := body, true; ok; body, ok = bytes.CutPrefix(body, []byte("\ufeff")) {
		if err := json.NewDecoder(bytes.NewReader(body)).Decode(&call); err == nil {
			return billOf(call.Model, []any{call.MaxTokens, call.MaxCompletionTokens, call.MaxOutputTokens, call.GenerationConfig.MaxOutputTokens, call.Options.NumPredict},
				[]any{call.N, call.BestOf, call.GenerationConfig.CandidateCount}), nil
		}
	}
	return bill{}, nil
}

// goExact uses encoding/json with a map.
func goExact(body []byte) (bill, error) {
	var call map[string]any
	if json.Unmarshal(body, &call) != nil {
		return bill{}, nil
	}
	gemini, _ := call["generationConfig"].(map[string]any)
	ollama, _ := call["options"].(map[string]any)
	return billOf(call["model"], []any{call["max_tokens"], call["max_completion_tokens"], call["max_output_tokens"], gemini["maxOutputTokens"], ollama["num_predict"]},
		[]any{call["n"], call["best_of"], gemini["candidateCount"]}), nil
}

func billOf(model any, limits, choices []any) bill {
	limit, n := 0.0, 1.0
	for _, v := range limits {
		limit = max(limit, number(v))
	}
	for _, v := range choices {
		n = max(n, number(v))
	}
	name, _ := model.(string)
	return bill{name, int64(min(limit*n, most))}
}

func number(v any) float64 {
	f, _ := v.(float64)
	if s, ok := v.(string); ok {
		if n, err := strconv.ParseFloat(strings.TrimSpace(s), 64); err == nil {
			f = n
		}
	}
	if math.IsNaN(f) {
		return 0
	}
	return min(math.Ceil(f), most)
}

// The readers must differ in these cases; otherwise FuzzBills would prove nothing.
func TestReadersDiffer(t *testing.T) {
	small, large := bill{"small", 5}, bill{"large", 5}
	for body, want := range map[string]map[string]bill{
		`{"model":"large","max_tokens":5}`:                 {"Node": large, "Python": large, "Go": large, "Go, by names as they are": large},
		`{"model":"small","max_tokens":5,"MODEL":"large"}`: {"Node": small, "Python": small, "Go": large, "Go, by names as they are": small},
		`{"model":"large","max_tokens":5,"x":NaN}`:         {"Node": {}, "Python": large, "Go": {}, "Go, by names as they are": {}},
		`{"model":"large","max_tokens":5} {`:               {"Node": {}, "Python": {}, "Go": large, "Go, by names as they are": {}},
		"\ufeff" + `{"model":"large","max_tokens":5}`:      {"Node": large, "Python": large, "Go": large, "Go, by names as they are": {}},
		`{"model":"large","max_tokens":"1_0","n":2}`:       {"Node": {"large", 0}, "Python": {"large", 20}, "Go": {"large", 20}, "Go, by names as they are": {"large", 20}},
		`{"model":"large","max_tokens":1e300}`:             {"Node": {"large", most}, "Python": {"large", most}, "Go": {"large", most}, "Go, by names as they are": {"large", most}},
		"":                                                 {"Node": {}, "Python": {}, "Go": {}, "Go, by names as they are": {}},
	} {
		for name, read := range readers {
			if got, err := read([]byte(body)); err != nil || got != want[name] {
				t.Errorf("%s of %s: %+v, %v, want %+v", name, body, got, err, want[name])
			}
		}
	}
}
