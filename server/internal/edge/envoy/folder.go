package envoy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/weirhq/weir/internal/node/watch"
)

// Folder is a folder of configuration files that is followed: saving one puts it in force, and a bad one changes
// nothing.
type Folder struct {
	path    string
	service *Service
	look    chan struct{} // holds a value when the files are to be looked at now
	last    []File        // what Open has read
	ignored []string      // files that aren't YAML by their names
}

const (
	maxFiles  = 1000   // of a configuration
	maxLooked = 10_000 // in its folder, whatever they are
)

// Open reads the files of a folder (*.yaml and *.yml) and puts them in force. The error is whatever is wrong with them. If a node may start
// without, that is logged instead: until the files can be used, requests are answered with UNAVAILABLE.
func (s *Service) Open(path string, startWithout bool) (*Folder, error) {
	f := &Folder{path: path, service: s, look: make(chan struct{}, 1)}
	files, err := f.read()
	switch {
	case err == nil:
		err = f.apply(files)
	case errors.Is(err, syscall.ENOTDIR):
		err = fmt.Errorf("%w: name the folder that the file is in", err)
	}
	if f.last = files; err == nil {
		return f, nil
	}
	if !startWithout {
		return nil, err
	}
	f.last = []File{{}} // is no reading: whatever Follow reads is new
	s.note(func(n *Source) { n.Name, n.Rejected = path, err.Error() })
	s.opts.Logger.Warn("there is no envoy configuration yet", "error", err)
	return f, nil
}

func (f *Folder) read() (files []File, err error) {
	files, f.ignored, err = ReadFolder(f.path)
	return files, err
}

// ReadFolder reads all *.yaml and *.yml of a folder, and of folders in it. Names that begin with a dot are others' business:
// editors', and Kubernetes'. Other files are ignored, which envoyproxy/ratelimit would read.
func ReadFolder(folder string) (files []File, ignored []string, err error) {
	looked := 0
	err = fs.WalkDir(os.DirFS(folder), ".", func(name string, e fs.DirEntry, err error) error {
		base, path := filepath.Base(name), filepath.Join(folder, name)
		looked++
		switch {
		case errors.Is(err, fs.ErrNotExist) && name != ".":
			return nil // it was removed meanwhile
		case err != nil:
			if e, ok := err.(*fs.PathError); ok {
				e.Path = path // not from the folder on
			}
			return err
		case looked > maxLooked:
			return fmt.Errorf("%s: has more than %d files of any kind: is it the right folder?", folder, maxLooked)
		case name == ".":
			return nil
		case strings.HasPrefix(base, ".") && e.IsDir():
			return fs.SkipDir
		case strings.HasPrefix(base, ".") || e.IsDir():
			return nil
		case filepath.Ext(base) != ".yaml" && filepath.Ext(base) != ".yml":
			ignored = append(ignored, path)
			return nil
		case len(files) == maxFiles:
			return fmt.Errorf("%s: has more than %d files", folder, maxFiles)
		}
		text, err := watch.Read(path, MaxFile)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		files = append(files, File{path, text})
		return err
	})
	return files, ignored, err
}

// apply puts files in force.
func (f *Folder) apply(files []File) error {
	config, warnings, err := Parse(files, f.service.opts.Modes)
	f.service.warn(warnings)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		f.service.opts.Logger.Warn("--envoy-config has no *.yaml: every request is allowed until there is one", "folder", f.path)
	}
	if len(f.ignored) > 0 {
		f.service.opts.Logger.Warn("--envoy-config has files that envoyproxy/ratelimit would read, and Weir doesn't: rename them to *.yaml, or move them away", "first", f.ignored[0], "files", len(f.ignored))
	}
	f.service.accept(config, f.path, "")
	f.service.opts.Logger.Info("envoy configuration applied", "folder", f.path, "files", len(files), "domains", config.Domains(), "limits", config.Limits())
	return nil
}

// Follow takes in the files whenever one changes, until ctx is done.
func (f *Folder) Follow(ctx context.Context) error {
	log := f.service.opts.Logger
	return watch.Dir(ctx, f.path, f.read, same, f.last, f.look, func(files []File) {
		if err := f.apply(files); err != nil {
			f.service.reject(err)
		}
	}, func(err error) {
		log.Error("envoy configuration can't be read: the one in force stays", "error", err)
	})
}

func same(a, b []File) bool {
	return slices.EqualFunc(a, b, func(a, b File) bool { return a.Name == b.Name && string(a.Text) == string(b.Text) })
}

// Look has the files looked at now.
func (f *Folder) Look() {
	select {
	case f.look <- struct{}{}:
	default: // it holds one
	}
}
