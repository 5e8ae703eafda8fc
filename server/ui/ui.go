// Package ui serves the console and the playground. make ui builds them into the folder dist. If they weren't built,
// the package's pages say so.
package ui

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// dist has each file in a form that is compressed with gzip, with .gz after its name. Large files also have a smaller
// form that is compressed with Brotli, with .br after the name.
//
//go:embed all:dist
var dist embed.FS

// Content security policies of the pages. Everything must come from the node, and nothing may be inline. Only the
// playground may use WebAssembly.
const (
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	// The policy of a worker is the one in the response with its script. So for files, the policy only says that no
	// page may frame them.
	filePolicy = "frame-ancestors 'none'"
	playPolicy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)

// UI serves /console/ and /play.
type UI struct {
	files fs.FS             // empty if there is no folder app
	tags  map[string]string // hashes of files whose names don't depend on their contents
}

// New returns the UI that this binary contains.
func New() *UI {
	files, err := fs.Sub(dist, "dist/app")
	if err != nil {
		panic(err) // can't happen: the name is a valid constant
	}
	return open(files)
}

func open(files fs.FS) *UI {
	u := &UI{files: files, tags: map[string]string{}}
	_ = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(name, "assets/") {
			return nil // without a UI, not even the root exists
		}
		text, err := fs.ReadFile(files, name)
		if err == nil {
			sum := sha256.Sum256(text)
			u.tags[name] = hex.EncodeToString(sum[:8])
		}
		return nil
	})
	return u
}

// Built reports whether this binary contains the console.
func (u *UI) Built() bool { return u.tags["index.html.gz"] != "" }

// Register adds the paths of the UI to a mux.
func (u *UI) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /console/", u.console)
	mux.HandleFunc("GET /play", u.play)
	mux.HandleFunc("GET /play/{file}", u.play)
}

// console serves a file of the console or, for all other paths, the page. The page chooses its view by the path.
func (u *UI) console(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/console/")
	switch page := strings.HasSuffix(name, ".html"); {
	case !u.Built():
		notBuilt(w)
	case strings.HasPrefix(name, "assets/") || u.tags[name+".gz"] != "" && !page:
		u.file(w, r, name, filePolicy)
	default:
		u.file(w, r, "index.html", policy)
	}
}

// play serves the playground. It requires no token, because it shows nothing about this node.
func (u *UI) play(w http.ResponseWriter, r *http.Request) {
	switch name := r.PathValue("file"); {
	case !u.Built():
		notBuilt(w)
	case name == "":
		u.file(w, r, "play.html", playPolicy)
	default:
		u.file(w, r, "play/"+name, filePolicy)
	}
}

type form struct{ coding, ext string }

// forms are the forms in which a file can be sent, the smallest first. For clients that accept neither Brotli nor gzip,
// the identity form is unpacked from the gzip form.
var forms = []form{{"br", ".br"}, {"gzip", ".gz"}, {"identity", ".gz"}}

// file serves a file of the UI, in the smallest form that the client accepts. If a coding in Accept-Encoding has a
// weight, which may be 0, it doesn't count as accepted.
func (u *UI) file(w http.ResponseWriter, r *http.Request, name, policy string) {
	if info, err := fs.Stat(u.files, name+".gz"); err != nil || info.IsDir() {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Vary", "Accept-Encoding")
	accepted := strings.ToLower(strings.ReplaceAll(strings.Join(r.Header.Values("Accept-Encoding"), ","), " ", ""))
	codings := append(strings.Split(accepted, ","), "identity")
	form := forms[slices.IndexFunc(forms, func(f form) bool {
		_, err := fs.Stat(u.files, name+f.ext)
		return err == nil && slices.Contains(codings, f.coding)
	})]
	h.Set("Content-Security-Policy", policy)
	h.Set("Content-Type", cmp.Or(contentTypes[path.Ext(name)], mime.TypeByExtension(path.Ext(name)), "application/octet-stream"))
	h.Set("Cache-Control", "public, max-age=31536000, immutable") // the names of these files contain hashes of their contents
	if hash := u.tags[name+form.ext]; hash != "" {
		tag := `"` + hash + "-" + form.coding + `"` // the forms of a file have different bytes, so they need different tags
		h.Set("Cache-Control", "no-cache")          // the browser must revalidate each time
		h.Set("ETag", tag)
	}
	text, err := fs.ReadFile(u.files, name+form.ext)
	if err == nil && form.coding == "identity" {
		text, err = unpack(text)
	}
	if err != nil {
		panic(err) // can't happen: the file exists, and is valid gzip
	}
	if form.coding != "identity" {
		h.Set("Content-Encoding", form.coding)
		h.Set("Content-Length", strconv.Itoa(len(text)))
	}
	r.Header.Del("Range") // don't serve ranges
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}

func unpack(packed []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// contentTypes has the types of the UI's files, because the tables of the machine may differ.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".wasm": "application/wasm",
}

func notBuilt(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusNotFound)
	_, _ = io.WriteString(w, `This binary was built without the console and the playground. With Node on the machine (20.19 or later):

    make ui build

All that they do can be done with weir and with curl: docs/reference/cli.md, docs/reference/admin-api.md.
`)
}
