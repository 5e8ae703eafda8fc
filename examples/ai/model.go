package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// chat is the part of an OpenAI chat request that this fake model reads.
type chat struct {
	Model     string `json:"model"`
	MaxTokens int    `json:"max_tokens"`
	Stream    bool   `json:"stream"`
	Messages  []struct {
		Content string `json:"content"`
	} `json:"messages"`
}

// words counts the words in the messages. This model has one token per word.
func (c *chat) words() (n int) {
	for _, m := range c.Messages {
		n += len(strings.Fields(m.Content))
	}
	return n
}

type tokens struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// model returns a fake model server. It answers with as many words as the request has, up to max_tokens. If the request
// asks for a stream, it sends one word per event.
func model(pause time.Duration) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "POST /v1/chat/completions") })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var c chat
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&c); err != nil {
			http.Error(w, "the body must be a chat", http.StatusBadRequest)
			return
		}
		n := c.words()
		if c.MaxTokens > 0 {
			n = min(n, c.MaxTokens)
		}
		used := tokens{Prompt: c.words(), Completion: n, Total: c.words() + n}
		if !c.Stream {
			w.Header().Set("Content-Type", "application/json")
			text := strings.TrimSpace(strings.Repeat("word ", n))
			_ = json.NewEncoder(w).Encode(map[string]any{"model": c.Model, "usage": used, "choices": []any{map[string]any{"message": map[string]string{"content": text}}}})
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(event any) {
			text, _ := json.Marshal(event) // can't fail for these types
			fmt.Fprintf(w, "data: %s\n\n", text)
			_ = http.NewResponseController(w).Flush()
		}
		for range n {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(pause):
			}
			send(map[string]any{"choices": []any{map[string]any{"delta": map[string]string{"content": "word "}}}})
		}
		send(map[string]any{"choices": []any{map[string]any{"delta": map[string]string{}, "finish_reason": "stop"}}})
		send(map[string]any{"choices": []any{}, "usage": used})
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
	return mux
}
