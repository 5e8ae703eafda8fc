// Package usage reads what a call to an AI model asks for, and how much the call used according to its answer. A
// gateway reserves tokens before the call by what it asks for, and settles after the call by what it used.
//
//	b := usage.NewBody()
//	_, err := b.Read(body)
//	… // b.End(); then reserve b.Asked().Input and b.Asked().Output()
//	r := usage.NewReader(res.Header.Get("Content-Type"), res.Header.Get("Content-Encoding"))
//	_, err = io.Copy(client, io.TeeReader(res.Body, r))
//	if u, ok := r.Usage(); ok && !u.Partial {
//		… // settle u.Tokens
//	}
//
// It reads the answers of OpenAI (chat, completions, responses, embeddings), Anthropic (messages), Gemini and Ollama,
// and of the many servers that imitate one of them. Answers may be whole or streamed.
//
// A [Reader] takes the same 2 KB for an answer of a gigabyte. A model's text can't be mistaken for the usage, because a
// field counts only in the right place in the JSON.
//
// The package parses JSON and events with code of its own, because bodies pass through it in parts, and a part may end
// anywhere. jsontext.Decoder starts over when a part ends in a string: for one of 4 MiB in parts of 32 KiB it took 1.5
// s and 16 MiB, where this package takes 9 ms and 2 KiB.
package usage
