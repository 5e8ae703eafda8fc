package usage

import "strconv"

// Amount is a count of tokens. If it isn't known, N is 0.
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

// Usage is what a call used according to its answer. Providers count in different ways, which are
// brought to one here:
//
//	               Input                                 Cached                    Output
//	OpenAI         prompt_tokens - cached_tokens         cached_tokens             completion_tokens
//	 (responses)   input_tokens - cached_tokens          cached_tokens             output_tokens
//	Anthropic      input_tokens + cache_creation_…       cache_read_input_tokens   output_tokens
//	Gemini         promptTokenCount + toolUsePrompt…     cachedContentTokenCount   candidatesTokenCount
//	               - cachedContentTokenCount                                       + thoughtsTokenCount
//	Ollama         prompt_eval_count                     -                         eval_count
//
// An answer's own total is believed unless it is less than its parts. The part of the total that isn't
// input is output: some servers count reasoning in the total only (xAI, Gemini behind OpenAI's API),
// and embeddings have a total but no output.
type Usage struct {
	// Model is the name of the model that answered, or "". It may be more precise than the name in
	// the request.
	Model string
	// Input is the input that wasn't read from a cache, including what was written to one. If the
	// answer doesn't list cached tokens, all of the input is here.
	Input Amount
	// Cached is the input that was read from a cache.
	Cached Amount
	// Output is all output, including reasoning.
	Output Amount
	// Tokens is the sum of Input, Cached and Output. It may be known when they aren't.
	Tokens Amount
	// Partial says that more may have been used than the answer told: the stream ended before the
	// answer did, or had more than ten events for each token that it counted. Anthropic tells an
	// output of 1 or so at the beginning, and Gemini what it has used so far. If Partial is false, the
	// usage is final, even if the body broke off after it.
	Partial bool
}

// count is a field of an answer.
type count struct {
	Amount
	told bool // the field is there, perhaps with a value that makes no sense
}

// counts are the fields of an answer that say what was used, by their places.
type counts [countsEnd - countsBegin]count

func (c *counts) at(p place) *count { return &c[p-countsBegin] }

// merge adds the counts in a later part of an answer. A stream's counts only grow, so the highest one
// is kept. A count that made no sense stays unknown.
func (c *counts) merge(later *counts) {
	for i := range later {
		switch {
		case !later[i].told, c[i].told && !c[i].Known:
		case !c[i].told, !later[i].Known, later[i].N > c[i].N:
			c[i] = later[i]
		}
	}
}

// sum adds fields. The sum is unknown if none is there, or if one makes no sense.
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

// usage interprets the fields.
func (c *counts) usage() Usage {
	var u Usage
	all := c.sum(atPrompt, atToolPrompt) // input, cached or not
	if !c.at(atPrompt).told {
		all = c.sum(atInput)
	}
	u.Input = all
	if c.at(atPrompt).told || c.at(atCached).told {
		// A cache can't have served more input than there was.
		if cached := c.sum(atCached); cached.Known && all.Known && cached.N <= all.N {
			u.Cached = cached
			u.Input.N -= cached.N
		}
	} else if all.Known { // Anthropic's input excludes what was read from a cache or written to one
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

// known reports whether there is any usage to settle.
func (u *Usage) known() bool {
	return u.Input.Known || u.Cached.Known || u.Output.Known || u.Tokens.Known
}
