package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// store returns the URL of the Redis that the variables name. Errors quote only names of files: the
// rest may hold passwords.
func (e *theirs) store() (string, error) {
	if backend := e.text("BACKEND_TYPE"); backend != "redis" && backend != "" {
		return "", errors.New("BACKEND_TYPE: must be redis: Weir doesn't count in memcached; start a Redis, and name it in REDIS_URL")
	}
	parameters, err := e.redisTLS()
	if err != nil {
		return "", err
	}
	hosts := strings.Split(e.text("REDIS_URL"), ",")
	switch kind := strings.ToLower(e.text("REDIS_TYPE")); kind {
	case "single":
		return e.single(hosts, parameters)
	case "cluster":
		return e.several("redis-cluster://", hosts, "", parameters)
	case "sentinel":
		if len(hosts) < 2 {
			return "", errors.New("REDIS_URL: with REDIS_TYPE=sentinel, must be the name of the primary and then the Sentinels, such as mymaster,sentinel-0:26379,sentinel-1:26379")
		}
		return e.several("redis-sentinel://", hosts[1:], "/"+escape(strings.TrimSpace(hosts[0])), parameters)
	}
	return "", fmt.Errorf("REDIS_TYPE: must be single, sentinel or cluster, got %q", e.text("REDIS_TYPE"))
}

// single returns the URL of one server, given as host:port, redis://user:password@host:port/db, or
// the path of a socket.
func (e *theirs) single(hosts []string, parameters url.Values) (string, error) {
	switch socket := e.text("REDIS_SOCKET_TYPE"); {
	case socket == "unix" && !strings.HasPrefix(hosts[0], "/"):
		return "", errors.New("REDIS_URL: must be the path of a socket, since REDIS_SOCKET_TYPE is unix: for host:port, set REDIS_SOCKET_TYPE=tcp")
	case socket == "unix" && e.on("REDIS_TLS"):
		return "", errors.New("REDIS_TLS: is for REDIS_SOCKET_TYPE=tcp: a socket on this machine has none")
	case socket == "unix":
		return "unix://" + e.login("", "") + strings.ReplaceAll(escape(e.text("REDIS_URL")), "%2F", "/"), nil
	case socket != "tcp" && socket != "tcp4" && socket != "tcp6":
		return "", fmt.Errorf("REDIS_SOCKET_TYPE: must be tcp or unix, got %q", socket)
	case len(hosts) > 1:
		return "", errors.New("REDIS_URL: several hosts are for REDIS_TYPE=cluster or REDIS_TYPE=sentinel")
	}
	server, err := parseServer(hosts[0])
	if err != nil {
		return "", err
	}
	scheme := "redis://"
	if e.on("REDIS_TLS") {
		scheme = "rediss://"
	}
	return scheme + e.login(server.user, server.password) + server.host + server.database + asQuery(parameters), nil
}

// several returns the URL of a Cluster, or of Sentinels with the path that follows them.
func (e *theirs) several(scheme string, hosts []string, path string, parameters url.Values) (string, error) {
	var names []string
	var user, password string // from the first host that has them
	for _, h := range hosts {
		server, err := parseServer(strings.TrimSpace(h))
		if err != nil {
			return "", err
		}
		names = append(names, server.host)
		if user == "" && password == "" {
			user, password = server.user, server.password
		}
	}
	if e.on("REDIS_TLS") {
		parameters.Set("tls", "true")
	}
	if path == "" {
		return scheme + e.login(user, password) + strings.Join(names, ",") + asQuery(parameters), nil
	}
	// Users and passwords in the URLs are for the Sentinels, which are what it names.
	if auth := e.text("REDIS_SENTINEL_AUTH"); auth != "" {
		user, password = splitLogin(auth)
	}
	if user != "" {
		parameters.Set("sentinel_user", user)
	}
	if password != "" {
		parameters.Set("sentinel_password", password)
	}
	return scheme + e.login("", "") + strings.Join(names, ",") + path + asQuery(parameters), nil
}

// redisTLS returns the parameters of a store's URL for TLS.
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

// login returns the user and password for a URL. REDIS_AUTH goes before those of REDIS_URL.
func (e *theirs) login(user, password string) string {
	if auth := e.text("REDIS_AUTH"); auth != "" {
		u, p := splitLogin(auth)
		if u != "" {
			user = u
		}
		password = p
	}
	if user == "" && password == "" {
		return ""
	}
	return escape(user) + ":" + escape(password) + "@"
}

// splitLogin splits user:password. Without a colon, it is a password.
func splitLogin(auth string) (user, password string) {
	user, password, both := strings.Cut(auth, ":")
	if !both {
		return "", user
	}
	return user, password
}

// server is a server in REDIS_URL.
type server struct{ host, user, password, database string }

// parseServer reads host:port, or redis://user:password@host:port/database.
func parseServer(text string) (server, error) {
	if !strings.Contains(text, "://") {
		return server{host: text}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "redis" || u.Host == "" {
		return server{}, errors.New(`REDIS_URL: must be host:port, or redis://user:password@host:port/0 with %2F for "/", %3F for "?", %23 for "#" and %25 for "%" in a password; TLS is REDIS_TLS=true`)
	}
	given := u.Query()
	s := server{host: u.Host, user: cmp.Or(u.User.Username(), given.Get("username"))}
	s.password, _ = u.User.Password()
	s.password = cmp.Or(s.password, given.Get("password"))
	if database := cmp.Or(strings.Trim(u.Path, "/"), given.Get("db")); database != "" {
		s.database = "/" + escape(database)
	}
	return s, nil
}

// escape escapes text for a store's URL, in which a plus is a plus.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

func asQuery(parameters url.Values) string {
	if len(parameters) == 0 {
		return ""
	}
	return "?" + strings.ReplaceAll(parameters.Encode(), "+", "%20")
}
