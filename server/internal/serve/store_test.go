package serve

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// A slow Redis doesn't fill the log: metrics count requests that time out. Other errors are logged.
func TestRequestsWithoutTimeArentLogged(t *testing.T) {
	var out strings.Builder
	n := &node{log: slog.New(slog.NewTextHandler(&out, nil))}
	n.storeFailed(nil, context.DeadlineExceeded)
	if out.Len() > 0 {
		t.Error(out.String())
	}
	n.storeFailed(nil, errors.New("rubbish"))
	if !strings.Contains(out.String(), "rubbish") {
		t.Error("an error isn't logged")
	}
}
