package pattern

import (
	"regexp"
	"regexp/syntax"
)

// Regex is a regular expression that is matched with the readings of a path.
type Regex struct {
	// Prefix is the text that every match begins with.
	Prefix string
	re     *regexp.Regexp // nil if the expression is only a prefix
}

// ParseRegex compiles an expression, which ignores case.
func ParseRegex(expr string) (Regex, error) {
	// Compile the expression by itself first: in the parentheses below, an expression such as "a)|(b" would mean
	// something else.
	if _, err := regexp.Compile(expr); err != nil {
		return Regex{}, err
	}
	re, err := regexp.Compile("(?is:" + expr + ")")
	if err != nil {
		return Regex{}, err
	}
	prefix, whole := regexPrefix(expr)
	if whole {
		re = nil
	}
	return Regex{prefix, re}, nil
}

// Match reports whether the expression matches a reading, with or without the slash at its end.
func (r *Regex) Match(path []byte) bool {
	if r.re == nil {
		return len(path) >= len(r.Prefix) && string(path[:len(r.Prefix)]) == r.Prefix
	}
	return len(path) > 1 && r.re.Match(path[:len(path)-1]) || r.re.Match(path)
}

// regexPrefix returns the text that every match of an expression begins with. whole reports that every text with this
// prefix matches.
func regexPrefix(expr string) (prefix string, whole bool) {
	re, err := syntax.Parse(expr, syntax.Perl|syntax.FoldCase|syntax.DotNL)
	if err != nil {
		return "", false
	}
	subs := []*syntax.Regexp{re.Simplify()}
	if subs[0].Op == syntax.OpConcat {
		subs = subs[0].Sub
	}
	anchored := len(subs) > 0 && subs[0].Op == syntax.OpBeginText
	if anchored {
		subs = subs[1:]
		if len(subs) > 0 && subs[0].Op == syntax.OpLiteral {
			prefix = string(appendFolded(nil, []byte(string(subs[0].Rune))))
			subs = subs[1:]
		}
	}
	if len(subs) > 0 && subs[0].Op == syntax.OpStar && subs[0].Sub[0].Op == syntax.OpAnyChar {
		subs = subs[1:]
		if len(subs) > 0 && subs[0].Op == syntax.OpEndText {
			subs = subs[1:]
		}
	}
	return prefix, len(subs) == 0
}
