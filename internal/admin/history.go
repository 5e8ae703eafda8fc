package admin

import (
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir/internal/checkapi"
	"github.com/weirhq/weir/internal/rulestore"
)

// versionInfo is a version on the wire.
type versionInfo struct {
	Version int64     `json:"version"`
	Parent  int64     `json:"parent"`
	Author  string    `json:"author"`
	Time    time.Time `json:"time"`
	Message string    `json:"message"`
	Text    string    `json:"text,omitempty"`
}

func infoOf(v rulestore.Version) versionInfo {
	return versionInfo{v.Number, v.Parent, v.Author, v.Time, v.Message, string(v.Text)}
}

// history is where versions are looked up, if there are any.
func (a *API) history() (rulestore.Store, *fault) {
	if a.Source.store == nil {
		return nil, newFault(http.StatusConflict, codeInFile, "the rules of this node are those of %s, which keeps no versions: ask the tool that keeps the file", a.Source.file)
	}
	return a.Source.store, nil
}

// number reads a number from the query.
func number(r *http.Request, name string, otherwise int64) (int64, *fault) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "%s: must be a number from 1 on, got %q", name, text)
	}
	return n, nil
}

// maxListed is how many versions one answer lists.
const maxListed = 1000

func (a *API) versions(w http.ResponseWriter, r *http.Request) *fault {
	store, f := a.history()
	if f != nil {
		return f
	}
	before, f := number(r, "before", 0)
	if f != nil {
		return f
	}
	limit, f := number(r, "limit", 50)
	if f != nil {
		return f
	}
	list, err := store.List(r.Context(), before, int(min(limit, maxListed)))
	if err != nil {
		return storeFault(err)
	}
	out := make([]versionInfo, len(list))
	for i, v := range list {
		out[i] = infoOf(v)
	}
	WriteJSON(w, http.StatusOK, map[string]any{"versions": out})
	return nil
}

func (a *API) version(w http.ResponseWriter, r *http.Request) *fault {
	store, f := a.history()
	if f != nil {
		return f
	}
	n, err := strconv.ParseInt(r.PathValue("version"), 10, 64)
	if err != nil || n < 1 {
		return newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "a version is a number from 1 on, got %q", r.PathValue("version"))
	}
	v, err := store.Get(r.Context(), n)
	if err != nil {
		return storeFault(err)
	}
	WriteJSON(w, http.StatusOK, infoOf(v))
	return nil
}

func (a *API) diff(w http.ResponseWriter, r *http.Request) *fault {
	store, f := a.history()
	if f != nil {
		return f
	}
	to, f := number(r, "to", a.Source.InForce().Version)
	if f != nil {
		return f
	}
	from, f := number(r, "from", to-1)
	if f != nil {
		return f
	}
	var texts [2][]byte
	for i, n := range []int64{from, to} {
		v, err := store.Get(r.Context(), n)
		if err != nil {
			return storeFault(err)
		}
		texts[i] = v.Text
	}
	var d string
	if f := inTurn(r, func() { d = diff(from, texts[0], to, texts[1]) }); f != nil {
		return f
	}
	if wants(r, "text/plain") {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(d))
		return nil
	}
	WriteJSON(w, http.StatusOK, map[string]any{"from": from, "to": to, "diff": d})
	return nil
}

func (a *API) rollback(w http.ResponseWriter, r *http.Request) *fault {
	store, f := a.history()
	if f != nil {
		return f
	}
	var in struct {
		Version int64  `json:"version"`
		Message string `json:"message"`
	}
	if f := decode(w, r, &in); f != nil {
		return f
	}
	if in.Version < 1 {
		return newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "version: must be the number of the version to go back to")
	}
	v, err := store.Get(r.Context(), in.Version)
	if err != nil {
		return storeFault(err)
	}
	what := "rollback to version " + strconv.FormatInt(in.Version, 10)
	c, f := a.change(r, func([]byte) ([]byte, error) { return v.Text, nil })
	if f != nil {
		return f
	}
	c.back = true // and in a hurry, so that only a block or an override that gets lost is worth a second look
	if in.Message != "" {
		c.message = in.Message
	}
	return a.make(w, r, what, c)
}
