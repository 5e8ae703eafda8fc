package usage

import "strconv"

// Amount is a count of tokens. If it is unknown, N is 0.
type Amount struct {
	N     int64
	Known bool
}

func (a Amount) String() string {
	if !a.Known {
		return "unknown"
	}
	return strconv.FormatInt(a.N, 10)
}

// Usage is what a call used, according to its answer. Providers count in different ways. Their fields are converted as
// follows:
//
//	               Input                                 Cached                    Output
//	OpenAI         prompt_tokens - cached_tokens         cached_tokens             completion_tokens
//	 (responses)   input_tokens - cached_tokens          cached_tokens             output_tokens
//	Anthropic      input_tokens + cache_creation_…       cache_read_input_tokens   output_tokens
//	Gemini         promptTokenCount + toolUsePrompt…     cachedContentTokenCount   candidatesTokenCount
//	               - cachedContentTokenCount                                       + thoughtsTokenCount
//	Ollama         prompt_eval_count                     -                         eval_count
//
// The answer's own total is used unless it is less than the sum of its parts. The part of the total that isn't input
// counts as output: some servers include reasoning only in the total (xAI, and Gemini behind OpenAI's API), and
// embeddings have a total but no output.
type Usage struct {
	// Model is the name of the model that answered, or "". It may be more specific than the name in
	// the request.
	Model string
	// Input is the input that wasn't read from a cache. It includes input that was written to a cache. If the answer
	// doesn't report cached tokens, Input is all of the input.
	Input Amount
	// Cached is the input that was read from a cache.
	Cached Amount
	// Output is all output, including reasoning.
	Output Amount
	// Tokens is the sum of Input, Cached and Output. It may be known when the parts aren't.
	Tokens Amount
	// Partial means that the call may have used more than the answer reported. The stream ended before the answer was
	// complete, or had more than ten events for each token that it counted. Anthropic reports an output of about 1 at
	// the beginning, and Gemini reports what the call has used so far. If Partial is false, the usage is final, even if
	// the body was cut off after it.
	Partial bool
}

// count is a field of an answer that counts tokens.
type count struct {
	Amount
	told bool // the field is present, even if its value is invalid
}

// counts has the token counts of an answer. Each is at the index of its place.
type counts [countsEnd - countsBegin]count

func (c *counts) at(p place) *count { return &c[p-countsBegin] }

// merge adds the counts from a later part of an answer. In a stream, counts only grow, so merge keeps the higher one.
// An invalid count stays unknown.
func (c *counts) merge(later *counts) {
	for i := range later {
		switch {
		case !later[i].told, c[i].told && !c[i].Known:
		case !c[i].told, !later[i].Known, later[i].N > c[i].N:
			c[i] = later[i]
		}
	}
}

// sum adds up counts. If all of them are missing, or if one is invalid, the sum is unknown.
func (c *counts) sum(places ...place) Amount {
	var sum Amount
	for _, p := range places {
		f := c.at(p)
		if f.told && !f.Known {
			return Amount{}
		}
		sum.N += f.N
		sum.Known = sum.Known || f.told
	}
	return sum
}

// usage computes the usage from the counts.
func (c *counts) usage() Usage {
	var u Usage
	all := c.sum(atPrompt, atToolPrompt) // all input, cached or not
	if !c.at(atPrompt).told {
		all = c.sum(atInput)
	}
	u.Input = all
	if c.at(atPrompt).told || c.at(atCached).told {
		// Ignore an invalid count: a cache can't have served more input than the call had.
		if cached := c.sum(atCached); cached.Known && all.Known && cached.N <= all.N {
			u.Cached = cached
			u.Input.N -= cached.N
		}
	} else if all.Known { // in Anthropic's answers, atInput excludes what was read from a cache or written to it
		u.Input = c.sum(atInput, atCacheCreated)
		u.Cached = c.sum(atCacheRead)
		all = c.sum(atInput, atCacheCreated, atCacheRead)
	}
	u.Output = c.sum(atOutput)
	if !c.at(atOutput).told {
		u.Output = c.sum(atCandidates, atThoughts)
	}
	total := c.sum(atTotal)
	if all.Known && total.Known {
		rest := total.N - all.N
		if rest >= max(0, c.at(atOutput).N, c.at(atCandidates).N, c.at(atThoughts).N) {
			u.Output = Amount{rest, true}
		}
	}
	if all.Known && u.Output.Known {
		u.Tokens = Amount{all.N + u.Output.N, true}
	} else {
		u.Tokens = total
	}
	return u
}

// known reports whether the usage has any number to settle by.
func (u *Usage) known() bool {
	return u.Input.Known || u.Cached.Known || u.Output.Known || u.Tokens.Known
}
