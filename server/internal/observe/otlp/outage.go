package otlp

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// outage logs that a collector can't be reached: once when the collector is lost, once a minute while it is away, and
// once when it is back.
type outage struct {
	log      *slog.Logger
	what     string // "metrics" or "traces"
	protocol string // "grpc" or "http/protobuf"

	mu     sync.Mutex
	failed int       // failed exports in a row; guarded by mu
	told   time.Time // when the outage was last logged; guarded by mu
}

const tellEvery = time.Minute

// note records the outcome of an export. It returns the same outcome.
func (o *outage) note(ctx context.Context, outcome error) error {
	err := outcome
	if err != nil {
		err = errors.Join(err, ctx.Err()) // if the context has a cause, exporters leave out the context's error
	}
	if errors.Is(err, context.Canceled) {
		return outcome // the node is shutting down
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		if o.failed > 0 {
			o.log.Info("OTLP: the collector is back", "of", o.what, "failed", o.failed)
		}
		o.failed, o.told = 0, time.Time{}
		return nil
	}
	if o.failed++; time.Since(o.told) >= tellEvery {
		o.told = time.Now()
		o.log.Warn("OTLP: the collector can't be reached, or refuses", "of", o.what, "failed", o.failed, "error", reason(err),
			"protocol", o.protocol, "hint", "is it the port of this protocol? Collectors take http/protobuf at 4318 and grpc at 4317; OTEL_EXPORTER_OTLP_PROTOCOL chooses")
	}
	return outcome
}

// statusCode matches the status in an HTTP exporter's error.
var statusCode = regexp.MustCompile(`failed to send (?:metrics )?to \S+: (\d{3})\b`)

// reason says why an export failed. It doesn't repeat the collector's response, because that may contain the headers.
func reason(err error) string {
	var errno syscall.Errno
	var timeout net.Error
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	text := err.Error()
	s, isGRPC := status.FromError(err)
	switch code := statusCode.FindStringSubmatch(text); {
	case isGRPC && s.Code() != codes.Unknown:
		return "gRPC status " + s.Code().String()
	case errors.Is(err, errRedirect):
		return "it redirects, which isn't followed: name the place itself as the endpoint"
	case errors.As(err, &dns):
		return "its host name can't be looked up"
	case errors.As(err, &certificate):
		return "its certificate isn't trusted, or is another host's"
	case errors.As(err, &errno):
		return errno.Error()
	case strings.Contains(text, "retry-able request failure"):
		return "it answers that it can't take any now, with HTTP status 429, 502, 503 or 504"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it didn't answer in time"
	case code != nil:
		return "it answers with HTTP status " + code[1]
	}
	return "its answer makes no sense"
}
