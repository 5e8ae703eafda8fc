package serve

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/weirhq/weir/internal/checkapi"
)

// admin serves what operators look at, on loopback.
func (n *node) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", n.healthz)
	mux.HandleFunc("GET /readyz", n.readyz)
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"version": n.version, "store": n.storeStatus()})
	})
	mux.HandleFunc("GET /v1/rules", n.rulesInForce)
	mux.HandleFunc("POST /v1/explain", n.explain)
	mux.HandleFunc("/", nothing("try GET /v1/rules, /v1/version, /healthz or /readyz, or POST /v1/explain"))
	return mux
}

// nothing answers for what isn't there with what is.
func nothing(message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusNotFound, errorBody(checkapi.CodeNotFound, message))
	}
}

func (n *node) healthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readyz says whether new requests should come here. What became of the last
// save of the rules is told beside it: a node with older rules still serves. And so
// does a node without its store, since every rule says what happens then: if all
// nodes lose it at once, a balancer that sends them nobody makes an outage of that.
func (n *node) readyz(w http.ResponseWriter, _ *http.Request) {
	doc := n.rules.inForce.Load()
	body := map[string]any{"status": "ready", "store": n.storeStatus(), "rules_version": doc.version}
	if doc.rejected != nil {
		body["rules_rejected"] = doc.rejected.Error()
	}
	status := http.StatusOK
	if n.draining.Load() {
		body["status"], status = "draining", http.StatusServiceUnavailable
	}
	writeJSON(w, status, body)
}

func (n *node) rulesInForce(w http.ResponseWriter, r *http.Request) {
	doc := n.rules.inForce.Load()
	w.Header().Set("ETag", `"`+strconv.FormatInt(doc.version, 10)+`"`)
	if strings.Contains(r.Header.Get("Accept"), "json") {
		body, err := yaml.YAMLToJSON(doc.text)
		if err != nil {
			writeJSON(w, http.StatusInternalServerError, errorBody("INTERNAL", "the rules in force can't be shown as JSON; ask for YAML"))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
		return
	}
	w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
	_, _ = w.Write(doc.text)
}

func (n *node) explain(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, checkapi.MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		writeJSON(w, http.StatusRequestEntityTooLarge, errorBody(checkapi.CodeTooLarge, "the body is too large: send a request as for /v1/check"))
		return
	case err != nil:
		writeJSON(w, http.StatusRequestTimeout, errorBody(checkapi.CodeTimeout, "the body did not arrive"))
		return
	}
	req, err := checkapi.DecodeCheck(body)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, errorBody(checkapi.CodeBadRequest, err.Error()))
		return
	}
	writeJSON(w, http.StatusOK, Explain(n.rules.inForce.Load().set, &req))
}

func errorBody(code, message string) any {
	return map[string]any{"error": map[string]string{"code": code, "message": message}}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the client may have left
}
