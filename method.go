package weir

import "strings"

// commonMethods are those that HTTP defines and every server knows: RFC 9110 and, for PATCH, RFC 5789.
var commonMethods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

// countedMethod is what a request's method counts as: a common one, or one that the rules name, as itself, in
// capitals. All others share a name: whatever a server makes of an invented method, it gets no counter of its own.
func (rs *RuleSet) countedMethod(method string) string {
	switch method {
	case "", "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS": // as nearly all are
		return method
	}
	for _, known := range [][]string{commonMethods, rs.methods} {
		for _, m := range known {
			if strings.EqualFold(m, method) {
				return m
			}
		}
	}
	return "*"
}
