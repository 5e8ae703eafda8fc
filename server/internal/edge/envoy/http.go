package envoy

import (
	"io"
	"net/http"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weirhq/weir/internal/jsonerror"
)

// JSON answers POST /json: a request and its answer in protobuf's JSON form, with 200 for OK and 429 for OVER_LIMIT.
func (s *Service) JSON(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		jsonerror.New(http.StatusMethodNotAllowed, jsonerror.MethodNotAllowed, "use POST, with a RateLimitRequest in JSON as the body").Write(w)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxMessage))
	if err != nil {
		jsonerror.New(http.StatusRequestEntityTooLarge, jsonerror.BodyTooLarge, "too large, or broken off: at most %d KiB are read", MaxMessage>>10).Write(w)
		return
	}
	req := &rls.RateLimitRequest{}
	if err := protojson.Unmarshal(body, req); err != nil {
		jsonerror.Bad("must be a RateLimitRequest in JSON, such as {\"domain\": \"envoy\", \"descriptors\": [{\"entries\": [{\"key\": \"api_key\", \"value\": \"a\"}]}]}").Write(w)
		return
	}
	answer, err := s.ShouldRateLimit(r.Context(), req)
	if err != nil {
		code, text := status.Code(err), status.Convert(err).Message()
		if code == codes.InvalidArgument {
			jsonerror.Bad("%s", text).Write(w)
			return
		}
		kind := jsonerror.Overloaded
		if err == unconfigured {
			kind = jsonerror.LimiterUnavailable
		}
		e := jsonerror.New(http.StatusServiceUnavailable, kind, "%s", text)
		e.Header = http.Header{"Retry-After": {"1"}}
		e.Write(w)
		return
	}
	out, err := protojson.Marshal(answer)
	if err != nil { // metadata from an xDS server may hold an infinite number
		jsonerror.New(http.StatusInternalServerError, jsonerror.Internal, "JSON can't carry the limit's metadata: ask over gRPC").Write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if answer.GetOverallCode() == rls.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(out) // whoever has gone can't be told
}
