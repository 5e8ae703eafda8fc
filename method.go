package weir

import (
	"strings"

	"github.com/weirhq/weir/internal/pattern"
)

// countedMethod is what a request's method counts as: a common one, or one that the rules name, as itself, in
// capitals. All others share a name: whatever a server makes of an invented method, it gets no counter of its own.
func (rs *RuleSet) countedMethod(method string) string {
	switch method {
	case "", "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS": // as nearly all are
		return method
	}
	for _, known := range [][]string{pattern.Methods, rs.methods} {
		for _, m := range known {
			if strings.EqualFold(m, method) {
				return m
			}
		}
	}
	return "*"
}
