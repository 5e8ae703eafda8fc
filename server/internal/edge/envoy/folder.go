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

// Folder is a folder of configuration files. The service follows their changes. If a file is invalid, the configuration
// in force stays.
type Folder struct {
	path    string
	service *Service
	look    watch.Bell // rung when the files should be read now
	last    []File     // the files as Open read them
	ignored []string   // files without a YAML extension
}

const (
	maxFiles  = 1000   // maximum number of files in a configuration
	maxLooked = 10_000 // maximum number of files of any type in the folder
)

// Open reads the files of a folder and puts them in force. If startWithout is true, it only logs errors in the files;
// requests then get UNAVAILABLE until the files are valid.
func (s *Service) Open(path string, startWithout bool) (*Folder, error) {
	f := &Folder{path: path, service: s, look: watch.NewBell()}
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
	f.last = []File{{}} // so that Follow applies the files that it reads
	s.note(func(n *Source) { n.Name, n.Rejected = path, err.Error() })
	s.opts.Logger.Warn("there is no envoy configuration yet", "error", err)
	return f, nil
}

func (f *Folder) read() (files []File, err error) {
	files, f.ignored, err = ReadFolder(f.path)
	return files, err
}

// ReadFolder reads all *.yaml and *.yml files of a folder and its subfolders. It skips names that start with a dot,
// which editors and Kubernetes create. ignored lists other files, which envoyproxy/ratelimit would read.
func ReadFolder(folder string) (files []File, ignored []string, err error) {
	looked := 0
	err = fs.WalkDir(os.DirFS(folder), ".", func(name string, e fs.DirEntry, err error) error {
		base, path := filepath.Base(name), filepath.Join(folder, name)
		looked++
		switch {
		case errors.Is(err, fs.ErrNotExist) && name != ".":
			return nil // the file was removed after the listing
		case err != nil:
			if e, ok := err.(*fs.PathError); ok {
				e.Path = path // the whole path, not only the part below the folder
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
	f.service.accept(config, f.path, "", "folder", f.path, "files", len(files))
	return nil
}

// Follow applies the files whenever they change, until ctx is done.
func (f *Folder) Follow(ctx context.Context) error {
	return watch.Dir(ctx, f.path, f.read, same, f.last, f.look, func(files []File) {
		if err := f.apply(files); err != nil {
			f.service.reject(err)
		}
	}, func(err error) {
		f.service.opts.Logger.Error("envoy configuration can't be read: the one in force stays", "error", err)
	})
}

func same(a, b []File) bool {
	return slices.EqualFunc(a, b, func(a, b File) bool { return a.Name == b.Name && string(a.Text) == string(b.Text) })
}

// Look makes Follow read the files now, without waiting for an event.
func (f *Folder) Look() { f.look.Ring() }
