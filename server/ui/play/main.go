//go:build js && wasm

// Command play is the engine of the playground. make ui builds it as WebAssembly. The page calls a single function,
// weirPlay(method, arguments). The function returns an object, which has the field "error" if the call failed.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"syscall/js"
	"time"

	"github.com/weirhq/weir/server/ui/play/engine"
)

var play *engine.Engine

func main() {
	js.Global().Set("weirPlay", js.FuncOf(func(_ js.Value, args []js.Value) (answer any) {
		// Recover, because a panic would end the program, and the page would stop working.
		defer func() {
			if r := recover(); r != nil {
				answer = map[string]any{"error": fmt.Sprint("the playground has a bug: ", r)}
			}
		}()
		if len(args) != 2 || args[0].Type() != js.TypeString || args[1].Type() != js.TypeObject {
			return map[string]any{"error": "weirPlay takes the name of a method and an object"}
		}
		result, err := call(args[0].String(), args[1])
		if err != nil {
			return map[string]any{"error": err.Error()}
		}
		return toJS(reflect.ValueOf(result))
	}))
	select {}
}

// scene has what a page needs to know before it draws frames.
type scene struct {
	Lanes []engine.Lane `json:"lanes"`
	Span  float64       `json:"span"`
}

func call(method string, arg js.Value) (any, error) {
	if method == "compare" {
		var n engine.Numbers
		fromJS(arg, &n)
		if play == nil {
			e, err := engine.New(n)
			if err != nil {
				return nil, err
			}
			play = e
		} else if err := play.Compare(n); err != nil {
			return nil, err
		}
		return scene{play.Lanes(), play.Span()}, nil
	}
	if play == nil {
		return nil, errors.New("compare comes first")
	}
	none := struct{}{}
	switch method {
	case "demos":
		return struct {
			Demos []engine.Demo `json:"demos"`
		}{engine.Demos()}, nil
	case "show":
		return play.Show(text(arg, "id"))
	case "send":
		return none, play.Send(int(number(arg, "count")), int64(number(arg, "over")))
	case "pattern":
		return none, play.Pattern(text(arg, "kind"), number(arg, "rate"))
	case "stop":
		play.Stop()
		return none, nil
	case "clear":
		play.Clear()
		return none, nil
	case "advance":
		return play.Advance(int64(number(arg, "to"))), nil
	case "step":
		return play.Step(), nil
	case "back":
		return play.Back(), nil
	case "rules":
		return play.Rules(text(arg, "text"), time.Now()), nil
	case "ask":
		var r engine.Request
		fromJS(arg, &r)
		x, err := play.Ask(r)
		return struct {
			scene
			Explanation engine.Explanation `json:"explanation"`
		}{scene{play.Lanes(), play.Span()}, x}, err
	}
	return nil, fmt.Errorf("there is no method %q", method)
}

func number(v js.Value, name string) float64 {
	if v = v.Get(name); v.Type() != js.TypeNumber {
		return 0
	}
	// A value that isn't a number, or doesn't fit into an int64, counts as 0.
	if f := v.Float(); math.Abs(f) < 1<<53 {
		return f
	}
	return 0
}

func text(v js.Value, name string) string {
	if v = v.Get(name); v.Type() != js.TypeString {
		return ""
	}
	return v.String()
}

// fromJS copies the fields of a JavaScript object into a struct of strings and whole numbers, by their JSON tags.
// encoding/json would make the binary 85 KB larger.
func fromJS(v js.Value, to any) {
	s := reflect.ValueOf(to).Elem()
	for i := range s.NumField() {
		name := s.Type().Field(i).Tag.Get("json")
		if f := s.Field(i); f.Kind() == reflect.String {
			f.SetString(text(v, name))
		} else {
			f.SetInt(int64(number(v, name)))
		}
	}
}

// toJS converts a struct to a JavaScript object, by its JSON tags. A slice of numbers becomes a Float64Array.
func toJS(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Struct:
		object := map[string]any{}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			value := toJS(v.Field(i))
			if inner, ok := value.(map[string]any); ok && field.Anonymous {
				for name, x := range inner {
					object[name] = x
				}
				continue
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			object[name] = value
		}
		return object
	case reflect.Slice:
		if numbers, ok := v.Interface().([]float64); ok {
			return toArray(numbers)
		}
		list := make([]any, v.Len())
		for i := range list {
			list[i] = toJS(v.Index(i))
		}
		return list
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return v.Bool()
	case reflect.Float64:
		return v.Float()
	}
	return float64(v.Int())
}

func toArray(numbers []float64) js.Value {
	bytes := make([]byte, 0, 8*len(numbers))
	for _, f := range numbers {
		bytes = binary.LittleEndian.AppendUint64(bytes, math.Float64bits(f))
	}
	array := js.Global().Get("Uint8Array").New(len(bytes))
	js.CopyBytesToJS(array, bytes)
	return js.Global().Get("Float64Array").New(array.Get("buffer"))
}
