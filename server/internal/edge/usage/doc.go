// Package usage reads what a call to an AI model asks for, and what its answer says was used. It is
// for a gateway that reserves tokens before such a call and settles for the truth after it.
//
//	asked := usage.ReadRequest(body)
//	… // reserve asked.Input and asked.Output()
//	r := usage.NewReader(res.Header.Get("Content-Type"))
//	_, err = io.Copy(client, io.TeeReader(res.Body, r))
//	if u, ok := r.Usage(); ok && !u.Partial {
//		… // settle u.Tokens
//	}
//
// It knows the answers of OpenAI (chat, completions, responses, embeddings), Anthropic (messages),
// Gemini and Ollama, and of the many servers that speak like one of them; whole or streamed.
//
// Nothing is kept of a body but a few counts and the model's name. A [Reader] takes the same 2 KB
// for an answer of a gigabyte, and text in an answer can't pass for its usage: what counts is where
// in the JSON a field stands.
package usage
