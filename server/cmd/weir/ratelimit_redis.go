package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// store returns the URL of the Redis that the variables describe. Its errors quote only file names, since other values
// may contain passwords.
func (e *theirs) store() (string, error) {
	if backend := e.text("BACKEND_TYPE"); backend != "redis" && backend != "" {
		return "", errors.New("BACKEND_TYPE: must be redis: Weir doesn't count in memcached; start a Redis, and name it in REDIS_URL")
	}
	parameters, err := e.redisTLS()
	if err != nil {
		return "", err
	}
	hosts := strings.Split(e.text("REDIS_URL"), ",")
	scheme, primary := "redis", ""
	switch kind := strings.ToLower(e.text("REDIS_TYPE")); kind {
	case "single":
		if err := e.checkSingle(hosts); err != nil {
			return "", err
		}
		if e.text("REDIS_SOCKET_TYPE") == "unix" {
			return "unix://" + e.login(nil) + strings.ReplaceAll(escape(e.text("REDIS_URL")), "%2F", "/"), nil
		}
	case "cluster":
		scheme = "redis-cluster"
	case "sentinel":
		if len(hosts) < 2 {
			return "", errors.New("REDIS_URL: with REDIS_TYPE=sentinel, must be the name of the primary and then the Sentinels, such as mymaster,sentinel-0:26379,sentinel-1:26379")
		}
		scheme, primary, hosts = "redis-sentinel", strings.TrimSpace(hosts[0]), hosts[1:]
	default:
		return "", fmt.Errorf("REDIS_TYPE: must be single, sentinel or cluster, got %q", e.text("REDIS_TYPE"))
	}
	single, path := scheme == "redis", ""
	switch tls := e.on("REDIS_TLS"); {
	case tls && single:
		scheme = "rediss"
	case tls:
		parameters.Set("tls", "true")
	}
	var user *url.Userinfo // from the first server that has one
	for i, h := range hosts {
		server, err := parseServer(strings.TrimSpace(h))
		if err != nil {
			return "", err
		}
		hosts[i], user = server.Host, cmp.Or(user, server.User)
		if single {
			path = server.Path
		}
	}
	if primary != "" { // then users and passwords in the URLs are for the Sentinels
		if auth := e.text("REDIS_SENTINEL_AUTH"); auth != "" {
			user = parseLogin(auth)
		}
		if name := user.Username(); name != "" {
			parameters.Set("sentinel_user", name)
		}
		if password, _ := user.Password(); password != "" {
			parameters.Set("sentinel_password", password)
		}
		path, user = "/"+escape(primary), nil
	}
	text := scheme + "://" + e.login(user) + strings.Join(hosts, ",") + path
	if len(parameters) > 0 {
		text += "?" + strings.ReplaceAll(parameters.Encode(), "+", "%20")
	}
	return text, nil
}

// checkSingle checks the variables for a single server, which REDIS_URL gives as an address or as the path of a
// socket.
func (e *theirs) checkSingle(hosts []string) error {
	switch socket := e.text("REDIS_SOCKET_TYPE"); {
	case socket == "unix" && !strings.HasPrefix(hosts[0], "/"):
		return errors.New("REDIS_URL: must be the path of a socket, since REDIS_SOCKET_TYPE is unix: for host:port, set REDIS_SOCKET_TYPE=tcp")
	case socket == "unix" && e.on("REDIS_TLS"):
		return errors.New("REDIS_TLS: is for REDIS_SOCKET_TYPE=tcp: a socket on this machine has none")
	case socket == "unix":
		return nil
	case socket != "tcp" && socket != "tcp4" && socket != "tcp6":
		return fmt.Errorf("REDIS_SOCKET_TYPE: must be tcp or unix, got %q", socket)
	case len(hosts) > 1:
		return errors.New("REDIS_URL: several hosts are for REDIS_TYPE=cluster or REDIS_TYPE=sentinel")
	}
	return nil
}

// redisTLS returns the TLS parameters of a store's URL.
func (e *theirs) redisTLS() (url.Values, error) {
	parameters := url.Values{}
	if !e.on("REDIS_TLS") {
		return parameters, nil
	}
	if err := e.files("REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY", "REDIS_TLS_CACERT"); err != nil {
		return nil, err
	}
	for name, parameter := range map[string]string{"REDIS_TLS_CACERT": "ca", "REDIS_TLS_CLIENT_CERT": "cert", "REDIS_TLS_CLIENT_KEY": "key"} {
		if file := e.text(name); file != "" {
			parameters.Set(parameter, file)
		}
	}
	if e.on("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") {
		parameters.Set("verify_name", "false")
	}
	return parameters, nil
}

// login returns the user and password for a URL. REDIS_AUTH takes precedence over those in REDIS_URL.
func (e *theirs) login(user *url.Userinfo) string {
	name := user.Username()
	password, _ := user.Password()
	if auth := e.text("REDIS_AUTH"); auth != "" {
		given := parseLogin(auth)
		name = cmp.Or(given.Username(), name)
		password, _ = given.Password()
	}
	if name == "" && password == "" {
		return ""
	}
	return escape(name) + ":" + escape(password) + "@"
}

// parseLogin parses user:password. A text without a colon is a password.
func parseLogin(auth string) *url.Userinfo {
	user, password, both := strings.Cut(auth, ":")
	if !both {
		return url.UserPassword("", user)
	}
	return url.UserPassword(user, password)
}

// parseServer parses host:port, or redis://user:password@host:port/database.
func parseServer(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		return &url.URL{Host: text}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "redis" || u.Host == "" {
		return nil, errors.New(`REDIS_URL: must be host:port, or redis://user:password@host:port/0 with %2F for "/", %3F for "?", %23 for "#" and %25 for "%" in a password; TLS is REDIS_TLS=true`)
	}
	given := u.Query()
	name, password := cmp.Or(u.User.Username(), given.Get("username")), given.Get("password")
	if own, _ := u.User.Password(); own != "" {
		password = own
	}
	if u.User = nil; name+password != "" {
		u.User = url.UserPassword(name, password)
	}
	if u.Path = cmp.Or(strings.Trim(u.Path, "/"), given.Get("db")); u.Path != "" {
		u.Path = "/" + escape(u.Path)
	}
	return u, nil
}

// escape escapes a text for the query of a store's URL, where a plus sign isn't a space.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
