package usage

import "strconv"

// Amount is a count of tokens that may be unknown. N is then 0.
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

// Usage is what a call used, by its answer. Providers count in different ways; here all are brought
// to one:
//
//	               Input                                 Cached                    Output
//	OpenAI         prompt_tokens - cached_tokens         cached_tokens             completion_tokens
//	 (responses)   input_tokens - cached_tokens          cached_tokens             output_tokens
//	Anthropic      input_tokens + cache_creation_…       cache_read_input_tokens   output_tokens
//	Gemini         promptTokenCount + toolUsePrompt…     cachedContentTokenCount   candidatesTokenCount
//	               - cachedContentTokenCount                                       + thoughtsTokenCount
//	Ollama         prompt_eval_count                     -                         eval_count
//
// An answer's own total is believed unless it is less than its parts. Whatever of it isn't input is
// output: some servers count reasoning in the total alone (xAI, Gemini behind OpenAI's API), and
// embeddings have a total but no output.
type Usage struct {
	// Model is the name of the model that answered, or "". It may be more precise than what was
	// asked for.
	Model string
	// Input are the input tokens that weren't read from a cache; those written to one are among
	// them. An answer that doesn't tell cached tokens apart has all of its input here.
	Input Amount
	// Cached are the input tokens that were read from a cache.
	Cached Amount
	// Output are all output tokens, those of reasoning among them.
	Output Amount
	// Reasoning are the output tokens that were spent on thoughts.
	Reasoning Amount
	// Tokens are Input, Cached and Output together. It may be known where they aren't.
	Tokens Amount
	// Partial says that more may have been used than the answer told: a stream ended before its
	// answer did, or had more than ten events for each token that it told. Anthropic tells an output
	// of 1 or so at the beginning, and Gemini what it has used so far. Without it the usage is final,
	// even if the body broke off behind it.
	Partial bool
}

// count is a field of an answer.
type count struct {
	Amount
	told bool // it is there, if only as nonsense
}

// counts are the fields of an answer that say what was used, by their places.
type counts [countsEnd - countsBegin]count

func (c *counts) at(p place) *count { return &c[p-countsBegin] }

// merge adds what a later part of an answer tells. Counts of a stream only grow, so the highest one counts. One that was nonsense
// stays unknown.
func (c *counts) merge(later *counts) {
	for i := range later {
		switch {
		case !later[i].told, c[i].told && !c[i].Known:
		case !c[i].told, !later[i].Known, later[i].N > c[i].N:
			c[i] = later[i]
		}
	}
}

// sum adds fields; one that isn't told is 0. It is unknown if none is told, or one is nonsense.
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

// usage says what the fields mean.
func (c *counts) usage() Usage {
	var u Usage
	all := c.sum(atPrompt, atToolPrompt) // input, cached or not
	if !c.at(atPrompt).told {
		all = c.sum(atInput)
	}
	u.Input = all
	if c.at(atPrompt).told || c.at(atCached).told {
		// A cache that served more than there was isn't believed.
		if cached := c.sum(atCached); cached.Known && all.Known && cached.N <= all.N {
			u.Cached = cached
			u.Input.N -= cached.N
		}
	} else if all.Known { // Anthropic's, which excludes what a cache had to do with
		u.Input = c.sum(atInput, atCacheCreated)
		u.Cached = c.sum(atCacheRead)
		all = c.sum(atInput, atCacheCreated, atCacheRead)
	}
	u.Reasoning = c.sum(atReasoning)
	if !u.Reasoning.Known {
		u.Reasoning = c.sum(atThoughts)
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

// known reports whether there is anything to book.
func (u *Usage) known() bool {
	return u.Input.Known || u.Cached.Known || u.Output.Known || u.Tokens.Known
}
