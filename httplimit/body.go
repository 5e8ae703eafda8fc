package httplimit

import (
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
)

// Bodies are written without encoding/json: in a storm of retries, a refusal must cost less than
// the request that it refuses.

// appendError appends Weir's own error body.
func appendError(b []byte, x *Refused) []byte {
	b = jsonerror.AppendHead(append(b, '{'), x.Code, x.Message)
	b = appendDetails(append(b, `,"details":`...), x)
	return append(b, "}}\n"...)
}

// appendDetails appends the details of a refusal for programs, without empty members.
func appendDetails(b []byte, x *Refused) []byte {
	b = append(b, '{')
	first := len(b)
	member := func(name string) {
		if len(b) > first {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), `":`...)
	}
	if x.Rule != "" {
		member("rule")
		b = jsonerror.AppendString(b, x.Rule)
	}
	limited := x.Code == jsonerror.RateLimitExceeded
	if limited {
		member("limit")
		if x.Amount == "" {
			b = strconv.AppendInt(b, x.Limit, 10)
		} else {
			b = append(b, x.exact.String()...)
			member("amount")
			b = jsonerror.AppendString(b, x.Amount)
		}
		if x.WindowSeconds > 0 {
			member("window_seconds")
			b = strconv.AppendInt(b, x.WindowSeconds, 10)
		}
	}
	if x.RetryAfterSeconds > 0 {
		member("retry_after_seconds")
		b = strconv.AppendInt(b, x.RetryAfterSeconds, 10)
	}
	if x.RetryIsAGuess {
		member("retry_is_a_guess")
		b = append(b, "true"...)
	}
	if limited {
		member("reset_at")
		b = append(x.ResetAt.AppendFormat(append(b, '"'), time.RFC3339), '"')
	}
	return append(b, '}')
}

// appendProblem appends a problem document (RFC 9457) with the types of the IETF draft.
func appendProblem(b []byte, x *Refused, d *weir.Decision) []byte {
	const types = "https://iana.org/assignments/http-problem-types#"
	kind, title := "about:blank", http.StatusText(x.Status)
	switch {
	case x.Code == jsonerror.RateLimitExceeded:
		kind, title = types+"quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded"
	case x.Code == jsonerror.Cooldown:
		kind, title = types+"abnormal-usage-detected", "Request not satisfied due to detection of abnormal request pattern"
	case x.Status == http.StatusServiceUnavailable:
		kind, title = types+"temporary-reduced-capacity", "Request cannot be satisfied due to temporary server capacity constraints"
	}
	b = jsonerror.AppendString(append(b, `{"type":`...), kind)
	b = jsonerror.AppendString(append(b, `,"title":`...), title)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(x.Status), 10)
	b = jsonerror.AppendString(append(b, `,"detail":`...), x.Message)
	b = jsonerror.AppendString(append(b, `,"code":`...), x.Code)
	between := `,"violated-policies":[`
	for _, l := range d.Limits() {
		if !l.Allowed && !l.Degraded && !l.Policy.Shadow {
			b = jsonerror.AppendString(append(b, between...), l.Policy.Name)
			between = ","
		}
	}
	if between == "," {
		b = append(b, ']')
	}
	b = appendDetails(append(b, `,"details":`...), x)
	return append(b, "}\n"...)
}
